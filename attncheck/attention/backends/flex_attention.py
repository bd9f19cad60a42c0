"""torch's flex_attention, compiled, with a block mask for causal, window, padding and documents.

Sinks are applied as transformers does, but in float32: the output is multiplied by exp(LSE - LSE with the sink)
(transformers 5.17, integrations/flex_attention.py). sigmoid(LSE - sink) is the same, but the gradient of a light sink
is lost in its backward, as sigmoid · (1 - sigmoid). On the CPU compiled flex has a forward only (torch 2.13 raises
NotImplementedError in its backward) and needs a C++ compiler.
"""

from __future__ import annotations

import math
import shutil
from functools import cache
from typing import TYPE_CHECKING, Any

from attncheck.attention.backend import Backend, Device, Installed, Outputs, Refused
from attncheck.core.cases import Case, diagonal_shift, visible_bounds

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.attention.inputs import Inputs

SHARED_MEMORY_ERRORS = ("out of resource", "NoValidChoicesError", "No valid triton configs", "shared memory")


def refuse(case: Case, device: Device) -> str:
    """Return why compiled flex cannot run the case on `device`, or ""."""
    if device.torch < (2, 5):
        return "flex_attention needs torch 2.5 or newer"
    if case.dropout:
        return "flex_attention has no dropout"
    if device.kind == "cuda" and min(case.head_dim, case.v_head_dim) < 16:
        return "flex_attention needs a head_dim of 16 or more on CUDA"
    if device.kind == "cpu":
        if case.backward:
            return "compiled flex_attention has no backward on the CPU"
        if case.sinks:
            return "compiled flex_attention returns no LSE on the CPU, which sinks need"
        if not (shutil.which("g++") or shutil.which("clang++")):
            return "compiling flex_attention for the CPU needs a C++ compiler, and none is on PATH"
    return ""


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with compiled flex_attention."""
    import torch

    from attncheck.attention.calls.common import backward, make_leaves

    case = inputs.case
    q, k, v = make_leaves(inputs)
    sinks = None if inputs.sinks is None else inputs.sinks.detach().requires_grad_(case.backward)
    returns_lse = inputs.device != "cpu"
    try:
        result = compiled_flex_attention()(
            *(x.transpose(1, 2) for x in (q, k, v)),
            score_mod=_build_score_mod(inputs),
            block_mask=_build_block_mask(inputs),
            scale=case.softmax_scale,
            enable_gqa=case.num_heads != case.num_kv_heads,
            return_lse=returns_lse,
        )
        out, lse = result if returns_lse else (result, None)
        if sinks is not None and lse is not None:
            whole_lse = torch.logaddexp(lse, sinks[None, :, None].expand_as(lse))
            out = (out * torch.exp(lse - whole_lse)[..., None]).to(out.dtype)
            lse = whole_lse
        leaves = (q, k, v) if sinks is None else (q, k, v, sinks)
        return backward(inputs, out.transpose(1, 2), leaves, lse)
    except Exception as error:
        if any(text in f"{type(error).__name__} {error}" for text in SHARED_MEMORY_ERRORS):
            raise Refused("no configuration of flex_attention's kernel fits this GPU's shared memory") from None
        raise


@cache
def compiled_flex_attention() -> Any:
    """Return torch.compile(flex_attention), with one graph per shape."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    for limit in ("cache_size_limit", "recompile_limit", "accumulated_recompile_limit", "accumulated_cache_size_limit"):
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 4096)
    return torch.compile(flex_attention, dynamic=False)


def double_rounding_factor(case: Case) -> float:
    """Return sqrt(2) with sinks, which scale an out and a dout that are rounded before and after it; otherwise 1."""
    return math.sqrt(2.0) if case.sinks else 1.0


def _build_score_mod(inputs: Inputs) -> Any:
    import torch

    case, slopes = inputs.case, inputs.slopes
    offset = diagonal_shift(case, case.seqlen_q, case.seqlen_k)
    softcap = case.softcap

    if not softcap and slopes is None:
        return None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        return score if slopes is None else score - slopes[h] * (q + offset - k).abs()

    return score_mod


def _build_block_mask(inputs: Inputs) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    from attncheck.attention.masks import document_positions

    case = inputs.case
    if not case.causal and not case.needs_mask:
        return None
    chunk = case.attention_chunk
    if case.layout == "dense" and not chunk:
        low, high = visible_bounds(case, case.seqlen_q, case.seqlen_k)

        def dense_mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k - q >= low) & (k - q <= high)

        return create_block_mask(dense_mask, None, None, case.seqlen_q, case.seqlen_k, device=inputs.device)
    low, high = visible_bounds(case, 0, 0)
    q_document, q_position, k_document, k_position = document_positions(case, inputs.device)

    def document_mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        distance = k_position[b, k] - q_position[b, q]
        visible = (q_document[b, q] == k_document[b, k]) & (distance >= low) & (distance <= high)
        return visible & (q_position[b, q] // chunk == k_position[b, k] // chunk) if chunk else visible

    return create_block_mask(document_mask, case.batch, None, case.seqlen_q, case.seqlen_k, device=inputs.device)


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it."""
    score = f"{case.softcap} * torch.tanh(s / {case.softcap})" if case.softcap else "s"
    score_mod = f"lambda s, b, h, i, j: {score}" + (" + bias[0, h, i, j]" if case.alibi else "")
    return (
        "from torch.nn.attention.flex_attention import create_block_mask, flex_attention",
        "block_mask = create_block_mask(lambda b, h, i, j: mask[b % mask.shape[0], 0, i, j], B, None, SQ, SK, device)",
        "out, lse = torch.compile(flex_attention)(*(x.transpose(1, 2) for x in (q, k, v)), block_mask=block_mask,",
        f"    score_mod={score_mod}, scale=scale, enable_gqa=H != HK, return_lse=True)",
        *(("whole_lse = torch.logaddexp(lse, sinks[None, :, None].expand_as(lse))",) * case.sinks),
        *(("out = (out * torch.exp(lse - whole_lse)[..., None]).to(q.dtype)",) * case.sinks),
        "out = out.transpose(1, 2)",
    )


BACKEND = Backend(
    name="flex_attention",
    title="torch flex_attention, compiled",
    package="torch",
    installed=Installed,
    refuse=refuse,
    run=run,
    script_lines=script_lines,
    kernel_pattern=r"flex_attention|FlexAttention|triton_tem_fused|triton_(poi|per|red|tem)_|cpp_fused|CompiledFunction",
    takes_chunks=True,
    compiles=True,
    class_factor=double_rounding_factor,
)
