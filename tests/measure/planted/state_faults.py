"""Planted faults in where tensors lie, in what a backend remembers, in chance, and far from the origin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case
from tests.measure.planted.emulated import Kernel, Work, run_blocks_of_64
from tests.measure.planted.fault import Fault, backward, changed, everywhere, planted, seeing

# Strides.


def _as_if_contiguous(x: Tensor) -> Tensor:
    """Return what a kernel reads that takes x for contiguous; past the end of memory it begins again."""
    memory = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    positions = (torch.arange(x.numel(), device=x.device) + x.storage_offset()) % len(memory)
    return memory[positions].view(x.shape)


def _misread(*which: int) -> Any:
    def read(self: Kernel) -> tuple[Tensor, ...]:
        return tuple(_as_if_contiguous(x) if index in which else x for index, x in enumerate(Kernel.read(self)))

    return read


def _several(case: Case) -> bool:
    return everywhere(case) and case.num_heads > 1 and case.num_kv_heads > 1


STRIDES = (
    planted("q_strides_ignored", "strides", "q read as if contiguous",
            lambda c: _several(c) and c.strides in ("transposed", "sliced"), read=_misread(0)),
    planted("kv_strides_ignored", "strides", "k and v read as if contiguous",
            lambda c: _several(c) and c.strides != "contiguous", read=_misread(1, 2)),
    planted("dout_strides_ignored", "strides", "dout read as if contiguous",
            lambda c: _several(c) and c.backward and c.strides in ("transposed", "expanded"), read=_misread(3)),
)  # fmt: skip

# Chance and memory.


class _EveryTwentieth:
    """A backend whose answer is another one in one call of twenty, never the first."""

    def __init__(self, change: Callable[[Outputs], Outputs]) -> None:
        self.calls = 0
        self.change = change

    def __call__(self, inputs: Inputs, deterministic: bool) -> Outputs:
        self.calls += 1
        answer = run_blocks_of_64(inputs, deterministic)
        return self.change(answer) if self.calls % 20 == 0 else answer


def _nudged(x: Tensor) -> Tensor:
    """Return x with its largest value one unit in the last place higher."""
    x = x.clone(memory_format=torch.contiguous_format)
    flat = x.view(-1)
    largest = flat.abs().argmax()
    flat[largest] = torch.nextafter(flat[largest], torch.full_like(flat[largest], torch.inf))
    return x


def _nudged_dq(answer: Outputs) -> Outputs:
    return answer if answer.dq is None else replace(answer, dq=_nudged(answer.dq))


def _nudged_out(answer: Outputs) -> Outputs:
    return replace(answer, out=_nudged(answer.out))


class _Remembering:
    """A backend that hands out what it computed for the previous inputs of the same shape."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.kept: dict[object, Outputs] = {}

    def __call__(self, inputs: Inputs, deterministic: bool) -> Outputs:
        answer = run_blocks_of_64(inputs, deterministic)
        key = (inputs.device, tuple(inputs.q.shape), tuple(inputs.k.shape), inputs.q.dtype, inputs.case.backward)
        before, self.kept[key] = self.kept.get(key, answer), answer
        return replace(answer, **{name: getattr(before, name) for name in self.names})


def _answers(case: Case) -> bool:
    return bool(seeing(case))


def _gradients(case: Case) -> bool:
    return _answers(case) and case.backward


CHANCE = (
    Fault("dq_differs_once_in_20_calls", "determinism", "dq one unit in the last place off in 1 of 20 calls",
          _EveryTwentieth(_nudged_dq), backward, logic=False),
    Fault("out_differs_once_in_20_calls", "determinism", "out one unit in the last place off in 1 of 20 calls",
          _EveryTwentieth(_nudged_out), everywhere, logic=False),
)  # fmt: skip
MEMORY = (
    Fault("result_cached", "cache", "returns the result of the previous call of the same shape",
          _Remembering(("out", "lse", "dq", "dk", "dv", "dsinks")), _answers),
    Fault("gradients_cached", "cache", "gradients of the previous call of the same shape",
          _Remembering(("dq", "dk", "dv", "dsinks")), _gradients),
)  # fmt: skip

# Far from the origin.

NEAR, FAR_AWAY = 4096, 32768


def _longer(than: int) -> Callable[[Case], bool]:
    return lambda case: case.layout == "dense" and min(case.seqlen_q, case.seqlen_k) > than + 1


def _keys_dropped(self: Kernel, work: Work) -> list[slice]:
    return [slice(block.start, min(block.stop, NEAR)) for block in Kernel.blocks(self, work) if block.start < NEAR]


def _causal_slips(self: Kernel) -> Tensor:
    mask = Kernel.mask(self)
    far = mask[..., NEAR:, :]
    far |= far.roll(1, -1)
    return mask


def _wrapped(self: Kernel) -> tuple[Tensor, ...]:
    """Return inputs whose keys past 32768 are those of a 16-bit index that wrapped."""
    q, k, v, dout = Kernel.read(self)
    positions = torch.arange(k.shape[1], device=k.device) % FAR_AWAY
    return q, k[:, positions], v[:, positions], dout


def _lost(than: int, name: str) -> Any:
    def cut(x: Tensor) -> Tensor:
        x[:, than:] = 0.0
        return x

    return changed(name, cut)


def _far_gradient(case: Case) -> bool:
    return _longer(FAR_AWAY)(case) and case.backward


LONG = (
    planted("keys_past_4096_dropped", "long", "keys past 4096 not visited in the forward",
            lambda c: _longer(NEAR)(c) and not (c.windowed and c.window_size[1] != -1 and not c.causal), long=True,
            blocks=_keys_dropped),
    planted("causal_slips_past_4096", "long", "queries past 4096 see the next key",
            lambda c: _longer(NEAR)(c) and c.causal,
            long=True, mask=_causal_slips),
    planted("keys_past_32768_wrapped", "long", "keys past 32768 read at an index of 16 bits",
            _longer(FAR_AWAY), long=True,
            read=_wrapped),
    planted("dq_past_32768_lost", "long", "dq past 32768 is zero",
            _far_gradient, long=True, returned=_lost(FAR_AWAY, "dq")),
    planted("dk_past_4096_lost", "long", "dk past 4096 is zero", lambda c: _longer(NEAR)(c) and c.backward, long=True,
            returned=_lost(NEAR, "dk")),
)  # fmt: skip

STATE_FAULTS = (*STRIDES, *CHANCE, *MEMORY, *LONG)
