"""Whether an error depends on settings that the rehearsal changed, or that describe the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.rehearsal import UNDOCUMENTED, JobCut
from attncheck.rehearsal.ending import judge_end
from attncheck.rehearsal.execution import Execution
from attncheck.rehearsal.own_errors import OF_A_MACHINE, read_first_error, restore

BANNER = ("=" * 60, "train.py FAILED", "error_file: <N/A>", "=" * 60)


def write(folder: Path, process: int, **more: Any) -> None:
    (folder / "watch").mkdir(exist_ok=True)
    note = {"text": "ValueError: x", "place": "a.py:1", "reads": [], "unknown": [], "time": float(process), **more}
    (folder / "watch" / f"last-error-{process}").write_text(json.dumps(note))


def test_the_first_ranks_own_exception_is_the_error(tmp_path: Path) -> None:
    assert read_first_error(str(tmp_path)) is None
    write(tmp_path, 1, text="RuntimeError: Connection closed by peer")
    write(tmp_path, 3, text="ValueError: later")
    write(tmp_path, 2, text="OwnError: first\nmore")
    error = read_first_error(str(tmp_path))
    assert error is not None and error.line == "OwnError: first"
    result = judge_end(Execution(1, 0, BANNER, 1.0), "", error.text)
    assert result.violations[0].startswith("OwnError: first (ended with status 1")


@pytest.mark.parametrize("text", ["", "[]", '{"text": 3}', "{"])
def test_a_note_that_the_launch_wrote_decides_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path, 1)
    (tmp_path / "watch" / "last-error-1").write_text(text)
    assert read_first_error(str(tmp_path)) is None


def test_settings_are_restored_under_each_name() -> None:
    environ = {"ATTNCHECK_SETTINGS": json.dumps({"max_steps": "30", "beta": None})}
    cut = JobCut({"max_steps": "30", "seed": "1"}, "text", UNDOCUMENTED, environ, options={"--max-steps": "30"})
    restored = restore(cut, {"max_steps"})
    assert (dict(restored.sets), dict(restored.options)) == ({"seed": "1"}, {})
    assert json.loads(restored.environ["ATTNCHECK_SETTINGS"]) == {"beta": None}


@pytest.mark.parametrize(
    ("name", "is_machine"),
    [("per_device_train_batch_size", False), ("lora_rank", False), ("local_rank", True), ("device_map", True)],
)
def test_settings_of_the_machine(name: str, is_machine: bool) -> None:
    assert bool(OF_A_MACHINE.search(name)) == is_machine
