"""Applies liger-kernel's patches temporarily, lists what they replace, and counts the replaced calls of a model.

A patch is an assignment: of functions and classes to names in transformers' modelling files, and of `forward` to
existing modules. Each one is applied alone. Calls of the replaced functions are then counted in a run of the unpatched
model, which needs no GPU. A patch has no effect if its replaced functions and modules are never called.
Source: liger_kernel 0.8.5, `transformers/monkey_patch.py`.
"""

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
BuildModel = Callable[[], nn.Module]


@dataclass(frozen=True)
class Assignment:
    """A name in a module or a class that a patch assigned to, with its values before and after."""

    owner: Any
    name: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return self.name if isinstance(self.owner, ModuleType) else f"{self.owner.__name__}.{self.name}"

    def assign(self, value: Any) -> None:
        """Assign a value to the name; `_ABSENT` deletes it."""
        if value is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


def default_patches(model: nn.Module) -> tuple[str, ...] | None:
    """Return the patches that liger applies to this model by default; None if it does not support the model's type.

    `layer_norm` belongs to the vision tower of a multimodal model; smoke's text model does not have it.
    """
    patch_function = _find_patch_function(model)
    if patch_function is None:
        return None
    names = [name for name, default in _patch_switches(patch_function).items() if default]
    has_layer_norm = any(isinstance(module, nn.LayerNorm) for module in model.modules())
    return tuple(name for name in names if name != "layer_norm" or has_layer_norm)


def _find_patch_function(model: Any) -> Any:
    by_model_type = importlib.import_module("liger_kernel.transformers.monkey_patch").MODEL_TYPE_TO_APPLY_LIGER_FN
    return by_model_type.get(model.config.model_type)


def _patch_switches(function: Any) -> dict[str, bool]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if isinstance(p.default, bool)}


def build_patched(mode: str, build_model: BuildModel, only: str = "") -> nn.Module:
    """Return a model patched by liger after it is built (mode "model") or before ("classes"); `only`: one patch."""
    model = build_model()
    patch_function = _find_patch_function(model)
    switches = {name: name == only for name in _patch_switches(patch_function)} if only else {}
    if mode == "classes":
        patch_function(**switches)
        return build_model()
    patch_function(model=model, **switches)
    return model


@contextmanager
def undo_on_exit() -> Iterator[Callable[[], list[Assignment]]]:
    """Undo assignments to transformers' modelling files when the context ends; yield a function that lists them."""
    snapshot = {owner: dict(vars(owner)) for owner in _patchable_owners()}
    try:
        yield lambda: list(_find_assignments(snapshot))
    finally:
        for assignment in _find_assignments(snapshot):
            assignment.assign(assignment.before)
        for module in [
            owner for owner in _patchable_owners() if isinstance(owner, ModuleType) and owner not in snapshot
        ]:
            _unload_module(module)


def _patchable_owners() -> list[Any]:
    """Return the loaded modelling modules, their classes, and the module in which loss functions are looked up."""
    modules = [module for name, module in list(sys.modules.items()) if MODELLING.match(name)]
    classes = [c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__]
    return list(dict.fromkeys([*modules, *classes, torch.nn.functional]))


def _find_assignments(snapshot: Mapping[Any, Mapping[str, Any]]) -> Iterator[Assignment]:
    for owner, names in snapshot.items():
        current = dict(vars(owner))
        for name in names.keys() | current.keys():
            old, new = names.get(name, _ABSENT), current.get(name, _ABSENT)
            if old is not new and not name.startswith("__"):
                yield Assignment(owner, name, old, new)


def _unload_module(module: ModuleType) -> None:
    """Unload a module that a patch imported first and changed: there is no copy of its unpatched state."""
    parent, _, name = module.__name__.rpartition(".")
    sys.modules.pop(module.__name__, None)
    vars(sys.modules[parent]).pop(name, None)


def count_patched_calls(
    mode: str, build_model: BuildModel, run_model: Callable[[nn.Module], Any], only: str
) -> Counter[str]:
    """Count a model's calls of what the patch `only` replaces: functions by name, modules by class."""
    unpatched = _forward_functions(build_model())
    with undo_on_exit() as list_assignments:
        model = build_patched(mode, build_model, only)
        assignments = [assignment for assignment in list_assignments() if inspect.isfunction(assignment.before)]
        patched_paths = [
            path for path, forward in _forward_functions(model).items() if unpatched.get(path) is not forward
        ]
    calls: Counter[str] = Counter()
    with undo_on_exit():
        built_before = build_model() if mode == "model" else None
        for assignment in assignments:
            assignment.assign(
                _wrap_with_callback(assignment.before, functools.partial(calls.update, {str(assignment): 1}))
            )
        model = built_before or build_model()
        for path in patched_paths:
            _count_module_calls(model, path, calls)
        run_model(model)
    return calls


def _forward_functions(model: nn.Module) -> dict[str, Any]:
    """Return the forward function of each module, by the module's path."""
    return {path: getattr(module.forward, "__func__", module.forward) for path, module in model.named_modules()}


def _wrap_with_callback(function: Any, callback: Callable[[], Any]) -> Any:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **kwargs: Any) -> Any:
        callback()
        return function(*arguments, **kwargs)

    return wrapper


def _count_module_calls(model: nn.Module, path: str, calls: Counter[str]) -> None:
    module = dict(model.named_modules()).get(path)
    if module is not None:
        module.register_forward_pre_hook(lambda module, arguments: calls.update({type(module).__name__: 1}))
