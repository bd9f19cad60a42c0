"""What calling a backend takes: leaves, gradients, the layouts that kernels want."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import segments


def leaves(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v as leaves that take gradients where the case has a backward; their strides are kept."""
    wanted = inputs.case.backward
    return tuple(x.detach().requires_grad_(wanted) for x in (inputs.q, inputs.k, inputs.v))  # type: ignore[return-value]


def finish(inputs: Inputs, out: Tensor, taken: tuple[Tensor, ...], lse: Tensor | None = None) -> Outputs:
    """Return the outputs of a call: `out` (batch, seqlen_q, num_heads, v_head_dim) and the gradients of `taken`.

    A fourth tensor in `taken` is the sinks.
    """
    ran = (out.grad_fn.name(),) if out.grad_fn is not None else ()
    if not inputs.case.backward:
        return Outputs(out.detach(), _detached(lse), ran=ran)
    dq, dk, dv, *more = torch.autograd.grad(out, taken, inputs.dout)
    return Outputs(out.detach(), _detached(lse), dq, dk, dv, more[0] if more else None, ran)


def _detached(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()


def repeat_kv(x: Tensor, times: int) -> Tensor:
    """Return each kv head of `(batch, heads, seqlen, d)` `times` times, as transformers' repeat_kv does.

    Expanded and laid out anew, not repeat_interleave: whose backward adds the group up in the io dtype, key by key.
    """
    if times == 1:
        return x
    batch, heads, seqlen, d = x.shape
    return x[:, :, None].expand(batch, heads, times, seqlen, d).reshape(batch, heads * times, seqlen, d)


def unpadded(inputs: Inputs) -> Inputs:
    """Return the same documents packed into one row without padding; dense rows become documents."""
    case = inputs.case
    if case.layout == "packed":
        return inputs
    rows = list(segments(case))
    parts = {
        name: torch.cat([getattr(inputs, name)[s.batch, start(s) : stop(s)] for s in rows])[None]
        for name, start, stop in (
            ("q", lambda s: s.q_start, lambda s: s.q_stop),
            ("k", lambda s: s.k_start, lambda s: s.k_stop),
            ("v", lambda s: s.k_start, lambda s: s.k_stop),
            ("dout", lambda s: s.q_start, lambda s: s.q_stop),
        )
    }
    packed = replace(case, layout="packed")
    return replace(inputs, case=packed, q=parts["q"], k=parts["k"], v=parts["v"], dout=parts["dout"])


def padded(inputs: Inputs, outputs: Outputs) -> Outputs:
    """Return the outputs of `unpadded(inputs)` where the tokens of `inputs` lie; padding is zero."""
    case = inputs.case
    if case.layout == "packed":
        return outputs
    packed = list(segments(replace(case, layout="packed")))

    def laid(x: Tensor | None, like: Tensor, side: str) -> Tensor | None:
        if x is None:
            return None
        whole = torch.zeros(*like.shape[:3], x.shape[-1], dtype=x.dtype, device=x.device)
        for s, p in zip(segments(case), packed):
            place = slice(getattr(s, f"{side}_start"), getattr(s, f"{side}_stop"))
            whole[s.batch, place] = x[0, getattr(p, f"{side}_start") : getattr(p, f"{side}_stop")]
        return whole

    lse = outputs.lse
    if lse is not None:
        flat = laid(lse.transpose(1, 2)[..., None], inputs.q, "q")
        assert flat is not None
        lse = flat[..., 0].transpose(1, 2)
    out = laid(outputs.out, inputs.q, "q")
    assert out is not None
    return replace(
        outputs,
        out=out,
        lse=lse,
        dq=laid(outputs.dq, inputs.q, "q"),
        dk=laid(outputs.dk, inputs.k, "k"),
        dv=laid(outputs.dv, inputs.v, "k"),
    )


@contextlib.contextmanager
def deterministic_algorithms(wanted: bool, warn_only: bool = False) -> Iterator[None]:
    """Switch torch.use_deterministic_algorithms on for a block."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if wanted:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
