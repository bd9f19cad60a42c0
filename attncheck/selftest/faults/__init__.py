"""The room of planted faults: what `attncheck selftest` plants, so that the checks are seen to fail.

One file a family or a kind of fault, each holding `FAULTS`. A fault belongs to a family: the ordinary state of things
in a throwaway folder, and the real check that a user would run there. Planting changes that folder, the variables or
the words of the command, never the environment that is examined. The family without any fault is its control.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from attncheck.core import registry


@dataclass
class Ground:
    """The throwaway place of one check: its folder, and the command that will run there.

    `python` is the interpreter that the check examines: the user's own, or a throwaway environment's. `environ` is
    laid over the variables of the check; None takes a variable away.
    """

    folder: Path
    python: str
    device: str = "auto"
    gpus: int = 0
    words: list[str] = field(default_factory=list)
    environ: dict[str, str | None] = field(default_factory=dict)
    hermetic: bool = False  # the check sees no variable of the user's but those of `environ`

    @property
    def site(self) -> Path:
        """The site-packages of the throwaway environment that `environment.lay` has laid."""
        return next((self.folder / "env" / "lib").iterdir()) / "site-packages"

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a file below the folder and return its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def before_all(self, folder: Path) -> None:
        """Let every interpreter of the check find `folder` before its environment."""
        rest = self.environ.get("PYTHONPATH")
        self.environ["PYTHONPATH"] = f"{folder}:{rest}" if rest else str(folder)


Plant = Callable[[Ground], object]


def nothing(ground: Ground) -> None:
    """Plant nothing."""


@dataclass(frozen=True)
class Family:
    """Faults that share a check and a control: `lay` makes the ordinary state and gives the command its words.

    `needs` are distributions of the examined environment ("torch"), or "gpu", "two gpus", "cpu" or "linux".
    Faults of a family that is `together` are planted into one run of the check, where each has its own subject.
    """

    name: str
    title: str
    lay: Plant
    needs: tuple[str, ...] = ()
    together: bool = False
    heavy: bool = False  # a run of it can fill the machine: two at once at most
    measures: bool = False  # its control must have measured something, and found it right


@dataclass(frozen=True)
class Fault:
    """One planted fault: every code of `codes` must be found, in a finding that holds all words of `says`.

    `title` says what is planted, `imitates` the failure of the real world that it stands for, with its source.
    """

    name: str
    family: Family
    codes: tuple[str, ...]
    title: str
    imitates: str
    plant: Plant
    says: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def load() -> tuple[tuple[Fault, ...], tuple[registry.Broken, ...]]:
    """Return every fault, and the files that could not be loaded; a file without `FAULTS` helps the others."""
    import attncheck.selftest.faults as room

    extensions, broken = registry.load(room, "attncheck.faults")
    found: dict[str, Fault] = {}
    for extension in extensions:
        for fault in _faults(extension.module):
            if fault.name in found:
                broken.append(registry.Broken(extension.name, f"two faults are called {fault.name}"))
            found.setdefault(fault.name, fault)
    return tuple(found.values()), tuple(broken)


def _faults(module: ModuleType) -> tuple[Fault, ...]:
    return tuple(fault for fault in getattr(module, "FAULTS", ()) if isinstance(fault, Fault))
