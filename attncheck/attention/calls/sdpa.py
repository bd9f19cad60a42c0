"""Calls torch's scaled_dot_product_attention with one of its backends pinned, and asks that backend for its LSE."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attncheck.attention import masks
from attncheck.attention.backend import Outputs, Refused
from attncheck.attention.calls.common import deterministic_algorithms, finish, leaves, repeat_kv
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case

Lse = Callable[[Inputs, Tensor, Tensor, Tensor, "Tensor | None"], "tuple[Tensor, Tensor]"]


def attention_mask(inputs: Inputs) -> Tensor | None:
    """Return the mask that SDPA needs beyond `is_causal`: bool, or ALiBi's bias in the dtype of q."""
    case = inputs.case
    if inputs.slopes is not None:
        bias = masks.whole_bias(case, inputs.slopes)[None]
        if case.causal or case.needs_mask:
            bias = bias.masked_fill(~masks.whole(case, inputs.device), float("-inf"))
        return bias.to(inputs.q.dtype).contiguous()
    return masks.whole(case, inputs.device) if case.needs_mask else None


def run(inputs: Inputs, deterministic: bool, kernel: str, native_gqa: bool, lse: Lse | None) -> Outputs:
    """Run the case with the SDPA backend named `kernel` and no other.

    Where the kernel cannot share kv heads itself (`native_gqa`), they are repeated first, as transformers does. The
    operator behind the backend is called once more for its LSE; it must return the same bits for out.
    """
    case = inputs.case
    q, k, v = leaves(inputs)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    grouped = case.num_heads != case.num_kv_heads
    if grouped and not native_gqa:
        heads[1:] = [repeat_kv(x, case.num_heads // case.num_kv_heads) for x in heads[1:]]
    mask = attention_mask(inputs)
    with warnings.catch_warnings(record=True) as told, deterministic_algorithms(deterministic):
        warnings.simplefilter("always")
        try:
            with sdpa_kernel([getattr(SDPBackend, kernel)]):
                out = scaled_dot_product_attention(
                    heads[0],
                    heads[1],
                    heads[2],
                    attn_mask=mask,
                    dropout_p=case.dropout,
                    is_causal=case.causal and mask is None,
                    scale=case.softmax_scale,
                    enable_gqa=grouped and native_gqa,
                )
                outputs = finish(inputs, out.transpose(1, 2), (q, k, v))
        except RuntimeError as error:
            if re.search("No available kernel|No viable backend", str(error)):
                raise Refused(_reasons(told) or str(error).splitlines()[0]) from None
            raise
    ran = (out.grad_fn.name(),) if out.grad_fn is not None else ()
    found = _lse(inputs, heads, mask, out.detach(), lse) if lse is not None and not case.dropout else None
    return replace(outputs, lse=found, ran=ran)


def _lse(inputs: Inputs, heads: list[Tensor], mask: Tensor | None, out: Tensor, lse: Lse) -> Tensor | None:
    q, k, v = (x.detach() for x in heads)
    try:
        again, found = lse(inputs, q, k, v, mask)
    except (RuntimeError, TypeError, AttributeError):  # these operators are torch's own business and change
        return None
    if again.shape != out.shape or not torch.equal(again, out):
        return None
    return found.reshape(found.shape[0], found.shape[1], -1)[:, :, : inputs.case.seqlen_q].float()


def _reasons(told: list[warnings.WarningMessage]) -> str:
    """Return torch's own warnings on why the pinned backend was not to be had, without those on the other ones."""
    texts = [re.sub(r" \(Triggered internally.*", "", str(w.message).strip()) for w in told]
    wanted = [
        text for text in texts if not re.search("because:$|backend is disabled|not enabled|has been runtime", text)
    ]
    return " ".join(dict.fromkeys(text.rstrip(".") + "." for text in wanted)).rstrip(".")


def call(case: Case, kernel: str, native_gqa: bool) -> tuple[str, ...]:
    """Return the lines of a script that calls it on q, k, v, `mask` and `bias`."""
    grouped = case.num_heads != case.num_kv_heads
    repeat = grouped and not native_gqa
    biased = "bias.masked_fill(~mask, -math.inf).to(q.dtype)"
    mask = biased if case.alibi else "mask" if case.needs_mask else "None"
    causal = case.causal and mask == "None"
    gqa = ", enable_gqa=True" if grouped and native_gqa else ""
    return (
        "heads = [x.transpose(1, 2) for x in (q, k, v)]",
        *(("heads[1:] = [x.repeat_interleave(H // HK, 1) for x in heads[1:]]",) if repeat else ()),
        f"with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.{kernel}]):",
        "    out = torch.nn.functional.scaled_dot_product_attention(",
        f"        *heads, attn_mask={mask}, is_causal={causal}, scale=scale{gqa}).transpose(1, 2)",
    )
