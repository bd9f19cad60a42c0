"""The faults that `attncheck selftest` injects to show that the checks fire.

Each file has one family or kind of fault, with a tuple `FAULTS`. A fault belongs to a family: a healthy state in a
throwaway folder, and the real check that a user would run there. Injecting a fault changes that folder, the variables
or the arguments of the command, never the examined environment. The family without any fault is its control. Faults of
a plugin (an entry point in the group "attncheck.faults" whose value is the module) need one import:

from attncheck.selftest.faults import Family, Fault, Sandbox
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from attncheck.core import registry


@dataclass
class Sandbox:
    """The throwaway folder of one check, and the command that will run there.

    `python` is the interpreter that the check examines. `environ` overrides the variables of the check; None removes a
    variable.
    """

    folder: Path
    python: str
    device: str = "auto"
    gpus: int = 0
    arguments: list[str] = field(default_factory=list)
    environ: dict[str, str | None] = field(default_factory=dict)
    hermetic: bool = False  # whether the check has only the variables in `environ`, and none of the user's

    def write_file(self, name: str, text: str | bytes) -> Path:
        """Write a file below the folder and return its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def prepend_pythonpath(self, folder: Path) -> None:
        """Make every interpreter of the check import from `folder` before its environment and the user's PYTHONPATH."""
        rest = self.environ.get("PYTHONPATH", None if self.hermetic else os.environ.get("PYTHONPATH"))
        self.environ["PYTHONPATH"] = f"{folder}:{rest}" if rest else str(folder)


__all__ = ["Family", "Fault", "Sandbox"]

SandboxAction = Callable[[Sandbox], object]


@dataclass(frozen=True)
class Family:
    """Faults that share a check and a control; `setup` makes the healthy state and the command's arguments.

    `needs` are distributions of the examined environment ("torch"), or "gpu", "two gpus", "cpu" or "linux". If
    `together`, all faults of the family are injected into one run of the check, where each has its own subject.
    """

    name: str
    title: str
    setup: SandboxAction
    needs: tuple[str, ...] = ()
    together: bool = False
    heavy: bool = False  # whether one run can use the whole machine, so that few run at once
    measures: bool = False  # whether its control must have measured something and found it right


@dataclass(frozen=True)
class Fault:
    """One fault to inject; every code in `codes` must be found, in a finding with all words of `mentions`.

    `title` describes the injected fault, `imitates` the real failure that it represents, with its source.
    """

    name: str
    family: Family
    codes: tuple[str, ...]
    title: str
    imitates: str
    inject: SandboxAction
    mentions: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def load() -> tuple[tuple[Fault, ...], tuple[registry.Broken, ...]]:
    """Return every fault, and the files that could not be loaded; a file without `FAULTS` holds helpers."""
    extensions, broken = registry.load(sys.modules[__name__], "attncheck.faults")
    faults: dict[str, Fault] = {}
    for fault in registry.list_records(extensions, "FAULT", Fault):
        if fault.name in faults:
            broken.append(registry.Broken(fault.name, f"two faults are called {fault.name}"))
        faults.setdefault(fault.name, fault)
    return tuple(faults.values()), tuple(broken)
