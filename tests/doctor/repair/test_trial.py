"""A repair is resolved by uv and tried in a folder alongside the environment, only when asked, and nothing is
changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.io.errors import Unanswered
from attncheck.core.report import Report
from attncheck.core.results.repair import RepairSection, RepairStep
from attncheck.doctor import engine
from attncheck.doctor.profile import needs_of_profile
from attncheck.doctor.repair.plan import add_repair
from attncheck.doctor.repair.trial import describe_resolution, list_trial_requirements, resolve_repair, try_repair
from attncheck.workers.overlay import resolve_with_uv
from tests import snapshots as s
from tests.doctor.repair.test_repair import repair_of, without_einops

WOULD_INSTALL = (
    "Resolved 12 packages in 5ms\nWould install 1 package\n - transformers==5.17.0\n + transformers==5.1.0\n"
)
NO_SOLUTION = "  × No solution found when resolving dependencies:\n  ╰─▶ Because there is no version of x==9\n"


def make_report() -> Report:
    snapshot = without_einops(s.h200())
    return add_repair(engine.run_rules(snapshot, needs_of_profile("all", snapshot)))


def put_uv_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put a `uv` first on PATH that notes its arguments and then runs `script`; return the notes."""
    notes = folder / "arguments"
    folder.mkdir(exist_ok=True)
    (folder / "uv").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {notes}\n{script}\n')
    (folder / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return notes


@pytest.mark.parametrize(
    ("answer", "held", "expected"),
    [
        (WOULD_INSTALL, True, "uv resolves it: -transformers==5.17.0, +transformers==5.1.0; torch stays"),
        (WOULD_INSTALL, False, "uv resolves it: -transformers==5.17.0, +transformers==5.1.0"),
        ("Resolved 3 packages\nWould make no changes\n", True, "uv: nothing would change"),
        (NO_SOLUTION, True, "uv: No solution found when resolving dependencies: Because there is no version of x==9"),
        ("", True, ""),
    ],
)
def test_what_uv_says_becomes_one_line(answer: str, held: bool, expected: str) -> None:
    assert describe_resolution(answer, held) == expected


def test_uv_resolves_all_of_it_at_once_and_torch_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = tmp_path / "answer"
    answer.write_text(WOULD_INSTALL)
    notes = put_uv_on_path(tmp_path / "bin", monkeypatch, f"cat {answer} >&2")
    section = repair_of(resolve_repair(make_report(), sys.executable, lambda text: None))
    arguments = notes.read_text().splitlines()
    assert arguments[:3] == ["pip", "install", "--dry-run"] and ":all:" in arguments
    assert {"transformers==5.1.0", "einops", "torch==2.11.0+cu130"} <= set(arguments)
    assert section.resolution.startswith("uv resolves it: ") and section.resolution.endswith("torch stays")


def test_a_uv_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_uv_on_path(tmp_path / "bin", monkeypatch, "exec sleep 600")
    with pytest.raises(Unanswered, match="dry run took longer than 1 s"):
        resolve_with_uv(sys.executable, ["x"], lambda text: None, seconds=1.0)


def test_without_uv_nothing_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert repair_of(resolve_repair(make_report(), sys.executable, lambda text: None)).resolution == ""


def test_neither_torch_nor_a_build_nor_what_no_version_pins_is_tried() -> None:
    wheel = "https://example.org/flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"
    steps = (
        RepairStep("pip install torch==2.9.0", "", ("A",), ("torch==2.9.0",)),
        RepairStep("pip install --index-url x torchvision==0.24.0", "", ("A",), ("torchvision==0.24.0",)),
        RepairStep("MAX_JOBS=4 pip install flash-attn==2.8.3", "", ("A",), ("flash-attn==2.8.3",)),
        RepairStep("pip install --no-deps", "", ("A",), (wheel, "einops")),
        RepairStep("pip install", "", ("A",), ("transformers==5.1.0",)),
    )
    assert list_trial_requirements(RepairSection(steps)) == (wheel, "transformers==5.1.0")


def lay_distribution(
    site: Path, name: str, version: str, modules: dict[str, str], requires: tuple[str, ...] = ()
) -> None:
    """Lay a distribution into a site directory as an installer does."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")
    (info / "INSTALLER").write_text("pip\n")
    for path, text in modules.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in (*modules, f"{info.name}/METADATA")))


FLASH_UTILS = "transformers/modeling_flash_attention_utils.py"
RING = "from transformers.modeling_flash_attention_utils import is_flash_attn_greater_or_equal_2_10\n"
FLASH = {
    "flash_attn/__init__.py": "",
    "flash_attn/bert_padding.py": "import einops\ndef unpad_input(*a):\n    return a\n",
}


def transformers_modules(version: str, utils: str) -> dict[str, str]:
    return {
        "transformers/__init__.py": f"__version__ = '{version}'\n",
        "transformers/modeling_utils.py": "",
        FLASH_UTILS: utils,
    }


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Return an interpreter whose environment has the faults of the issue's report, laid as installers lay them."""
    folder = tmp_path / "env"
    torch = {"torch/__init__.py": "__version__ = '2.8.0'\n", "torch/version.py": "cuda = None\n"}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    lay_distribution(site, "torch", "2.8.0", torch)
    lay_distribution(site, "transformers", "5.17.0", transformers_modules("5.17.0", ""))
    lay_distribution(site, "ring-flash-attn", "0.1.8", {"ring_flash_attn/__init__.py": RING})
    lay_distribution(site, "flash-attn", "2.8.3", FLASH, requires=("torch", "einops"))
    return str(folder / "bin" / "python")


def lay_from(wheel: Path) -> str:
    """Return the script of a `uv` that lays what is in `wheel` into the folder that it is given."""
    return f'while [ $# -gt 0 ]; do if [ "$1" = --target ]; then cp -r {wheel} "$2"; fi; shift; done'


def run_doctor(python: str, *options: str, **environ: str) -> dict[str, object]:
    command = [sys.executable, "-m", "attncheck", "doctor", "--python", python, "--profile", "ring", "--format", "json"]
    answer = subprocess.run([*command, *options], capture_output=True, text=True, env={**os.environ, **environ})
    assert answer.returncode in (0, 1), answer.stderr
    document: dict[str, object] = json.loads(answer.stdout)
    return document


def test_of_laid_packages_the_whole_repair_is_in_the_report(python: str) -> None:
    document = run_doctor(python)
    codes = {finding["code"] for finding in document["findings"]}  # type: ignore[attr-defined]
    assert {"ATN140", "ATN170"} <= codes
    repair = document["repair"]
    assert isinstance(repair, dict)
    assert repair["resolution"] == repair["trial"] == "", "nothing is asked of an index unless the user says so"
    installs = [text for step in repair["steps"] for text in step["installs"]]
    assert installs == ["transformers==5.1.0", "einops"] and {"ATN140", "ATN170"} <= set(repair["proven"])
    [broken] = [f for f in document["findings"] if f["code"] == "ATN170"]  # type: ignore[attr-defined]
    assert broken["severity"] == "error" and "No module named 'einops'" in str(broken["evidence"])


def test_the_packages_are_tried_in_a_folder_and_the_environment_stays(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "wheel"
    utils = "def is_flash_attn_greater_or_equal_2_10():\n    return True\n"
    lay_distribution(wheel, "transformers", "5.1.0", transformers_modules("5.1.0", utils))
    lay_distribution(wheel, "einops", "0.8.2", {"einops/__init__.py": ""})
    put_uv_on_path(tmp_path / "bin", monkeypatch, lay_from(wheel))
    before = sorted(str(path) for path in Path(python).parents[1].rglob("*") if "__pycache__" not in str(path))
    trial = run_doctor(python, "--try-packages")["repair"]["trial"]  # type: ignore[index]
    assert trial == "transformers==5.1.0 einops imported; gone: ATN140, ATN170"
    assert sorted(str(path) for path in Path(python).parents[1].rglob("*") if "__pycache__" not in str(path)) == before


def test_a_trial_that_fixes_nothing_is_reported(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "wheel"
    lay_distribution(
        wheel, "transformers", "5.1.0", transformers_modules("5.1.0", "")
    )  # planted: it lacks the name too
    put_uv_on_path(tmp_path / "bin", monkeypatch, lay_from(wheel))
    trial = run_doctor(python, "--try-packages")["repair"]["trial"]  # type: ignore[index]
    assert "gone: nothing" in trial and "ATN140" in trial.partition("still found")[2]


def test_an_index_without_the_packages_is_one_line(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_uv_on_path(tmp_path / "bin", monkeypatch, "echo 'No solution found' >&2; exit 1")
    trial = run_doctor(python, "--try-packages")["repair"]["trial"]  # type: ignore[index]
    assert "cannot be installed next to the environment" in trial and "\n" not in trial


def test_a_report_without_a_judge_is_left_alone() -> None:
    report = replace(make_report(), sections={"repair": repair_of(make_report())})
    assert try_repair(report, None, 1.0, lambda text: None) is report
