"""Runs the command lines of OpenRLHF's own trainers, out of released wheels, on a machine that has none of its imports.

As a script (a child process): reads {"directory": …, "commands": [[trainer, [argument, …]], …]} on standard input and
writes the outcome of each. The whole `if __name__ == "__main__"` block is run, its checks included; only
`train` is replaced, and every import that is neither the standard library's nor `openrlhf.utils.config` is a stand-in.
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

REAL_MODULE = "openrlhf.utils.config"


class Anything(type):
    """A name of a stand-in: a class to inherit from, to call, to decorate with."""

    def __getattr__(cls, name: str) -> Any:
        return Anything(name, (), {})

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and not keywords and callable(arguments[0]) else cls


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
        if name == REAL_MODULE and self.find_source(name).exists():
            return importlib.util.spec_from_file_location(name, self.find_source(name))
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def find_source(self, name: str) -> Path:
        return self.directory / (name.replace(".", "/") + ".py")

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def run_command_line(directory: Path, trainer: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run one command line; return the error that refused it ("" if none did), its final settings and its output."""
    path = directory / "openrlhf" / "cli" / f"train_{trainer}.py"
    code = path.read_text().replace("    train(args)", "    RESULT.append(args)")
    namespaces: list[Any] = []
    output = io.StringIO()
    sys.argv = [str(path), *arguments]
    refused = ""
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            exec(compile(code, str(path), "exec"), {"__name__": "__main__", "RESULT": namespaces})
        except SystemExit:
            refused = "argparse: " + output.getvalue().strip().splitlines()[-1]
        except Exception as error:
            refused = f"{type(error).__name__}: {error}"
    return {
        "refused": refused,
        "settings": _flatten_namespace(namespaces[0]) if namespaces else {},
        "said": output.getvalue(),
    }


def _flatten_namespace(namespace: Any, prefix: str = "") -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in vars(namespace).items():
        if hasattr(value, "__dict__"):
            settings |= _flatten_namespace(value, f"{prefix}{name}.")
        else:
            settings[f"{prefix}{name}"] = value
    return settings


def main() -> None:
    request = json.load(sys.stdin)
    directory = Path(request["directory"])
    sys.meta_path.insert(0, Finder(directory))
    answers = [run_command_line(directory, trainer, arguments) for trainer, arguments in request["commands"]]
    json.dump(answers, sys.stdout, default=str)


if __name__ == "__main__":
    main()
