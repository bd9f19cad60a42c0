"""Whether the watcher finds what decides the exception that ends a script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
SETTINGS = """\
import argparse, json, os, sys
from dataclasses import dataclass, field

LOSSES = ("sigmoid", "hinge")

@dataclass
class OwnConfig:
    loss: str = "sigmoid"
    beta: float = 0.1
    groups: int = 4
    names: list = field(default_factory=list)

class Model:
    layers = 3

def load(name):
    return Model()

"""
# The body of `train(args, model)`, and the settings that decide its error.
OWN = {
    "a comparison": ('if args.beta < 1 and args.loss != "x":\n    raise ValueError("beta")', {"beta", "loss"}),
    "a local": ('size = args.groups * 3\nif size % 5:\n    raise ValueError("size")', {"groups"}),
    "an assertion": ('assert args.loss in ("x",), "loss"', {"loss"}),
    "a constant": ('if args.loss in LOSSES:\n    raise ValueError("loss")', {"loss"}),
    "a loop": ('for name in ("a", "b"):\n    if name != args.loss:\n        raise ValueError(name)', {"loss"}),
    "a list": (
        'wrong = []\nif args.beta < 1:\n    wrong.append("beta")\nif wrong:\n    raise ValueError(str(wrong))',
        {"beta"},
    ),
    "an early end": ('if args.groups == 5:\n    return\nraise ValueError("groups")', {"groups"}),
    "a name that is missing": ("print(undefined_name)", set()),
    "a call that does not fit": ("load(name=args.loss, kind=3)", set()),
    "its own trainer": (
        "class OwnTrainer:\n    def __init__(self, model, args, scale=2):\n        self.beta = args.beta\n"
        '        if self.beta < scale:\n            raise ValueError("beta")\nOwnTrainer(model, args=args)',
        {"beta"},
    ),
}
UNKNOWN = {
    "the model": 'if model.layers != args.groups:\n    raise ValueError("layers")',
    "a local of the model": 'count = model.layers\nif count == 3:\n    raise ValueError("layers")',
    "a branch by the model": 'if model.layers == 3:\n    if args.beta < 1:\n        raise ValueError("beta")',
    "an early end by the model": 'if model.layers == 4:\n    return\nif args.beta < 1:\n    raise ValueError("beta")',
    "a setting changed by the model": 'args.groups = model.layers\nif args.groups == 3:\n    raise ValueError("g")',
    "a list filled by the model": "wrong = []\nif model.layers == 3:\n    wrong.append(1)\nif wrong:\n    raise KeyError",
    "a list filled elsewhere": 'wrong = []\ncheck(wrong)\nif wrong:\n    raise ValueError("wrong")',
    "a variable of the shell": 'if os.environ.get("NOTHING") is None:\n    raise ValueError("NOTHING")',
    "a file": 'if not os.path.exists(args.loss):\n    raise ValueError("no file")',
    "a file that is opened": "open(args.loss)",
    "a package": "import nothing_of_this_name",
    "another error": 'try:\n    model.heads\nexcept AttributeError:\n    raise ValueError("heads")',
    "an attribute of the model": "print(model.heads)",
    "a row": 'rows = [json.loads("{}")]\nprint(rows[0]["text"])',
    "a match": 'match model.layers:\n    case 3:\n        raise ValueError("layers")',
    "a later round": (
        'last = 0\nfor part in (1, 2):\n    if last == 3:\n        raise ValueError("last")\n    last = model.layers'
    ),
}


def read(folder: Path, body: str) -> dict[str, Any]:
    """Return the note on a script that runs `train` and dies."""
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    check = "def check(wrong):\n    wrong.append(1)\n\n"
    main = 'if __name__ == "__main__":\n    args = OwnConfig()\n    model = load("m")\n    train(args, model)\n'
    script = folder / "train.py"
    script.write_text(f"{SETTINGS}{check}def train(args, model):\n{indented}\n{main}")
    start = (
        f"import sys, runpy; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        f"from attncheck.rehearsal.watcher import last_error; last_error.install({str(folder)!r})\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", start], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Error" in done.stderr, done.stderr
    [note] = folder.glob("last-error-*")
    record: dict[str, Any] = json.loads(note.read_text())
    return record


def is_own(record: dict[str, Any]) -> bool:
    return not record["unknown"] and all(origin for _, _, origin in record["reads"])


@pytest.mark.parametrize("name", OWN)
def test_settings_that_decide_an_error_are_found(tmp_path: Path, name: str) -> None:
    body, settings = OWN[name]
    record = read(tmp_path, body)
    assert is_own(record), record
    assert {read[0] for read in record["reads"]} == settings and record["place"].startswith("train.py:")


@pytest.mark.parametrize("name", UNKNOWN)
def test_anything_else_is_unknown(tmp_path: Path, name: str) -> None:
    record = read(tmp_path, UNKNOWN[name])
    assert not is_own(record), record
