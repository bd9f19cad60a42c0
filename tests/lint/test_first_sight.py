"""The draw of launches that nobody has looked at: seeded, by file name, few of a repository; and its figures."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools import first_sight

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
FILES = {
    "train.sh": "torchrun train.py --bf16\n",
    "run_sft.sh": "accelerate launch sft.py\n",
    "scripts/run_grpo.sh": "python3 -m verl.trainer.main_ppo\n",
    "tests/train.sh": "torchrun train.py\n",
    "install.sh": "pip install torch\n",
    "run.sh": "echo done\n",
}


def make_repository(folder: Path, name: str) -> None:
    place = folder / name
    for path, text in FILES.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "files")):
        subprocess.run([*GIT, *command], cwd=place, check=True)


def test_launches_are_drawn_by_name_and_seed(tmp_path: Path) -> None:
    for name in ("a+one", "b+two"):
        make_repository(tmp_path, name)
    rows = list(first_sight.find_candidates(tmp_path, set()))
    assert {row["repo"] for row in rows} == {"a/one", "b/two"}
    assert {row["path"] for row in rows} == {"train.sh", "run_sft.sh", "scripts/run_grpo.sh"}
    assert {row["suggests"] for row in rows} == {"verl", "trl", "other"}
    drawn = first_sight.draw(rows, 7, 10)
    assert drawn == first_sight.draw(rows, 7, 10) and len(drawn) == 2 * first_sight.PER_REPOSITORY
    assert len({row["suggests"] for row in drawn[:3]}) == 3
    assert not list(first_sight.find_candidates(tmp_path, {"a/one", "b/two"}))


def test_a_launch_is_linted_in_its_checkout_and_summed_up(tmp_path: Path) -> None:
    make_repository(tmp_path, "a+one")
    [row] = [row for row in first_sight.find_candidates(tmp_path, set()) if row["path"].endswith("grpo.sh")]
    entry = first_sight.lint(row, tmp_path, "h100x8,verl=0.7.0")
    assert entry["read_as"][0].startswith("verl 0.7.0") and not entry["failure"]
    entry |= {"in_scope": True, "read_rightly": True, "misses": ["one"]}
    for finding in entry["findings"]:
        finding["verdict"] = "right"
    figures = first_sight.sum_up({"date": "2026-01-01", "seed": 7, "launches": [entry]})
    assert (figures["n"], figures["recognised"], figures["read rightly"], figures["misses"]) == (1, 1, 1, 1)
    assert sum(value for name, value in figures.items() if name.endswith(" right")) == len(entry["findings"])
