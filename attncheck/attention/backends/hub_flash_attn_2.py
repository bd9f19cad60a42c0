"""The Hugging Face Hub's build of flash-attn 2, `kernels-community/flash-attn2`, where it is in the local cache.

transformers uses it for `flash_attention_2` where flash-attn is not installed. Nothing is downloaded; loading it runs
the code that the repository published, from the cache. Its functions are flash-attn's own (kernels-community of
2026-08-21, flash-attn2/torch-ext/flash_attn2/flash_attn_interface.py). It has CPU and XPU builds as well, which are not
used here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend, Device, Installed, Outputs
from attncheck.attention.backends.flash_attention_2 import (
    DETERMINISTIC,
    KERNEL_PATTERN,
    call_kwargs,
    drop_shifted_lse,
    refuse_any_layout,
)
from attncheck.core.cases import Case

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs

REPOSITORY = "kernels-community/flash-attn2"


def installed() -> Installed:
    """Return the kernel's version in the cache."""
    from attncheck.attention.calls import hub_kernels

    return hub_kernels.find_repository(REPOSITORY)


def refuse(case: Case, device: Device) -> str:
    """Return why the kernel cannot run the case on `device`, or ""."""
    if device.kind == "cpu":
        return "attncheck runs Hub kernels on CUDA only"
    return refuse_any_layout(case, device, REPOSITORY)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with the kernel."""
    from attncheck.attention.calls import hub_kernels

    outputs = hub_kernels.run(inputs, REPOSITORY, None, **call_kwargs(inputs, deterministic))
    return drop_shifted_lse(inputs.case, outputs)


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it."""
    from attncheck.attention.calls import flash_attn, hub_kernels

    return hub_kernels.script_lines(case, REPOSITORY, flash_attn.format_kwargs(case))


BACKEND = Backend(
    name="hub_flash_attn_2",
    title="flash-attn 2 from the Hugging Face Hub",
    package="kernels",
    installed=installed,
    refuse=refuse,
    run=run,
    script_lines=script_lines,
    kernel_pattern=KERNEL_PATTERN,
    indexes_by_cu_seqlens=True,
    deterministic=DETERMINISTIC,
    deterministic_switch="argument",
)
