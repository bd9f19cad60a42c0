"""SDPA's CUDNN_ATTENTION: cuDNN's fused attention; CUDA only.

It cannot run under torch.use_deterministic_algorithms(True) (torch 2.11, sdp_utils.cpp, `check_cudnn_deterministic`).
SDPA then uses another backend, or fails if this one is pinned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.attention.backends import Backend, Case, Device, Installed, defer

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.attention.inputs import Inputs


def refuse(case: Case, device: Device) -> str:
    """Return why this backend cannot run the case on `device`, or ""."""
    if device.kind == "cpu":
        return "CUDNN_ATTENTION runs on CUDA only"
    if device.compute_capability < (8, 0):
        return "CUDNN_ATTENTION needs sm_80 or newer"
    if case.softcap or case.sinks:
        return "SDPA has no soft-cap" if case.softcap else "SDPA has no sinks"
    if case.dtype == "float32":
        return "CUDNN_ATTENTION takes 16-bit dtypes only"
    return ""


def compute_lse(inputs: Inputs, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return out and LSE of the operator behind the backend."""
    import torch

    causal, scale = inputs.case.causal and mask is None, inputs.case.softmax_scale
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    return torch.ops.aten._scaled_dot_product_cudnn_attention(  # type: ignore[no-any-return]
        q, k, v, mask, True, 0.0, causal, False, scale=scale
    )[:2]


BACKEND = Backend(
    name="sdpa_cudnn",
    title="torch SDPA, CUDNN_ATTENTION",
    package="torch",
    installed=Installed,
    refuse=refuse,
    run=defer("sdpa:run", "CUDNN_ATTENTION", native_gqa=True, compute_lse=compute_lse),
    script_lines=defer("sdpa:script_lines", "CUDNN_ATTENTION", native_gqa=True),
    kernel_pattern=r"cudnn_generated|cudnn.*(fprop|bprop|sdpa|flash)|_scaled_dot_product_cudnn_attention|ScaledDotProductCudnn",
    rounded_bias=True,
    takes_mask=True,
    plans=True,  # 370 ms per shape, measured on one H200 with cuDNN 9.19
    deterministic="torch.use_deterministic_algorithms(True)",
    deterministic_switch="torch",
)
