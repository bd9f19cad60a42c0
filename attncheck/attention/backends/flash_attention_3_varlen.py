"""FlashAttention-3, packed: `flash_attn_interface.flash_attn_varlen_func` with cu_seqlens, as transformers uses it.

Padded and dense cases are unpadded first and put back afterwards. What it can do is flash_attention_3's list; sources
are named there. v2.7.4 asks for `seqused_q` and `seqused_k` too, which are None for whole documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend, Device, Outputs
from attncheck.attention.backends.flash_attention_3 import (
    DETERMINISTIC,
    KERNEL_PATTERN,
    TITLE,
    call_kwargs,
    installed,
    refuse_any_layout,
    refuse_build,
)
from attncheck.core.cases import Case

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs


def refuse(case: Case, device: Device) -> str:
    """Return why the packed function cannot run the case on `device`, or ""."""
    return refuse_any_layout(case, device) or refuse_build(case, device, packed=True)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with flash_attn_varlen_func."""
    from flash_attn_interface import flash_attn_varlen_func

    from attncheck.attention.calls.flash_attn import run_packed

    whole_documents = {"seqused_q": None, "seqused_k": None}
    return run_packed(
        flash_attn_varlen_func, inputs, TITLE, None, **call_kwargs(inputs.case, deterministic), **whole_documents
    )


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it on the documents' tokens."""
    from attncheck.attention.calls.flash_attn import format_kwargs, packed_script_lines

    import_line = "from flash_attn_interface import flash_attn_varlen_func"
    return packed_script_lines(import_line, format_kwargs(case))


BACKEND = Backend(
    name="flash_attention_3_varlen",
    title="FlashAttention-3, packed",
    package="flash-attn-3",
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
