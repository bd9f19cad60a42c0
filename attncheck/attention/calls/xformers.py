"""Calls xformers' memory_efficient_attention with one operator pinned, so that it never dispatches.

Read in xformers 0.0.35, ops/fmha: `__init__.py` (a named operator is not checked again for backward, so its
`not_supported_reasons` are called here; kv heads are shared only in forward, so they are repeated first),
`attn_bias.py` (`LowerTriangularMask` is aligned top left; a window of w has w keys, including the query's own; a block
that is causal from the bottom right needs at least as many keys as queries), `common.py` (LSE is longer than the
sequence for cutlass, and has one row per document if `VARLEN_LSE_PACKED` is False).
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs, Refused
from attncheck.attention.calls.common import backward, deterministic_algorithms, make_leaves, repad, repeat_kv, unpad
from attncheck.attention.calls.sdpa import build_attn_mask
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import UNBOUNDED, Case


def refuse(case: Case) -> str:
    """Return the feature that no bias of xformers can express, or ""."""
    if case.softcap or case.sinks:
        return "xformers has no soft-cap" if case.softcap else "xformers has no sinks"
    left, right = case.window_size
    masked = case.causal or case.windowed
    if case.windowed and not case.causal:
        if case.layout != "dense" or left == UNBOUNDED or right == UNBOUNDED:
            return "xformers supports windows around a query only for dense cases, and only if both sides are bounded"
    elif left != UNBOUNDED and _has_unequal_lengths(case) and case.alignment == "top_left":
        return "xformers aligns windows of unequal lengths only to the bottom right"
    if masked and case.alignment == "bottom_right" and any(k < q for q, k in zip(case.seqlens_q, case.seqlens_k)):
        return "xformers needs at least as many keys as queries if the mask is aligned to the bottom right"
    if case.alibi and (case.layout != "dense" or case.dropout):
        return "xformers takes ALiBi as a bias of dense cases only"
    return ""


def _has_unequal_lengths(case: Case) -> bool:
    return case.seqlens_q != case.seqlens_k


def run(inputs: Inputs, deterministic: bool, operators: tuple[Any, Any], rows_as_documents: bool = False) -> Outputs:
    """Run the case with `operators`, forward and backward.

    `rows_as_documents` runs a dense case's rows as documents, for an operator that supports the mask only there.
    """
    case = inputs.case
    if deterministic and case.backward and not operators[1].IS_DETERMINISTIC:
        raise Refused("xformers lists this operator's backward as nondeterministic")
    packed = unpad(inputs) if rows_as_documents or case.layout != "dense" else inputs
    leaves = make_leaves(packed)
    group = case.num_heads // case.num_kv_heads
    heads = [leaves[0], *(repeat_kv(x.transpose(1, 2), group).transpose(1, 2) for x in leaves[1:])]
    kwargs = {"attn_bias": build_attn_bias(packed), "p": case.dropout, "scale": case.softmax_scale}
    _check_supported(operators if case.backward else operators[:1], heads, kwargs)
    with deterministic_algorithms(deterministic):
        from xformers.ops import fmha

        out = fmha.memory_efficient_attention(*heads, **kwargs, op=operators)
        outputs = backward(packed, out, leaves)
    lse = None if case.dropout else _recompute_lse(packed, operators[0], heads, kwargs, outputs.out)
    outputs = replace(outputs, lse=lse)
    return outputs if packed is inputs else repad(inputs, outputs)


def _check_supported(operators: tuple[Any, ...], heads: list[Tensor], kwargs: dict[str, Any]) -> None:
    """Raise `Refused` with the operators' own reasons why they cannot take these inputs."""
    from xformers.ops.fmha.common import Inputs as FmhaInputs

    fmha_inputs = FmhaInputs(*(x.detach() for x in heads), **kwargs)
    reasons = [reason for operator in operators for reason in operator.not_supported_reasons(fmha_inputs)]
    if reasons:
        is_unbuilt = any("CUDA support" in reason or "wasn't built" in reason for reason in reasons)
        text = "; ".join(dict.fromkeys(reason.splitlines()[0] for reason in reasons))
        raise Refused(text + (_describe_load_failure() if is_unbuilt else ""))


def _describe_load_failure() -> str:
    """Return why xformers' compiled library was not loaded, "" if it was.

    `_cpp_lib.py` catches the loader's error, after which its operators say that it was built without CUDA.
    """
    try:
        from xformers import _cpp_lib
    except ImportError:
        return ""
    error = getattr(_cpp_lib, "_cpp_library_load_exception", None)
    cause = getattr(error, "__cause__", None) or error
    first_line = next(iter(str(cause).strip().splitlines()), "") if cause is not None else ""
    return f" (its compiled library was not loaded: {first_line[:200]})" if first_line else ""


def build_attn_bias(inputs: Inputs) -> Any:
    """Return xformers' bias for a dense or packed case."""
    from xformers.ops.fmha import attn_bias

    case = inputs.case
    if inputs.slopes is not None:
        return build_alibi_bias(inputs)
    window = case.window_size[0] + 1 if case.window_size[0] != UNBOUNDED else 0
    is_bottom_right = case.alignment == "bottom_right" and _has_unequal_lengths(case)
    if case.layout == "packed":
        blocks = attn_bias.BlockDiagonalMask.from_seqlens(list(case.seqlens_q), list(case.seqlens_k))
        if not case.causal:
            return blocks
        if window:
            name = "make_local_attention_from_bottomright" if is_bottom_right else "make_local_attention"
            return getattr(blocks, name)(window)
        return blocks.make_causal_from_bottomright() if is_bottom_right else blocks.make_causal()
    if case.windowed and not case.causal:
        return attn_bias.LocalAttentionFromBottomRightMask(*case.window_size)
    if not case.causal:
        return None
    if window:
        return attn_bias.LowerTriangularFromBottomRightLocalAttentionMask(window)
    return attn_bias.LowerTriangularFromBottomRightMask() if is_bottom_right else attn_bias.LowerTriangularMask()


def build_alibi_bias(inputs: Inputs) -> Tensor:
    """Return ALiBi and the mask as one tensor of (batch, heads, seqlen_q, seqlen_k), its rows aligned to 16 bytes."""
    case = inputs.case
    mask = build_attn_mask(inputs)
    assert mask is not None
    padded = torch.nn.functional.pad(mask, (0, -case.seqlen_k % 8)).contiguous()
    return padded[..., : case.seqlen_k].expand(case.batch, -1, -1, -1)


def _recompute_lse(
    inputs: Inputs, operator: Any, heads: list[Tensor], kwargs: dict[str, Any], out: Tensor
) -> Tensor | None:
    """Return LSE (batch, heads, seqlen_q) of a second forward call, None if that returns different bits for out."""
    from xformers.ops import fmha

    detached = [x.detach() for x in heads]
    second_out: Tensor
    lse: Tensor
    second_out, lse = fmha.memory_efficient_attention_forward_requires_grad(*detached, **kwargs, op=operator)
    if not torch.equal(second_out, out):
        return None
    case = inputs.case
    if case.layout == "packed" and not operator.VARLEN_LSE_PACKED:
        lse = torch.cat([lse[i : i + 1, :, :size] for i, size in enumerate(case.seqlens_q)], -1)
    return lse[:, :, : case.seqlen_q].float()


def script_lines(case: Case, operator: str) -> tuple[str, ...]:
    """Return the lines of a script that calls the operator of module `operator`, with a mask for its bias."""
    bias = "bias" if case.alibi else "torch.zeros(1, 1, 1, 1, device=device)"
    return (
        "from xformers.ops import fmha",
        "heads = [q, *(x.repeat_interleave(H // HK, 2) for x in (k, v))]",
        f"added = {bias}.masked_fill(~mask, -math.inf).to(q.dtype).expand(B, H, SQ, SK)",
        "added = torch.nn.functional.pad(added, (0, -SK % 8)).contiguous()[..., :SK]",
        f"operators = (fmha.{operator}.FwOp, fmha.{operator}.BwOp)",
        "out = fmha.memory_efficient_attention(*heads, attn_bias=added, scale=scale, op=operators)",
    )
