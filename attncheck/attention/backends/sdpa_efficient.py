"""SDPA's EFFICIENT_ATTENTION: the memory-efficient kernels that torch took from xformers; CUDA only.

It does not support shared kv heads (torch 2.11, sdp_utils.cpp, `check_batch_size_and_num_heads_dense` without
`supports_gqa`), so they are repeated first, as transformers does.
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
        return "EFFICIENT_ATTENTION runs on CUDA only"
    if case.softcap or case.sinks:
        return "SDPA has no soft-cap" if case.softcap else "SDPA has no sinks"
    return ""


def compute_lse(inputs: Inputs, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return out and LSE of the operator behind the backend. SDPA pads a mask's rows; such cases raise here."""
    import torch

    if mask is not None:
        raise TypeError("no LSE alongside a mask")
    causal, scale = inputs.case.causal, inputs.case.softmax_scale
    return torch.ops.aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
        q, k, v, None, True, 0.0, causal, scale=scale
    )[:2]


BACKEND = Backend(
    name="sdpa_efficient",
    title="torch SDPA, EFFICIENT_ATTENTION",
    package="torch",
    installed=Installed,
    refuse=refuse,
    run=defer("sdpa:run", "EFFICIENT_ATTENTION", native_gqa=False, compute_lse=compute_lse),
    script_lines=defer("sdpa:script_lines", "EFFICIENT_ATTENTION", native_gqa=False),
    kernel_pattern=r"fmha_cutlass|_scaled_dot_product_efficient_attention|ScaledDotProductEfficientAttention",
    rounded_bias=True,
    takes_mask=True,
    deterministic="torch.use_deterministic_algorithms(True)",
    deterministic_switch="torch",
)
