"""Calls backends as a training step does: work that only parity needs is skipped while they are timed.

A training step creates masks and cu_seqlens once for all of its layers, and does not need LSE. Backends here create
them in every call, torch's ring asks where its tokens are, and SDPA's and xformers' run a second forward for the LSE.
Within `training_step_calls` that is done once, and LSE is not computed.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backends import flex_attention
from attncheck.attention.calls import flash_attn, sdpa, torch_context_parallel, xformers
from attncheck.attention.inputs import Inputs

CACHED_BUILDERS: tuple[tuple[ModuleType, str], ...] = (
    (masks, "build_mask"),
    (masks, "build_alibi_bias"),
    (sdpa, "build_attn_mask"),
    (xformers, "build_attn_bias"),
    (flash_attn, "build_cu_seqlens"),
    (flex_attention, "_build_block_mask"),
    (torch_context_parallel, "check_sharding"),
)
LSE_FUNCTIONS = ((sdpa, "_recompute_lse"), (xformers, "_recompute_lse"))


@contextlib.contextmanager
def training_step_calls() -> Iterator[None]:
    """Make backends do in each call only the work of one layer in a training step, for one case's inputs."""
    with contextlib.ExitStack() as stack:
        for module, name in CACHED_BUILDERS:
            stack.enter_context(_patch_attribute(module, name, _memoize(getattr(module, name))))
        for module, name in LSE_FUNCTIONS:
            stack.enter_context(_patch_attribute(module, name, lambda *args: None))
        yield


def _memoize(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with its results cached by its arguments, for tensors of the current case."""
    results: dict[tuple[object, ...], Any] = {}

    def lookup(*args: Any) -> Any:
        key = tuple(x.case if isinstance(x, Inputs) else x for x in args if not isinstance(x, Tensor))
        if key not in results:
            results[key] = function(*args)
        return results[key]

    return lookup


@contextlib.contextmanager
def _patch_attribute(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of a module for a block."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
