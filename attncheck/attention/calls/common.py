"""Steps that several backends share: leaf tensors, backward, the layouts of kernels."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.attention.masks import hand_over
from attncheck.core.cases import iter_segments


def make_leaves(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v as leaves that require gradients if the case has a backward; their strides are kept."""
    requires_grad = inputs.case.backward
    return tuple(x.detach().requires_grad_(requires_grad) for x in (inputs.q, inputs.k, inputs.v))  # type: ignore[return-value]


def backward(inputs: Inputs, out: Tensor, leaves: tuple[Tensor, ...], lse: Tensor | None = None) -> Outputs:
    """Return the outputs of a call: `out` (batch, seqlen_q, num_heads, v_head_dim) and the gradients of `leaves`.

    A fourth tensor in `leaves` is the sinks.
    """
    operators = (out.grad_fn.name(),) if out.grad_fn is not None else ()
    if not inputs.case.backward:
        return Outputs(out.detach(), _detach(lse), operators=operators)
    dq, dk, dv, *dsinks = compute_gradients(out, leaves, inputs.dout)
    return Outputs(out.detach(), _detach(lse), dq, dk, dv, dsinks[0] if dsinks else None, operators)


class _Seed(torch.autograd.Function):
    """A number, never written, whose gradient with respect to `out` is `dout`."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, dout: Tensor) -> Tensor:
        ctx.dout = dout
        return out.new_empty(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.dout, None


def compute_gradients(out: Tensor, leaves: tuple[Tensor, ...], dout: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of `leaves`, as `torch.autograd.grad(out, leaves, dout)` does.

    That imports sympy to compare the shapes (torch 2.13, autograd/__init__.py): over a second in each worker.
    """
    return torch.autograd.grad(_Seed.apply(out, dout), leaves)


def _detach(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()


def repeat_kv(x: Tensor, times: int) -> Tensor:
    """Return `(batch, heads, seqlen, d)` with each kv head repeated `times` times, as transformers' repeat_kv does.

    They are expanded and copied. The backward of repeat_interleave would sum the group in the io dtype, key by key.
    """
    if times == 1:
        return x
    batch, heads, seqlen, d = x.shape
    return x[:, :, None].expand(batch, heads, times, seqlen, d).reshape(batch, heads * times, seqlen, d)


def unpad(inputs: Inputs) -> Inputs:
    """Return the same documents packed into one row without padding; dense rows become documents."""
    case = inputs.case
    if case.layout == "packed":
        return inputs
    places = {side: _token_index(inputs, side) for side in "qk"}
    tensors = {
        name: hand_over(name, getattr(inputs, name).flatten(0, 1)[places[side]][None])
        for name, side in (("q", "q"), ("k", "k"), ("v", "k"), ("dout", "q"))
    }
    packed = replace(case, layout="packed")
    return replace(inputs, case=packed, q=tensors["q"], k=tensors["k"], v=tensors["v"], dout=tensors["dout"])


def _token_index(inputs: Inputs, side: str) -> Tensor:
    """Return the places of all documents' tokens in `(batch * seqlen, …)`, document after document: int64 `(tokens,)`.

    One index, because slices of thousands of documents take seconds.
    """
    seqlen = getattr(inputs, side).shape[1]
    spans = (
        (s.batch * seqlen, getattr(s, f"{side}_start"), getattr(s, f"{side}_stop")) for s in iter_segments(inputs.case)
    )
    return torch.tensor(
        [row + i for row, start, stop in spans for i in range(start, stop)], dtype=torch.int64, device=inputs.device
    )


def repad(inputs: Inputs, outputs: Outputs) -> Outputs:
    """Return the outputs of `unpad(inputs)` in the layout of `inputs`; padding is zero."""
    case = inputs.case
    if case.layout == "packed":
        return outputs
    places = {side: _token_index(inputs, side) for side in "qk"}

    def pad_tokens(x: Tensor | None, padded_like: Tensor, side: str) -> Tensor | None:
        if x is None:
            return None
        padded = torch.zeros(*padded_like.shape[:3], x.shape[-1], dtype=x.dtype, device=x.device)
        padded.flatten(0, 1)[places[side]] = x[0]
        return padded

    lse = outputs.lse
    if lse is not None:
        padded_lse = pad_tokens(lse.transpose(1, 2)[..., None], inputs.q, "q")
        assert padded_lse is not None
        lse = padded_lse[..., 0].transpose(1, 2)
    out = pad_tokens(outputs.out, inputs.q, "q")
    assert out is not None
    return replace(
        outputs,
        out=out,
        lse=lse,
        dq=pad_tokens(outputs.dq, inputs.q, "q"),
        dk=pad_tokens(outputs.dk, inputs.k, "k"),
        dv=pad_tokens(outputs.dv, inputs.v, "k"),
    )


@contextlib.contextmanager
def deterministic_algorithms(enabled: bool, warn_only: bool = False) -> Iterator[None]:
    """Turn on torch.use_deterministic_algorithms for a block, if `enabled`."""
    if not enabled:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    _set_deterministic_algorithms(True, warn_only)
    try:
        yield
    finally:
        _set_deterministic_algorithms(*before)


def _set_deterministic_algorithms(enabled: bool, warn_only: bool) -> None:
    """Do the same as torch.use_deterministic_algorithms, without importing an unneeded compiler.

    torch 2.13.0 `torch/__init__.py` sets `torch._inductor.config.deterministic`, then calls this. That import alone
    took 1.4 s on two cores, and 7 s of every worker's start on a GPU host.
    """
    set_for_kernels = getattr(torch._C, "_set_deterministic_algorithms", None)
    if set_for_kernels is None or "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    else:
        set_for_kernels(enabled, warn_only=warn_only)
