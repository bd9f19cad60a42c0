"""flash-attn 2, packed: `flash_attn_varlen_func` with cu_seqlens, as transformers, verl and OpenRLHF train with it.

Padded and dense cases are unpadded first and put back afterwards, as transformers does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend, Device, Outputs
from attncheck.attention.backends.flash_attention_2 import (
    DETERMINISTIC,
    KERNEL_PATTERN,
    call_kwargs,
    drop_shifted_lse,
    installed,
    refuse_any_layout,
)
from attncheck.core.cases import Case

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs


def refuse(case: Case, device: Device) -> str:
    """Return why the packed function cannot run the case on `device`, or ""."""
    return refuse_any_layout(case, device)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with flash_attn_varlen_func."""
    from flash_attn import flash_attn_varlen_func

    from attncheck.attention.calls.flash_attn import run_packed

    kwargs = call_kwargs(inputs, deterministic)
    return drop_shifted_lse(inputs.case, run_packed(flash_attn_varlen_func, inputs, "flash-attn 2", None, **kwargs))


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it on the documents' tokens."""
    from attncheck.attention.calls.flash_attn import format_kwargs, packed_script_lines

    return packed_script_lines("from flash_attn import flash_attn_varlen_func", format_kwargs(case))


BACKEND = Backend(
    name="flash_attention_2_varlen",
    title="flash-attn 2, packed",
    package="flash-attn",
    installed=installed,
    refuse=refuse,
    run=run,
    script_lines=script_lines,
    kernel_pattern=KERNEL_PATTERN,
    indexes_by_cu_seqlens=True,
    deterministic=DETERMINISTIC,
    deterministic_switch="argument",
)
