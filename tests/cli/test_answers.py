"""What lint answered is given again while everything that it looked at is unchanged, and never afterwards."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.cli.answers import Recorder, is_unchanged

MARK = "given again"
TRAIN = """from own import Arguments
from transformers import HfArgumentParser, Trainer
HfArgumentParser((Arguments,)).parse_args_into_dataclasses()
Trainer()
"""
OWN = """from dataclasses import dataclass
from transformers import TrainingArguments

@dataclass
class Arguments(TrainingArguments):
    model_name_or_path: str = ""
"""
OPTIONS = "--output_dir o --per_device_train_batch_size 1 --model_name_or_path m"
RUN = f"accelerate launch --config_file a.yaml train.py {OPTIONS}\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def lint(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run lint in a folder with its own home, after the clock of its file system has moved on."""
    time.sleep(0.05)
    program = Path(sys.executable).with_name("attncheck")
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "PYTHONPATH": str(folder / "site"),
        **environ,
    }
    command = [str(program), "lint", "run.sh", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**variables, **environ}, capture_output=True, text=True, timeout=120, check=False
    )


def mark_kept(folder: Path) -> int:
    """Make the kept answers recognisable; return their number."""
    files = list((folder / "home/.cache/attncheck").glob("lint-*.zlib"))
    for file in files:
        document = json.loads(zlib.decompress(file.read_bytes()))
        file.write_bytes(zlib.compress(json.dumps({**document, "text": MARK}).encode()))
    return len(files)


def test_an_answer_is_given_again_until_something_that_it_was_made_of_changes(tmp_path: Path) -> None:
    for name, text in {"run.sh": RUN, "train.py": TRAIN, "own.py": OWN, "a.yaml": "mixed_precision: bf16\n"}.items():
        write(tmp_path / name, text)
    (tmp_path / ".git").mkdir()
    for name in ("site", "home"):  # the tree's folder is listed, so nothing may appear in it later
        (tmp_path / name).mkdir()
    target = ("--target", "h100x8")
    changes: dict[str, Callable[[], None]] = {
        "the launch": lambda: write(tmp_path / "run.sh", RUN.replace(" o ", " p ")),
        "its program": lambda: write(tmp_path / "train.py", TRAIN + "# changed\n"),
        "a module that it imports": lambda: write(tmp_path / "own.py", OWN + "    own: int = 1\n"),
        "a file that the command names": lambda: write(tmp_path / "a.yaml", "mixed_precision: no\n"),
        "versions that the tree states from now on": lambda: write(
            tmp_path / "requirements.txt", "transformers==4.40.0"
        ),
        "the folder's own policy": lambda: write(tmp_path / "pyproject.toml", "[tool.attncheck]\nfail-on = 'never'\n"),
        "the model": lambda: write(tmp_path / "m/config.json", '{"model_type": "llama"}'),
        "an installed package": lambda: write(
            tmp_path / "site/torch-2.6.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n"
        ),
    }
    first = lint(tmp_path, *target)
    assert "transformers" in first.stdout and mark_kept(tmp_path) == 1, first.stderr
    for what, change in changes.items():
        again = lint(tmp_path, *target)
        assert (again.stdout, again.returncode) == (MARK, first.returncode), what
        change()
        first = lint(tmp_path, *target)
        assert MARK not in first.stdout and first.returncode in (0, 1), what
        mark_kept(tmp_path)
    assert MARK not in lint(tmp_path, "--target", "h100x4").stdout
    assert MARK not in lint(tmp_path, *target, TRANSFORMERS_OFFLINE="1").stdout
    write(tmp_path / "home/.cache/attncheck" / "lint-x.zlib", "")
    assert lint(tmp_path, *target).stdout == MARK


@pytest.mark.parametrize("arguments", [("--output", "json=report.json"), (f"--python={sys.executable}",)])
def test_a_run_that_writes_or_that_reads_elsewhere_is_not_kept(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    write(tmp_path / "run.sh", "torchrun train.py\n")
    assert lint(tmp_path, "--target", "h100x8", *arguments).returncode in (0, 1)
    assert mark_kept(tmp_path) == 0


LOOKS: dict[str, Callable[[Path], object]] = {
    "exists": lambda path: os.path.exists(path),
    "is_file": lambda path: path.is_file(),
    "is_dir": lambda path: path.is_dir(),
    "lexists": lambda path: os.path.lexists(path),
    "islink": lambda path: os.path.islink(path),
    "access": lambda path: os.access(path, os.R_OK),
    "realpath": lambda path: os.path.realpath(path),
    "resolve": lambda path: path.resolve(),
    "open": lambda path: _read(path),
    "listdir": lambda path: os.listdir(path.parent),
    "scandir": lambda path: list(os.scandir(path.parent)),
    "iterdir": lambda path: list(path.parent.iterdir()),
    "glob": lambda path: glob.glob(str(path.parent / "*.x")),
    "walk": lambda path: list(os.walk(path.parent)),
}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("start", ["", "text", "folder", "link"])
def test_every_way_to_look_at_a_path_is_noted(tmp_path: Path, look: Callable[[Path], object], start: str) -> None:
    path = tmp_path / "folder" / "a.x"
    path.parent.mkdir()
    (tmp_path / "target").write_text("")
    if start == "folder":
        path.mkdir()
    elif start == "link":
        path.symlink_to(tmp_path / "target")
    elif start:
        path.write_text(start)
    recorder = Recorder(False, tmp_path / "cache", "/no-such-folder")
    with recorder.record():
        look(path)
    assert is_unchanged(recorder.queried, recorder.listed)
    if start == "folder":
        path.rmdir()
    elif start:
        path.unlink()
    else:
        path.write_text("new")
    assert not is_unchanged(recorder.queried, recorder.listed)
