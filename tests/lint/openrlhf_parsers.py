"""Runs the command lines of OpenRLHF's own trainers, out of released wheels, on a machine that has none of its imports.

As a script (a child process): reads {"directory": …, "commands": [[trainer, [argument, …]], …]} on standard input and
writes for each what became of it. The whole `if __name__ == "__main__"` block is run, its checks included; only
`train` is put aside, and every import that is neither the standard library's nor `openrlhf.utils.config` is a stand-in.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

REAL = "openrlhf.utils.config"


class Anything(type):
    """A name of a stand-in: a class to inherit from, to call, to decorate with."""

    def __getattr__(cls, name: str) -> Any:
        return Anything(name, (), {})

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and not named and callable(arguments[0]) else cls


class StandIn(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for every module but the real one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] in sys.stdlib_module_names:
            return None
        if name == REAL and self.file(name).exists():
            return importlib.util.spec_from_file_location(name, self.file(name))
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def file(self, name: str) -> Path:
        return self.directory / (name.replace(".", "/") + ".py")

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def outcome(directory: Path, trainer: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run one command line; return what it was refused with ("" where it was not), and its settings in the end."""
    path = directory / "openrlhf" / "cli" / f"train_{trainer}.py"
    code = path.read_text().replace("    train(args)", "    RESULT.append(args)")
    result: list[Any] = []
    said = io.StringIO()
    sys.argv = [str(path), *arguments]
    refused = ""
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            exec(compile(code, str(path), "exec"), {"__name__": "__main__", "RESULT": result})
        except SystemExit:
            refused = "argparse: " + said.getvalue().strip().splitlines()[-1]
        except Exception as error:
            refused = f"{type(error).__name__}: {error}"
    return {"refused": refused, "settings": _flat(result[0]) if result else {}, "said": said.getvalue()}


def _flat(space: Any, before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in vars(space).items():
        if hasattr(value, "__dict__"):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def main() -> None:
    asked = json.load(sys.stdin)
    directory = Path(asked["directory"])
    sys.meta_path.insert(0, Finder(directory))
    answers = [outcome(directory, trainer, arguments) for trainer, arguments in asked["commands"]]
    json.dump(answers, sys.stdout, default=str)


if __name__ == "__main__":
    main()
