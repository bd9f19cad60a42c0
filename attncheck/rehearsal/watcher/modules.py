"""Records the inputs and outputs of each module of a model in one call, and the code that computes it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

MAX_BYTES = 64 << 20  # for all modules in one call
OURS = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # also of the emulated packages
# torch 2.13 _tensor.py (`register_hook`, `register_post_accumulate_grad_hook`), nn/modules/module.py.
GRADIENT_HOOKS = ("_backward_pre_hooks", "_backward_hooks", "_post_accumulate_grad_hooks")
GENERATORS = {"rand", "randn", "rand_like", "randn_like", "uniform_", "normal", "normal_", "bernoulli", "bernoulli_"}
MAX_WRAPPERS = 20  # around a function; objects that have every attribute have no end of them
resolve = functools.cache(os.path.realpath)  # of some thousand functions at each recorded step
INSTALLED = ("site-packages", "dist-packages")


class ModuleWatch:
    """Records the modules of a model through one call, in the order in which they end."""

    def __init__(self, model: Any) -> None:
        self.modules: list[dict[str, Any]] = []
        self._handles: list[Any] = []
        self._size = 0
        for name, module in model.named_modules():
            if name:
                self._handles.append(module.register_forward_hook(self._make_hook(name), with_kwargs=True))

    def stop(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _make_hook(self, name: str) -> Any:
        def leave(module: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
            given = next(_iter_tensors((*arguments, *options.values())), None)
            returned = list(_iter_tensors(output if isinstance(output, (tuple, list)) else (output,)))[:2]
            self._size += sum(value.numel() * 4 for value in returned) + (0 if given is None else given.numel() * 4)
            if self._size <= MAX_BYTES:
                place = describe_code(module.forward)
                record: dict[str, Any] = {"name": name, "class": type(module).__qualname__, "place": place}
                record |= {"input": _copy(given), "outputs": [_copy(value) for value in returned]}
                hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
                own = [hook for hook in hooks if is_foreign(hook)]
                record["hooks"] = [describe_code(hook) for hook in own]
                record["noise"] = [describe_code(hook) for hook in own if _draws(hook)]
                self.modules.append(record)

        return leave


def list_patches(model: Any) -> list[str]:
    """Return the model's code, and functions that it calls, that belong to no installed package."""
    import torch

    kinds = {type(module) for module in model.modules()}
    own = {kind for kind in kinds if is_foreign(kind.forward, kind.__module__)}  # classes of the script
    modules = {kind.__module__ for kind in kinds - own}
    holders: dict[str, dict[str, Any]] = {
        f"{kind.__module__}.{kind.__qualname__}": {"forward": kind.forward} if kind in own else dict(vars(kind))
        for kind in kinds
    }
    holders |= {  # of objects, not of their class
        f"a {type(module).__qualname__}": {"forward": module.forward}
        for module in model.modules()
        if "forward" in vars(module)
    }
    shared = ("transformers.masking_utils", "transformers.modeling_utils", "transformers.loss.loss_utils")
    for name, module in list(sys.modules.items()):
        if name in (*modules, *shared) or name.startswith("transformers.integrations."):
            holders[name] = dict(vars(module))
    holders["torch.nn.functional"] = dict(vars(torch.nn.functional))
    implementation = str(getattr(model.config, "_attn_implementation", ""))
    for registry in ("ALL_ATTENTION_FUNCTIONS", "ALL_MASK_ATTENTION_FUNCTIONS"):
        for name in shared:
            functions = holders.get(name, {}).get(registry)
            if functions is not None and implementation in functions:
                holders[registry] = {implementation: functions[implementation]}
    return sorted(
        f"{holder}.{attribute} is {describe_code(value)}"
        for holder, attributes in holders.items()
        for attribute, value in attributes.items()
        if callable(value) and not isinstance(value, type) and is_foreign(value, holder)
    )


def list_gradient_hooks(model: Any) -> dict[str, list[str]]:
    """Return the hooks on gradients whose code belongs to no installed package, with their parameters and modules."""
    hooks: dict[str, list[str]] = {}
    for name, holder in (*model.named_parameters(), *model.named_modules()):
        for attribute in GRADIENT_HOOKS:
            for hook in (getattr(holder, attribute, None) or {}).values():
                if is_foreign(hook):
                    hooks.setdefault(describe_code(hook), []).append(name or "the model")
    return hooks


def is_foreign(function: Any, holder: str = "") -> bool:
    """Return whether a function's code belongs neither to an installed package nor to the package that holds it."""
    code = getattr(unwrap(function), "__code__", None)
    if code is None or code.co_filename.startswith("<"):
        return False
    package = getattr(sys.modules.get(holder.partition(".")[0]), "__file__", None)
    path = resolve(code.co_filename)
    homes = [OURS, os.path.dirname(resolve(os.__file__))]
    homes += [os.path.dirname(resolve(package))] if package and package.endswith("__init__.py") else []
    return not path.startswith(tuple(f"{home}{os.sep}" for home in homes)) and not is_installed(path)


@functools.cache
def is_installed(path: str) -> bool:
    """Return whether a file belongs to an installed package, also below the folder of `pip install --target`."""
    if any(f"{os.sep}{name}{os.sep}" in path for name in INSTALLED):  # also if uv links it into its store
        return True
    homes = {os.path.realpath(home) for home in sys.path[1:]} - {os.path.realpath(sys.path[0])}  # the script's own
    path = os.path.realpath(path)
    return any(path.startswith(f"{home}{os.sep}") and _has_distributions(home) for home in homes)


@functools.cache
def _has_distributions(folder: str) -> bool:
    return os.path.isdir(folder) and any(name.endswith(".dist-info") for name in os.listdir(folder))


def describe_code(function: Any) -> str:
    """Return a function's name, with file and line if its code belongs to no installed package."""
    function = unwrap(function)
    code = getattr(function, "__code__", None)
    name = str(getattr(function, "__qualname__", type(function).__qualname__))
    if code is None:
        return name
    path = code.co_filename.rpartition(f"site-packages{os.sep}")[2]
    return f"{name}, {path}:{code.co_firstlineno}"


def call_before(function: Callable[..., Any], callback: Callable[..., None], count: int = 0) -> Callable[..., Any]:
    """Return a function that first calls another one with the first `count` arguments."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        callback(*arguments[:count])
        return function(*arguments, **options)

    return call


def _draws(function: Any) -> bool:
    """Return whether a function's own code calls a generator of random numbers."""
    code = getattr(unwrap(function), "__code__", None)
    return code is not None and not GENERATORS.isdisjoint(code.co_names)


def unwrap(function: Any) -> Any:
    """Return the function behind a method, a functools.partial or torch's decorators, such as no_grad."""
    for _ in range(MAX_WRAPPERS):
        is_torchs = f"{os.sep}torch{os.sep}" in str(getattr(getattr(function, "__code__", None), "co_filename", ""))
        if (is_torchs and hasattr(function, "__wrapped__")) or getattr(function, "takes_known", None) is True:
            function = function.__wrapped__
        elif hasattr(function, "__code__") or not (hasattr(function, "__func__") or hasattr(function, "func")):
            break
        else:
            function = getattr(function, "__func__", None) or function.func
    return function


def _iter_tensors(values: Any) -> Iterator[Any]:
    import torch

    for value in values:
        if torch.is_tensor(value) and value.is_floating_point():
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _iter_tensors(value)


def _copy(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().float().to("cpu", copy=True)
