"""The cases: one class each, whose docstring cites where the fault was met."""

# mypy: ignore-errors
from __future__ import annotations

from importlib import import_module

MODULES = ("training", "packing", "hybrid", "data_parallel", "context_parallel", "tensor_parallel", "experts")


def find_case(name: str) -> type:
    """Return the case of a name; raises `LookupError` if there is none."""
    for module in MODULES:
        case = getattr(import_module(f"tests.strangers.cases.{module}"), name, None)
        if case is not None:
            return case
    raise LookupError(name)
