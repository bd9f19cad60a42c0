"""The Hugging Face Hub's build of FlashAttention-3, `kernels-community/flash-attn3`, where it is in the local cache.

Nothing is downloaded; loading it runs the code that the repository published, from the cache. Its functions and limits
are FlashAttention-3's own (kernels-community of 2026-08-21, flash-attn3/build.toml: sm_80 and sm_90a, and
flash-attn3/torch-ext/flash_attn3/flash_attn_interface.py).
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
    from attncheck.attention.inputs import Inputs

REPOSITORY = "kernels-community/flash-attn3"


def installed() -> Installed:
    """Return the kernel's version in the cache."""
    from attncheck.attention.calls import hub_kernels

    return hub_kernels.find_repository(REPOSITORY)


def refuse(case: Case, device: Device) -> str:
    """Return why the kernel cannot run the case on `device`, or ""."""
    reason = refuse_any_layout(case, device)
    return reason or refuse_build(case, device, case.layout != "dense", REPOSITORY)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with the kernel."""
    from attncheck.attention.calls import hub_kernels

    return hub_kernels.run(inputs, REPOSITORY, None, **call_kwargs(inputs.case, deterministic))


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it."""
    from attncheck.attention.calls import flash_attn, hub_kernels

    return hub_kernels.script_lines(case, REPOSITORY, flash_attn.format_kwargs(case))


BACKEND = Backend(
    name="hub_flash_attn_3",
    title="FlashAttention-3 from the Hugging Face Hub",
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
