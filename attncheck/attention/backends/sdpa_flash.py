"""SDPA's FLASH_ATTENTION: torch's own build of FlashAttention-2 on CUDA, and its own kernel on the CPU.

On CUDA it supports no mask (torch 2.11, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, `check_for_attn_mask`),
16-bit dtypes and a head_dim up to 256. On the CPU it supports masks and every dtype, but no dropout.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attncheck.attention.backends import Backend, Case, Device, Installed, defer

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.attention.inputs import Inputs


def refuse(case: Case, device: Device) -> str:
    """Return why this backend cannot run the case on `device`, or ""."""
    if case.softcap or case.sinks:
        return "SDPA has no soft-cap" if case.softcap else "SDPA has no sinks"
    if case.head_dim != case.v_head_dim:
        return "FLASH_ATTENTION needs equal head_dim for q, k and v"
    if device.kind == "cpu":
        return "FLASH_ATTENTION on the CPU has no dropout" if case.dropout else ""
    if device.compute_capability < (8, 0):
        return "FLASH_ATTENTION needs sm_80 or newer"
    if case.dtype == "float32":
        return "FLASH_ATTENTION takes 16-bit dtypes only"
    if case.head_dim > 256:
        return "FLASH_ATTENTION takes a head_dim up to 256"
    if case.needs_mask or case.alibi:
        return "FLASH_ATTENTION on CUDA takes no mask"
    if case.causal and case.seqlens_q != case.seqlens_k:
        return "FLASH_ATTENTION on CUDA is causal for equal lengths only"
    return ""


def roundings(case: Case, device: Device) -> tuple[float, float]:
    """Return how often the CPU kernel rounds its sums of dq, and of dk and dv: once per block and head of a group.

    It sums dq over blocks of 512 keys, and dk and dv over blocks of 32, 64 or 256 queries, in the io dtype (torch 2.13,
    aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, `cpu_flash_attention_backward`: gemm with beta = 1). The heads of
    a group add to one kv head in turn: with 6 blocks and 20 heads the error is that of 120 roundings, not of 26.
    """
    if device.kind != "cpu":
        return 0.0, 0.0
    seqlen = case.seqlen_q
    block_q = 256 if seqlen >= 768 else 64 if seqlen >= 192 else 32
    group = case.num_heads / case.num_kv_heads
    return math.ceil(case.seqlen_k / 512) - 1.0, math.ceil(seqlen / block_q) * group - 1.0


def compute_lse(inputs: Inputs, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return out and LSE of the operator behind the backend."""
    import torch

    causal, scale = inputs.case.causal and mask is None, inputs.case.softmax_scale
    if q.device.type == "cpu":
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # type: ignore[no-any-return]
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )[:2]
    size = q.shape[-1]
    if size % 8:  # SDPA pads too
        q, k, v = (torch.nn.functional.pad(x, (0, 8 - size % 8)) for x in (q, k, v))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[:2]
    return out[..., :size], lse


BACKEND = Backend(
    name="sdpa_flash",
    title="torch SDPA, FLASH_ATTENTION",
    package="torch",
    installed=Installed,
    refuse=refuse,
    run=defer("sdpa:run", "FLASH_ATTENTION", native_gqa=True, compute_lse=compute_lse),
    script_lines=defer("sdpa:script_lines", "FLASH_ATTENTION", native_gqa=True),
    kernel_pattern=r"pytorch_flash::|_scaled_dot_product_flash_attention|ScaledDotProductFlashAttention",
    roundings=roundings,
    rounded_bias=True,
    takes_mask=True,
    deterministic="torch.use_deterministic_algorithms(True)",
    deterministic_switch="torch",
)
