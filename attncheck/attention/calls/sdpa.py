"""Calls torch's scaled_dot_product_attention with one of its backends pinned, and its operator for the LSE."""

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
from attncheck.attention.calls.common import backward, deterministic_algorithms, make_leaves, repeat_kv
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case

LseFunction = Callable[[Inputs, Tensor, Tensor, Tensor, "Tensor | None"], "tuple[Tensor, Tensor]"]


def build_attn_mask(inputs: Inputs) -> Tensor | None:
    """Return the `attn_mask` that SDPA needs beyond `is_causal`: the case's mask, or ALiBi's bias in q's dtype."""
    case = inputs.case
    if inputs.slopes is not None:
        bias = masks.build_alibi_bias(case, inputs.slopes)[None]
        if case.causal or case.needs_mask:
            bias = bias.masked_fill(~masks.build_mask(case, inputs.device), float("-inf"))
        return bias.to(inputs.q.dtype).contiguous()
    return masks.build_mask_tensor(case, inputs.device, inputs.q.dtype) if case.needs_mask else None


def run(inputs: Inputs, deterministic: bool, kernel: str, native_gqa: bool, compute_lse: LseFunction | None) -> Outputs:
    """Run the case with only the SDPA backend named `kernel`.

    If the kernel does not support shared kv heads (`native_gqa`), they are repeated first, as transformers does. The
    operator behind the backend is called a second time for its LSE; it must return the same bits for out.
    """
    case = inputs.case
    q, k, v = make_leaves(inputs)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    grouped = case.num_heads != case.num_kv_heads
    if grouped and not native_gqa:
        heads[1:] = [repeat_kv(x, case.num_heads // case.num_kv_heads) for x in heads[1:]]
    mask = build_attn_mask(inputs)
    with warnings.catch_warnings(record=True) as caught, deterministic_algorithms(deterministic):
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
                outputs = backward(inputs, out.transpose(1, 2), (q, k, v))
        except RuntimeError as error:
            if re.search("No available kernel|No viable backend", str(error)):
                raise Refused(_refusal_reasons(caught) or str(error).splitlines()[0]) from None
            raise
    operators = (out.grad_fn.name(),) if out.grad_fn is not None else ()
    lse = (
        _recompute_lse(inputs, heads, mask, out.detach(), compute_lse)
        if compute_lse is not None and not case.dropout
        else None
    )
    return replace(outputs, lse=lse, operators=operators)


def _recompute_lse(
    inputs: Inputs, heads: list[Tensor], mask: Tensor | None, out: Tensor, compute_lse: LseFunction
) -> Tensor | None:
    """Return LSE (batch, heads, seqlen_q) of a second forward, None if that fails or returns different bits for out."""
    q, k, v = (x.detach() for x in heads)
    try:
        second_out, lse = compute_lse(inputs, q, k, v, mask)
    except (RuntimeError, TypeError, AttributeError):  # these operators are private to torch and change
        return None
    if second_out.shape != out.shape or not torch.equal(second_out, out):
        return None
    return lse.reshape(lse.shape[0], lse.shape[1], -1)[:, :, : inputs.case.seqlen_q].float()


def _refusal_reasons(caught: list[warnings.WarningMessage]) -> str:
    """Return torch's own warnings about why the pinned backend cannot run, without those about other backends."""
    texts = [re.sub(r" \(Triggered internally.*", "", str(w.message).strip()) for w in caught]
    relevant = [
        text for text in texts if not re.search("because:$|backend is disabled|not enabled|has been runtime", text)
    ]
    return " ".join(dict.fromkeys(text.rstrip(".") + "." for text in relevant)).rstrip(".")


def _script_mask(case: Case) -> str:
    """Return the expression of the mask in the form that the case requests."""
    if case.mask == "additive":
        return "bias.to(q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)"
    return "mask.expand(-1, H, -1, -1).contiguous()" if case.per_head else "mask"


def script_lines(case: Case, kernel: str, native_gqa: bool) -> tuple[str, ...]:
    """Return the lines of a script that calls it on q, k, v, `mask` and `bias`."""
    grouped = case.num_heads != case.num_kv_heads
    repeat = grouped and not native_gqa
    alibi_mask = "bias.masked_fill(~mask, -math.inf).to(q.dtype)"
    mask = alibi_mask if case.alibi else _script_mask(case) if case.needs_mask else "None"
    causal = case.causal and mask == "None"
    gqa = ", enable_gqa=True" if grouped and native_gqa else ""
    return (
        "heads = [x.transpose(1, 2) for x in (q, k, v)]",
        *(("heads[1:] = [x.repeat_interleave(H // HK, 1) for x in heads[1:]]",) if repeat else ()),
        f"with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.{kernel}]):",
        "    out = torch.nn.functional.scaled_dot_product_attention(",
        f"        *heads, attn_mask={mask}, is_causal={causal}, scale=scale{gqa}).transpose(1, 2)",
    )
