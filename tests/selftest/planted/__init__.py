"""Faults of an environment, a model or a launch, in a healthy environment of stubs: what rules find in facts.

Their outcome cannot differ between machines, so that they are tests and no part of `attncheck selftest`, whose
machinery runs them. One file a kind of fault, each with a tuple `FAULTS`.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

from attncheck.selftest.faults import Family, Fault


@dataclass(frozen=True)
class PairedFamily(Family):
    """A family whose faults are injected two at a time too.

    `extends` is a family whose faults its setup takes, `adds` what its setup has beyond that family's, as far as
    faults rely on its absence.
    """

    extends: Family | None = None
    adds: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairedFault(Fault):
    """A fault of a paired family.

    `relies_on` must stay as it is for the fault to be one: distributions, variables ("$NAME"), files of the sandbox.
    """

    family: PairedFamily
    relies_on: tuple[str, ...] = ()


def load_faults() -> tuple[Fault, ...]:
    """Return every fault of this folder."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(fault for module in modules for fault in getattr(module, "FAULTS", ()))


def get_fault(name: str) -> PairedFault:
    """Return the paired fault of this name."""
    return next(fault for fault in load_faults() if fault.name == name and isinstance(fault, PairedFault))
