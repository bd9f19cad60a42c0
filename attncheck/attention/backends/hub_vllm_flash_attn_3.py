"""The Hub's `kernels-community/vllm-flash-attn3`, FlashAttention-3 with sinks, where it is in the local cache.

Nothing is downloaded; loading it runs the code that the repository published, from the cache. Read in
kernels-community of 2026-08-21, vllm-flash-attn3: sinks are `s_aux`, bfloat16 only (flash-attn/flash_api_stable.cpp),
and get no gradient, since backward returns None for them; it also cuts dq and dk to v's head_dim, so it cannot train a
model where that is smaller (torch-ext/vllm_flash_attn3/flash_attn_interface.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend, Device, Installed, Outputs
from attncheck.attention.backends.flash_attention_3 import (
    DETERMINISTIC,
    KERNEL_PATTERN,
    call_kwargs,
    refuse_any_layout,
    refuse_build,
)
from attncheck.core.cases import Case

if TYPE_CHECKING:
    from attncheck.attention.calls.flash_attn import SinksArgument
    from attncheck.attention.inputs import Inputs

REPOSITORY = "kernels-community/vllm-flash-attn3"


def installed() -> Installed:
    """Return the kernel's version in the cache."""
    from attncheck.attention.calls import hub_kernels

    return hub_kernels.find_repository(REPOSITORY)


def refuse(case: Case, device: Device) -> str:
    """Return why the kernel cannot run the case on `device`, or ""."""
    if case.backward and case.head_dim > case.v_head_dim:
        return "vllm-flash-attn3 cuts dq and dk to v's head_dim, so it has no backward where that is smaller"
    if case.sinks and (case.num_heads > 64 or case.head_dim != case.v_head_dim):
        return "vllm-flash-attn3 takes sinks for up to 64 heads and equal head_dim for q, k and v"
    if case.sinks and device.compute_capability != (9, 0):
        return "vllm-flash-attn3 takes sinks on sm_90 only"
    reason = refuse_any_layout(case, device, sinks=True)
    return reason or refuse_build(case, device, case.layout != "dense", REPOSITORY)


def sinks_argument() -> SinksArgument:
    """Return how the functions take sinks."""
    from attncheck.attention.calls.flash_attn import SinksArgument

    return SinksArgument("s_aux", "bfloat16", has_gradient=False)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with the kernel."""
    from attncheck.attention.calls import hub_kernels

    return hub_kernels.run(inputs, REPOSITORY, sinks_argument(), **call_kwargs(inputs.case, deterministic))


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it."""
    from attncheck.attention.calls import flash_attn, hub_kernels

    return hub_kernels.script_lines(case, REPOSITORY, flash_attn.format_kwargs(case, sinks=sinks_argument()))


BACKEND = Backend(
    name="hub_vllm_flash_attn_3",
    title="vLLM's FlashAttention-3 from the Hugging Face Hub",
    package="kernels",
    installed=installed,
    refuse=refuse,
    run=run,
    script_lines=script_lines,
    kernel_pattern=KERNEL_PATTERN,
    indexes_by_cu_seqlens=True,
    deterministic=DETERMINISTIC,
    deterministic_switch="argument",
    takes_chunks=True,
)
