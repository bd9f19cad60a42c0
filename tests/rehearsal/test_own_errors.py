"""An error of the user's own code is proven if nothing that the rehearsal replaced decides it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.job import SettingProblem
from attncheck.core.results.rehearsal import CLASS, Difference
from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal import own_errors
from attncheck.rehearsal.own_errors import prove

SCRIPT = """
from os import path
def other(row): logits = row; return logits
def train(rows):
    return logits + path + len(rows)
"""
UNDEFINED = "NameError: name '{}' is not defined"
REFUSED = SettingProblem("refuses", "these settings: ValueError: one of both", ("train.py:3 raises it for --a 1",))
STAND_IN = Difference(CLASS, "not known", "llama")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's script, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_errors, "add_decided_conditions", lambda *asked: SimpleNamespace(problems=(REFUSED,)))
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def ask(script: Path, error: str, steps: int = 0, *differences: Difference) -> str:
    """Return the proof for an error of the script's last line."""
    read: Any = SimpleNamespace(job=None, recognised=SimpleNamespace(launch=None))
    notes = (f'[rank0]:   File "{script}", line 5, in train', f"[rank0]: {error}")
    end = CheckResult("run", violations=(f"{error} (ended with status 1)",), notes=notes)
    launch: Any = SimpleNamespace(results=(end,), steps=steps, differences=differences)
    return prove(read, launch)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UNDEFINED.format("logits"), "train.py:5 takes logits"),  # another function's
        (UNDEFINED.format("path"), ""),
        (UNDEFINED.format("other"), ""),  # defined, but not before this line
        (UNDEFINED.format("print"), ""),
        ("ValueError: one of both", "train.py:3 raises it for --a 1"),
        ("ValueError: another", ""),
        ("TypeError: unsupported operand", ""),
    ],
)
def test_an_error_that_only_the_launch_decides_is_proven(script: Path, error: str, text: str) -> None:
    proof = ask(script, error)
    assert text in proof and bool(text) == bool(proof)
    assert not ask(script, error, 1)


def test_what_a_stand_in_or_a_package_may_cause_is_not(script: Path, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "train.py"
    package.parent.mkdir()
    package.write_text(SCRIPT)
    error = UNDEFINED.format("logits")
    assert ask(script, error) and not ask(script, error, 0, STAND_IN)
    assert not ask(package, error) and not ask(Path("<string>"), error)


@pytest.mark.parametrize(
    ("text", "is_proven"),
    [
        ("def other(): ...", True),
        ("from .other import reward", False),
        ("from .other import *", False),
        ("def __getattr__(name): ...", False),
        ("if True:\n    reward = 1", False),
    ],
)
def test_a_name_that_an_own_file_lacks_is_proven(script: Path, text: str, is_proven: bool) -> None:
    """Not if the file may define it, nor of a package's file, or of modules that import each other."""
    (script.parent / "rewards.py").write_text(text)
    error = f"ImportError: cannot import name 'reward' from 'rewards' ({script.parent / 'rewards.py'})"
    proof = ask(script, error)
    assert proof == "train.py:5 imports reward, which rewards.py does not define" * is_proven
    assert not ask(script, error, 0, STAND_IN)
    assert not ask(script, error.replace("from 'rewards'", "from partially initialized module 'rewards'"))


@pytest.mark.parametrize(("text", "is_proven"), [("root = 'data\n", True), ("root = 'data'\n", False)])
def test_a_file_that_is_not_python_is_proven(script: Path, text: str, is_proven: bool) -> None:
    """Not if this Python reads it: it may be newer than the examined one."""
    script.write_text(text)
    assert ask(script, "SyntaxError: unterminated string literal") == "train.py:5 is not Python" * is_proven
    assert not ask(script, "SyntaxError: unterminated string literal", 0, STAND_IN)
    assert not ask(script, "TypeError: unsupported operand")
