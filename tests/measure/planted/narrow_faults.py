"""Planted faults that few cases show: a small factor, one batch row, one form of mask, one mode, another scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case, iter_segments
from tests.measure.planted.emulated import Kernel, run_blocks_of_64
from tests.measure.planted.fault import Fault, backward, changed, everywhere, grouped, mask_fault, planted

# Small factors, far below the rounding noise of an element.


def _times(name: str, factor: float, head: int | None = None) -> Any:
    """Return what multiplies one output, or one head of it."""

    def multiply(x: Tensor) -> Tensor:
        wrong = x.float()
        wrong[:, :, head if head is not None else slice(None)] *= factor
        return wrong.to(x.dtype)

    return changed(name, multiply)


def _factor(name: str, what: str, tensor: str, factor: float, head: int | None = None) -> Fault:
    applies = everywhere if tensor == "out" else backward
    return planted(name, "factor", what, applies, returned=_times(tensor, factor, head))


FACTORS = (
    _factor("dk_half_a_per_cent", "dk 0.5 % too large", "dk", 1.005),
    _factor("dq_half_a_per_cent", "dq 0.5 % too small", "dq", 0.995),
    _factor("dv_half_a_per_cent", "dv 0.5 % too large", "dv", 1.005),
    _factor("out_half_a_per_cent", "out 0.5 % too small", "out", 0.995),
    _factor("dk_of_one_head_two_per_cent", "dk of kv head 1 2 % too large", "dk", 1.02, 1),
    _factor("dq_of_last_head_two_per_cent", "dq of the last head 2 % too large", "dq", 1.02, -1),
    _factor("out_of_head_0_one_per_cent", "out of head 0 1 % too large", "out", 1.01, 0),
)

# Batch rows, heads and documents that small cases do not have.


def _past(count: int) -> Callable[[Case], bool]:
    return lambda case: case.batch > count and everywhere(case)


def _rows_lost(name: str, first: int) -> Any:
    def cut(x: Tensor) -> Tensor:
        x[first:] = 0.0
        return x

    return changed(name, cut)


def _row_of_first(self: Kernel) -> tuple[Tensor, ...]:
    """Return inputs whose batch rows past the fourth have the keys of the first."""
    q, k, v, dout = Kernel.read(self)
    rows = torch.arange(k.shape[0], device=k.device)
    rows = torch.where(rows > 3, 0, rows)
    return q, k[rows], v[rows], dout


def _decodes(case: Case) -> bool:
    """Return whether several rows have one query each, as in decoding."""
    return case.batch > 1 and case.layout == "dense" and case.seqlen_q == 1 and case.seqlen_k > 1


def _keys_of_first(self: Kernel) -> tuple[Tensor, ...]:
    q, k, v, dout = Kernel.read(self)
    return q, k[:1].expand_as(k), v[:1].expand_as(v), dout


def _head_of_32(self: Kernel) -> Tensor:
    return Kernel.kv_heads(self) % max(1, 32 // self.group())


def _documents_merged(case: Case, mask: Tensor) -> Tensor:
    """Return the mask of a kernel that counts documents in seven bits: those past the 128th are one."""
    documents = [s for s in iter_segments(case) if s.index >= 128]
    if case.layout == "packed" and len(documents) > 1:
        start, stop = documents[0].q_start, documents[-1].q_stop
        block = torch.ones(stop - start, stop - start, dtype=torch.bool, device=mask.device)
        mask[0, 0, start:stop, start:stop] = block.tril() if case.causal else block
    return mask


NUMBERS = (
    planted("dq_past_fourth_batch_row_lost", "batch", "dq past the fourth batch row is zero",
            lambda c: _past(4)(c) and c.backward, returned=_rows_lost("dq", 4)),
    planted("out_past_sixth_batch_row_lost", "batch", "out past the sixth batch row is zero",
            _past(6), returned=_rows_lost("out", 6)),
    planted("keys_of_first_batch_row", "batch", "batch rows past the fourth read the keys of the first",
            _past(4), read=_row_of_first),
    planted("heads_past_32_wrap", "heads", "heads past the 32nd read the kv heads of the first",
            lambda c: everywhere(c) and c.num_heads > 32, kv_heads=_head_of_32),
    mask_fault("documents_past_128_merged", "layout", "documents past the 128th are one", _documents_merged),
)  # fmt: skip

# Masks given as tensors.


def _rowless(case: Case) -> Tensor:
    return ~masks.build_mask(case, "cpu").any(-1)[:, 0].expand(case.batch, -1)


def _given(case: Case) -> bool:
    return bool(case.mask) and everywhere(case)


def _nan_in_unseeing_rows(tensor: str) -> Any:
    """Return what leaves NaN in a gradient's rows that see no key, as cuDNN does for short bool masks."""

    def returned(self: Kernel, answer: Outputs) -> Outputs:
        right = getattr(answer, tensor)
        if right is None:
            return answer
        spoilt = right.clone()
        spoilt[_rowless(self.case)] = torch.nan
        return replace(answer, **{tensor: spoilt})

    return returned


def _blind_rows(case: Case) -> bool:
    return _given(case) and case.backward and bool(_rowless(case).any())


def _only(form: Callable[[Case], bool], altered: Callable[[Tensor], Tensor]) -> Callable[[Case, Tensor], Tensor]:
    return lambda case, mask: altered(mask) if form(case) else mask


def _first_row_for_all(mask: Tensor) -> Tensor:
    return mask[:1].expand_as(mask).clone()


def _last_column_lost(mask: Tensor) -> Tensor:
    mask[..., mask.shape[-1] // 8 * 8 :] = False
    return mask


def _one_row_on(mask: Tensor) -> Tensor:
    return torch.cat((mask[..., :1, :], mask[..., :-1, :]), -2)


def _lower_left(mask: Tensor) -> Tensor:
    return mask.transpose(-1, -2).contiguous() if mask.shape[-1] == mask.shape[-2] else mask


MASKS = (
    planted("nan_in_dq_of_short_bool_masks", "mask tensor", "dq of rows that see nothing is NaN, up to 64 tokens",
            lambda c: _blind_rows(c) and c.mask == "bool" and c.seqlen_k <= 64, returned=_nan_in_unseeing_rows("dq")),
    planted("nan_in_dq_of_additive_masks", "mask tensor", "dq of rows that see nothing is NaN for additive masks",
            lambda c: _blind_rows(c) and c.mask == "additive", returned=_nan_in_unseeing_rows("dq")),
    planted("nan_in_dq_of_crossed_masks", "mask tensor", "dq of rows that see nothing is NaN where lengths differ",
            lambda c: _blind_rows(c) and c.seqlens_q != c.seqlens_k, returned=_nan_in_unseeing_rows("dq")),
    mask_fault("mask_of_first_batch_row", "mask tensor", "every batch row has the mask of the first",
               _only(_given, _first_row_for_all)),
    mask_fault("mask_per_head_of_first_batch_row", "mask tensor", "the same, for masks given for each head",
               _only(lambda c: _given(c) and c.per_head, _first_row_for_all)),
    mask_fault("mask_tail_lost", "mask tensor", "keys past the last multiple of 8 are not seen under a bool mask",
               _only(lambda c: _given(c) and c.mask == "bool", _last_column_lost)),
    mask_fault("mask_one_row_late", "mask tensor", "each query has the mask of the one before",
               _only(lambda c: _given(c) and c.mask == "additive", _one_row_on)),
    mask_fault("mask_transposed", "mask tensor", "the mask is read by columns",
               _only(lambda c: _given(c) and c.per_head, _lower_left)),
    planted("mask_values_dropped", "mask tensor", "an additive mask only hides: its values are not added",
            lambda c: _given(c) and c.mask == "additive", bias=lambda self: None),
    planted("mask_values_of_first_head", "mask tensor", "every head adds the values of the first head's mask",
            lambda c: _given(c) and c.mask == "additive" and c.per_head,
            bias=lambda self: masks.build_mask_bias(replace(self.case, per_head=False), self.inputs.device)),
    mask_fault("mask_ignored_for_64", "mask tensor", "a mask of exactly 64 keys is not read",
               _only(lambda c: _given(c) and c.seqlen_k == 64, torch.ones_like)),
)  # fmt: skip

# Values and strides that training meets rarely.


def _maximum_from_zero(self: Kernel, top: Tensor) -> Tensor:
    return top.clamp_min(0.0)


def _low_logits(case: Case) -> bool:
    return everywhere(case) and case.values == "negative"


def _scalar_dout_once(self: Kernel) -> tuple[Tensor, ...]:
    """Return inputs whose dout, where every stride is 0, is taken for one number and zeros."""
    q, k, v, dout = Kernel.read(self)
    if not any(dout.stride()):
        wrong = torch.zeros_like(dout, memory_format=torch.contiguous_format)
        wrong.view(-1)[0] = dout.reshape(-1)[0]
        dout = wrong
    return q, k, v, dout


RARE = (
    planted("maximum_starts_at_zero", "values", "the running maximum starts at 0, so that low logits underflow",
            _low_logits, subtracted=_maximum_from_zero),
    planted("scalar_dout_read_once", "strides", "a dout of strides 0 read as one number and zeros",
            lambda c: backward(c) and c.strides == "scalar_dout", read=_scalar_dout_once),
    planted("decoding_rows_share_keys", "batch", "with one query each, batch rows read the keys of the first",
            _decodes, read=_keys_of_first),
)  # fmt: skip

# The softmax scale.


def _scaled(case: Case) -> bool:
    return everywhere(case) and case.scale > 0.0


def _default_scale(self: Kernel) -> float:
    return float(self.case.head_dim**-0.5)


SCALES = (
    planted("scale_argument_ignored", "scale", "1/sqrt(head_dim) whatever scale is given", _scaled,
            scale=_default_scale),
    planted("scale_argument_ignored_in_dq", "scale", "dq by 1/sqrt(head_dim) whatever scale is given",
            lambda c: _scaled(c) and c.backward, scaled_dq=lambda self, dq: dq * _default_scale(self)),
    planted("scale_argument_ignored_when_packed", "scale", "packed, 1/sqrt(head_dim) whatever scale is given",
            lambda c: _scaled(c) and c.layout == "packed", scale=_default_scale),
    planted("scale_argument_squared", "scale", "the scale is applied to q and again to the scores", _scaled,
            scale=lambda self: self.case.scale**2),
)  # fmt: skip

# Chunks.


def _rechunked(change: Callable[[Case], Case]) -> Callable[[Case, Tensor], Tensor]:
    """Return what rebuilds the mask of a chunked case as that of another case."""

    def altered(case: Case, mask: Tensor) -> Tensor:
        return masks.build_mask(change(case), mask.device.type) if case.attention_chunk else mask

    return altered


def _chunks_of_the_row(case: Case, mask: Tensor) -> Tensor:
    """Return the mask of a kernel that counts chunks from the first token of the row, padding or another document."""
    if not case.attention_chunk:
        return mask
    whole = masks.build_mask(replace(case, attention_chunk=0), mask.device.type)
    q, k = (torch.arange(size, device=mask.device) // case.attention_chunk for size in (case.seqlen_q, case.seqlen_k))
    return whole & (q[:, None] == k)


CHUNKS = (
    mask_fault("chunks_ignored", "chunk", "no chunks", _rechunked(lambda c: replace(c, attention_chunk=0))),
    mask_fault("chunks_one_larger", "chunk", "chunks one position too large",
               _rechunked(lambda c: replace(c, attention_chunk=c.attention_chunk + 1))),
    mask_fault("chunks_as_a_window", "chunk", "a window of the chunk's size in place of chunks",
               _rechunked(lambda c: replace(c, attention_chunk=0, window_size=(c.attention_chunk - 1, 0)))),
    mask_fault("chunks_of_the_row", "chunk", "chunks counted from the row's first token, not the sequence's",
               _chunks_of_the_row),
)  # fmt: skip

# Deterministic mode alone.


def _strict(name: str, what: str, change: Callable[[Outputs], Outputs], applies: Callable[[Case], bool]) -> Fault:
    """Return the fault of a kernel that is right until it is asked to be deterministic."""

    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        answer = run_blocks_of_64(inputs, deterministic)
        return change(answer) if deterministic and applies(inputs.case) else answer

    return Fault(name, "deterministic", what, run, applies)


def _halved(answer: Outputs) -> Outputs:
    return answer if answer.dq is None else replace(answer, dq=answer.dq * 0.5)


def _first_of_group(answer: Outputs) -> Outputs:
    """Return dk and dv of a kernel that adds up only half of the group."""
    if answer.dk is None or answer.dv is None:
        return answer
    return replace(answer, dk=answer.dk * 0.75, dv=answer.dv * 0.75)


def _last_block_of_dq_lost(answer: Outputs) -> Outputs:
    if answer.dq is None:
        return answer
    dq = answer.dq.clone()
    dq[:, (dq.shape[1] - 1) // 64 * 64 :] = 0.0
    return replace(answer, dq=dq)


STRICT = (
    _strict("deterministic_dq_halved", "in deterministic mode, half of dq", _halved, backward),
    _strict("deterministic_group_sum", "in deterministic mode, a part of the group's dk and dv", _first_of_group,
            lambda c: grouped(c) and c.backward),
    _strict("deterministic_last_block", "in deterministic mode, dq lacks the last block", _last_block_of_dq_lost,
            backward),
    _strict("deterministic_out_shifted", "in deterministic mode, out of the next query",
            lambda answer: replace(answer, out=answer.out.roll(-1, 1)), backward),
)  # fmt: skip

NARROW_FAULTS = (*FACTORS, *NUMBERS, *MASKS, *RARE, *SCALES, *CHUNKS, *STRICT)
