"""Calls a backend that must not write to foreign tensors, in memory that is never zero by chance.

A kernel that reads uninitialised memory is right by luck on new pages. Blocks as large as its outputs and workspaces
are therefore filled and freed before each call, alternately with NaN and with large numbers.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TypeVar

import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs

T = TypeVar("T")
GUARD_SEED = 0x5EED_0F_A_CA11  # of a call without dropout, which has no use for it
MAX_COPIED_BYTES = 1 << 30  # of one input; for a larger one a digest is compared
GOLDEN_RATIO = 0x9E3779B97F4A7C15 - (1 << 64)
PATTERN_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DIRT = (0x7FC0, 0x7700)  # 16-bit patterns that are NaN, or above 2e4, in bfloat16, float16 and float32


class BrokenCall(Exception):
    """A call changed an input, an earlier result or torch's seed, or returned unusable results."""


def call_unchanged(call: Callable[[Inputs], T], inputs: Inputs, earlier: Outputs | None = None) -> T:
    """Return `call(inputs)`. Raises `BrokenCall` if an input has other bits afterwards.

    The same holds for every argument built from them (masks, cu_seqlens, biases, positions, unpadded tokens), for the
    results of an `earlier` call, and for the seed of torch's random generator if the case has no dropout.
    """
    guarded: list[tuple[str, Tensor, Tensor | int]] = []

    def guard(name: str, x: Tensor) -> None:
        guarded.append((f"its input {name}", x.detach(), _remember(x.detach())))

    for field in fields(inputs):
        if isinstance(x := getattr(inputs, field.name), Tensor):
            guard(field.name, x)
    if earlier is not None:
        names = ("out", "lse", "dq", "dk", "dv", "dsinks")
        results = ((f"the {name} of an earlier call", getattr(earlier, name)) for name in names)
        guarded += ((name, x, _remember(x)) for name, x in results if x is not None)
    if not inputs.case.dropout:
        torch.default_generator.manual_seed(GUARD_SEED)  # torch.manual_seed formats the stack for each other device
        if inputs.device == "cuda":
            torch.cuda.manual_seed(GUARD_SEED)
    masks.watchers.append(guard)
    try:
        result = call(inputs)
    finally:
        masks.watchers.remove(guard)
    changed = dict.fromkeys(
        name
        for name, x, before in guarded
        if not (has_same_bits(x, before) if isinstance(before, Tensor) else digest_bits(x) == before)
    )
    seeds = {torch.initial_seed(), *([torch.cuda.initial_seed()] if inputs.device == "cuda" else [])}
    if not inputs.case.dropout and seeds != {GUARD_SEED}:
        changed["the seed of torch's random generator"] = None
    if changed:
        raise BrokenCall(f"it overwrites {', '.join(changed)}")
    return result


@contextlib.contextmanager
def hold_other_values(inputs: Inputs, others: Inputs) -> Iterator[None]:
    """Let the tensors of `inputs` hold the values of `others` for a block, except for broadcast ones."""
    pairs = [(getattr(inputs, field.name), getattr(others, field.name)) for field in fields(inputs)]
    tensors = [(x, x.clone(), y) for x, y in pairs if isinstance(x, Tensor) and 0 not in x.stride()]
    try:
        for x, _, y in tensors:
            x.copy_(y)
        yield
    finally:
        for x, own, _ in tensors:
            x.copy_(own)


def _remember(x: Tensor) -> Tensor | int:
    return x.clone() if x.numel() * x.element_size() < MAX_COPIED_BYTES else digest_bits(x)


def fill_free_memory(inputs: Inputs, pattern: int) -> Tensor:
    """Fill and free blocks of the sizes that a call will allocate.

    Return the object that keeps them allocated until the call.
    """
    numbers = [x.numel() for x in (inputs.q, inputs.k, inputs.v, inputs.dout)] + [inputs.q[..., 0].numel()]
    sizes = [width * number for number in numbers for width in (1, 2)]  # 16-bit outputs, float32 workspaces
    blocks = []
    if 2 * sum(sizes) < MAX_COPIED_BYTES:
        blocks = [torch.full((size,), pattern, dtype=torch.int16, device=inputs.device) for size in sizes]
    last = torch.zeros(1, device=inputs.device)
    del blocks
    return last


def bit_patterns(x: Tensor) -> Tensor:
    """Return the bit patterns of a tensor as integers of its width, contiguous."""
    return x.contiguous().view(PATTERN_DTYPES[x.element_size()])


def has_same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same bits, NaN included."""
    return bool(torch.equal(bit_patterns(a), bit_patterns(b)))


def digest_bits(x: Tensor) -> int:
    """Return a 64-bit digest of a tensor: a sum, modulo 2^64, of bit patterns times odd numbers by position.

    Integer sums do not depend on their order, so the digest is the same on every run.
    """
    flat = bit_patterns(x).reshape(-1)
    total = 0
    for start in range(0, flat.numel(), 1 << 24):
        chunk = flat[start : start + (1 << 24)].to(torch.int64)
        positions = torch.arange(start, start + chunk.numel(), device=x.device)
        mixed = (positions * GOLDEN_RATIO) ^ ((positions * GOLDEN_RATIO) >> 29)
        total += int((chunk * (mixed | 1)).sum())
    return total & ((1 << 64) - 1)
