"""Eager attention in the case's dtype, as transformers' `attn_implementation="eager"` computes it.

It is the yardstick of flash-attention's own tests, and also a backend: matmul, scale, soft-cap, mask, softmax in
float32 rounded to the io dtype, matmul (transformers 5.17, models/llama/modeling_llama.py `eager_attention_forward`;
sinks as in models/gpt_oss/modeling_gpt_oss.py: an additional column of the softmax, then dropped). It is judged by the
rounding noise for its class, which also rounds the scores and dP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.attention.backends import Backend, Case, Device, Installed, Outputs

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.attention.inputs import Inputs


def refuse(case: Case, device: Device) -> str:
    """Return "": eager runs every case for which there is enough memory."""
    return ""


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with matrix products and a softmax."""
    from attncheck.attention.calls.common import backward, make_leaves

    q, k, v = make_leaves(inputs)
    sinks = None
    if inputs.sinks is not None:
        sinks = inputs.sinks.to(q.dtype).detach().requires_grad_(inputs.case.backward)
    out = compute_attention(inputs, q, k, v, sinks)
    leaves = (q, k, v) if sinks is None else (q, k, v, sinks)
    return backward(inputs, out, leaves)


def compute_attention(inputs: Inputs, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the output `(batch, seqlen_q, num_heads, v_head_dim)` in the dtype of q."""
    import torch

    from attncheck.attention.calls.common import repeat_kv

    case = inputs.case
    group = case.num_heads // case.num_kv_heads
    key, value = (repeat_kv(x.transpose(1, 2), group) for x in (k, v))
    scores = torch.matmul(q.transpose(1, 2), key.transpose(2, 3)) * case.softmax_scale
    if case.softcap:
        scores = torch.tanh(scores / case.softcap) * case.softcap
    scores = mask_scores(inputs, scores)
    if sinks is not None:
        column = sinks[None, :, None, None].expand(case.batch, -1, case.seqlen_q, -1)
        scores = torch.cat((scores, column), -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    if sinks is not None:
        weights = weights[..., :-1]
    if case.dropout:
        weights = torch.dropout(weights, case.dropout, train=True)
    return torch.matmul(weights, value).transpose(1, 2)


def mask_scores(inputs: Inputs, scores: Tensor) -> Tensor:
    """Return scores with ALiBi added, and the dtype's lowest number for hidden keys."""
    import torch

    from attncheck.attention import masks

    case = inputs.case
    if inputs.slopes is not None:
        scores = scores + masks.build_alibi_bias(case, inputs.slopes).to(scores.dtype)
    if not case.causal and not case.needs_mask:
        return scores
    if case.mask == "additive":
        return scores + masks.build_mask_tensor(case, inputs.device, scores.dtype)
    return scores.masked_fill(~masks.build_mask(case, inputs.device), torch.finfo(scores.dtype).min)


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it on q, k, v and `mask`."""
    return (
        "group = H // HK",
        "key, value = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))",
        "scores = q.transpose(1, 2) @ key.transpose(2, 3) * scale",
        *((f"scores = torch.tanh(scores / {case.softcap}) * {case.softcap}",) if case.softcap else ()),
        *(("scores = scores + bias.to(scores.dtype)",) if case.alibi or case.mask == "additive" else ()),
        "scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)",
        *(
            ("scores = torch.cat((scores, sinks.to(q.dtype)[None, :, None, None].expand(B, -1, SQ, -1)), -1)",)
            * case.sinks
        ),
        "weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)" + ("[..., :-1]" * case.sinks),
        "out = (weights @ value).transpose(1, 2)",
    )


BACKEND = Backend(
    name="eager",
    title="matrix products and a softmax, as transformers' eager",
    package="torch",
    installed=Installed,
    refuse=refuse,
    run=run,
    script_lines=script_lines,
    noise="eager",
    rounded_bias=True,
    bytes_per_score=40.0,
    takes_mask=True,
)
