"""An error of the user's own code is proven if nothing that the rehearsal replaced decides it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.results.rehearsal import CLASS, Difference
from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal.own_errors import prove

SCRIPT = """
from os import path
def other(row): logits = row; return logits
def train(training_args, model_args, rows):
    assert not (training_args.use_lora and training_args.freeze_llm), "one of both"
    if model_args.loss_type != "dft":
        if model_args.packed:
            raise ValueError("not packed")
    assert model_args.packed or rows
    for row in rows:
        if path.exists(row):
            raise ValueError(row)
    assert training_args.learning_rate < 1
    return logits + row + path + len(rows)
"""
OPTIONS = "--use_lora True --freeze_llm True --loss_type=sft --packed true --learning_rate 2 --other $X"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's script, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def ask(
    script: Path, line: int, error: str, options: str = OPTIONS, steps: int = 0, cut: str = "", *differences: Difference
) -> str:
    """Return the proof for an error at a line of the script; `cut`: an option that the rehearsal changes."""
    words = tuple(SimpleNamespace(text=text) for text in options.split())
    read: Any = SimpleNamespace(
        job=SimpleNamespace(settings=()), recognised=SimpleNamespace(launch=SimpleNamespace(words=words))
    )
    notes = (f'[rank0]:   File "{script}", line {line}, in train', f"[rank0]: {error}")
    end = CheckResult("run", violations=(f"{error} (ended with status 1)",), notes=notes)
    launch: Any = SimpleNamespace(results=(end,), steps=steps, differences=differences)
    changed: Any = SimpleNamespace(sets={}, options={cut: "true"})
    return prove(read, changed, launch)


@pytest.mark.parametrize(
    ("line", "error", "text"),
    [
        (5, "AssertionError: one of both", "use_lora True, freeze_llm True"),
        (8, "ValueError: not packed", "loss_type sft, packed True"),
        (14, "NameError: name 'logits' is not defined", "train.py:14 takes logits"),
        (14, "NameError: name 'other' is not defined", ""),  # defined, but not before this line
        (14, "NameError: name 'path' is not defined", ""),
        (9, "AssertionError", ""),  # also the rows decide
        (12, "ValueError: a", ""),
        (13, "AssertionError", ""),  # a number that is compared
        (14, "TypeError: unsupported operand", ""),
    ],
)
def test_an_error_that_only_the_launch_decides_is_proven(script: Path, line: int, error: str, text: str) -> None:
    proof = ask(script, line, error)
    assert text in proof and bool(text) == bool(proof)


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        (5, ("--use_lora True",)),  # the other is a default of the script
        (5, ("--use_lora True --freeze_llm $FREEZE",)),
        (5, ("--use_lora True --freeze_llm False",)),  # the script changed it
        (5, (OPTIONS, 0, "freeze-llm")),  # the rehearsal's own value
        (5, (OPTIONS, 3)),
        (14, (OPTIONS, 0, "", Difference(CLASS, "not known", "llama"))),
    ],
)
def test_what_the_rehearsal_or_an_unknown_value_may_cause_is_not(
    script: Path, line: int, changed: tuple[Any, ...]
) -> None:
    error = "NameError: name 'logits' is not defined" if line == 14 else "AssertionError"
    assert ask(script, line, error)
    assert not ask(script, line, error, *changed)


def test_an_error_of_a_package_is_not(script: Path, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "train.py"
    package.parent.mkdir()
    package.write_text(SCRIPT)
    assert not ask(package, 14, "NameError: name 'logits' is not defined")
    assert not ask(Path("<string>"), 14, "NameError: name 'logits' is not defined")
