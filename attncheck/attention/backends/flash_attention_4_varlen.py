"""FlashAttention-4, packed: `flash_attn.cute.flash_attn_varlen_func` with cu_seqlens.

Padded and dense cases are unpadded first and put back afterwards. What it can do is flash_attention_4's list; sources
are named there. cu_seqlens come behind `qv` in its arguments, so all of them are given by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend, Device, Outputs
from attncheck.attention.backends.flash_attention_4 import (
    DISTRIBUTION,
    KERNEL_PATTERN,
    TITLE,
    call_kwargs,
    installed,
    refuse_any_layout,
    sinks_argument,
)
from attncheck.core.cases import Case

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs


def refuse(case: Case, device: Device) -> str:
    """Return why the packed function cannot run the case on `device`, or ""."""
    return refuse_any_layout(case, device)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with flash_attn_varlen_func."""
    from flash_attn.cute import flash_attn_varlen_func

    from attncheck.attention.calls.flash_attn import run_packed

    return run_packed(
        flash_attn_varlen_func, inputs, TITLE, sinks_argument(), **call_kwargs(inputs.case, deterministic)
    )


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it on the documents' tokens."""
    from attncheck.attention.calls.flash_attn import format_kwargs, packed_script_lines

    import_line = "from flash_attn.cute import flash_attn_varlen_func"
    return packed_script_lines(import_line, format_kwargs(case, None, sinks_argument()))


BACKEND = Backend(
    name="flash_attention_4_varlen",
    title="FlashAttention-4, packed",
    package=DISTRIBUTION,
    installed=installed,
    refuse=refuse,
    run=run,
    script_lines=script_lines,
    kernel_pattern=KERNEL_PATTERN,
    compiles=True,
    indexes_by_cu_seqlens=True,
    deterministic="deterministic=True",
    deterministic_switch="argument",
)
