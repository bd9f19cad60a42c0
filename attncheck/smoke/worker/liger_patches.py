"""What liger-kernel's patches replace, applied so that nothing of it stays, and which of it a model runs.

A patch is an assignment: of functions and classes to names in transformers' modelling files, and of `forward` to
modules that exist. Each one is applied alone; what it replaced is then watched in a run of the unpatched model, which
needs no GPU. What is assigned to and never entered does nothing.
Source: liger_kernel 0.8.5, `transformers/monkey_patch.py`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

MODELLING = re.compile(r"transformers\.models\.\w+\.modeling_\w+$")
_ABSENT = object()
Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Place:
    """A name in a module or a class that a patch assigned to, and what stood there before and after."""

    owner: Any
    name: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return self.name if isinstance(self.owner, ModuleType) else f"{self.owner.__name__}.{self.name}"

    def put(self, value: Any) -> None:
        """Assign to the place."""
        if value is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


def asked(model: nn.Module) -> tuple[str, ...] | None:
    """Return the patches that liger applies to this model by itself; None where it has none for the model's type.

    `layer_norm` belongs to the vision tower of a multimodal model, which the text model that smoke trains has not.
    """
    function = _function(model)
    if function is None:
        return None
    names = [name for name, default in _switches(function).items() if default]
    layer_norm = any(isinstance(module, nn.LayerNorm) for module in model.modules())
    return tuple(name for name in names if name != "layer_norm" or layer_norm)


def _function(model: Any) -> Any:
    known = importlib.import_module("liger_kernel.transformers.monkey_patch").MODEL_TYPE_TO_APPLY_LIGER_FN
    return known.get(model.config.model_type)


def _switches(function: Any) -> dict[str, bool]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if isinstance(p.default, bool)}


def apply(way: str, build: Build, only: str = "") -> nn.Module:
    """Return a model that liger patched: "model", once it is built, or "classes", before. `only` names one patch."""
    model = build()
    function = _function(model)
    chosen = {name: name == only for name in _switches(function)} if only else {}
    if way == "classes":
        function(**chosen)
        return build()
    function(model=model, **chosen)
    return model


@contextmanager
def undone() -> Iterator[Callable[[], list[Place]]]:
    """Take back, at the end, what is assigned to transformers' modelling files; give what has been so far."""
    before = {owner: dict(vars(owner)) for owner in _owners()}
    try:
        yield lambda: list(_changes(before))
    finally:
        for place in _changes(before):
            place.put(place.before)
        for module in [owner for owner in _owners() if isinstance(owner, ModuleType) and owner not in before]:
            _forget(module)


def _owners() -> list[Any]:
    """Return the modelling modules that are loaded, their classes, and the module that losses are looked up in."""
    modules = [module for name, module in list(sys.modules.items()) if MODELLING.match(name)]
    own = [c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__]
    return list(dict.fromkeys([*modules, *own, torch.nn.functional]))


def _changes(before: Mapping[Any, Mapping[str, Any]]) -> Iterator[Place]:
    for owner, names in before.items():
        now = dict(vars(owner))
        for name in names.keys() | now.keys():
            old, new = names.get(name, _ABSENT), now.get(name, _ABSENT)
            if old is not new and not name.startswith("__"):
                yield Place(owner, name, old, new)


def _forget(module: ModuleType) -> None:
    """Drop a module that a patch imported first and changed: there is no copy of what it was."""
    parent, _, name = module.__name__.rpartition(".")
    sys.modules.pop(module.__name__, None)
    vars(sys.modules[parent]).pop(name, None)


def reached(way: str, build: Build, run: Callable[[nn.Module], Any], only: str) -> Counter[str]:
    """Return what the patch `only` replaced and a run of the model enters, and how many modules that are."""
    plain = _forwards(build())
    with undone() as changes:
        model = apply(way, build, only)
        places = [place for place in changes() if inspect.isfunction(place.before)]
        paths = [path for path, forward in _forwards(model).items() if plain.get(path) is not forward]
    found: Counter[str] = Counter()
    with undone():
        early = build() if way == "model" else None
        for place in places:
            place.put(_wire(place.before, functools.partial(found.update, {str(place): 1})))
        model = early or build()
        for path in paths:
            _listen(model, path, found)
        run(model)
    return found


def _forwards(model: nn.Module) -> dict[str, Any]:
    """Return the function that each module runs, by the module's path."""
    return {path: getattr(module.forward, "__func__", module.forward) for path, module in model.named_modules()}


def _wire(inner: Any, tell: Callable[[], Any]) -> Any:
    @functools.wraps(inner)
    def entered(*arguments: Any, **words: Any) -> Any:
        tell()
        return inner(*arguments, **words)

    return entered


def _listen(model: nn.Module, path: str, found: Counter[str]) -> None:
    module = dict(model.named_modules()).get(path)
    if module is not None:
        module.register_forward_pre_hook(lambda module, arguments: found.update({type(module).__name__: 1}))
