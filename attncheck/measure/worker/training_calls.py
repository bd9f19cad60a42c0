"""Backends as a training step calls them: what parity has them do besides is left out while they are timed.

A training step makes masks and cu_seqlens once for all of its layers, and asks for no LSE; backends here make them in
every call, and SDPA's and xformers' run a second forward for the LSE. Within `steady` they are made once, and the LSE
is not asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backends import flex_attention
from attncheck.attention.calls import flash_attn, sdpa, xformers
from attncheck.attention.inputs import Inputs

MADE_ONCE: tuple[tuple[ModuleType, str], ...] = (
    (masks, "whole"),
    (masks, "whole_bias"),
    (sdpa, "attention_mask"),
    (xformers, "bias"),
    (flash_attn, "cu_seqlens"),
    (flex_attention, "_block_mask"),
)
LSE = ((sdpa, "_lse"), (xformers, "_lse"))


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """Let backends do in each call what each layer of a training step does; to be used on one case's inputs."""
    with contextlib.ExitStack() as stack:
        for module, name in MADE_ONCE:
            stack.enter_context(_replaced(module, name, _once(getattr(module, name))))
        for module, name in LSE:
            stack.enter_context(_replaced(module, name, lambda *given: None))
        yield


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with its answers kept, by its arguments; tensors among them belong to the case beside them."""
    kept: dict[tuple[object, ...], Any] = {}

    def again(*given: Any) -> Any:
        key = tuple(x.case if isinstance(x, Inputs) else x for x in given if not isinstance(x, Tensor))
        if key not in kept:
            kept[key] = function(*given)
        return kept[key]

    return again


@contextlib.contextmanager
def _replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
