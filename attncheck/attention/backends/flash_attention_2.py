"""flash-attn 2, dense: `flash_attn_func` on (batch, seqlen, heads, head_dim).

It takes fp16 and bf16, a head_dim up to 256 that q, k and v share, GQA, windows, ALiBi, and a soft-cap from 2.6
(flash-attn 2.8.3, flash_attn/flash_attn_interface.py, and csrc/flash_attn/flash_api.cpp `mha_fwd`); padding and packed
documents are `flash_attention_2_varlen`'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend, Device, Installed, Outputs
from attncheck.core.cases import Case

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs


def installed() -> Installed:
    """Return the installed flash-attn."""
    from attncheck.attention.calls import flash_attn_package

    return flash_attn_package.find_distribution("flash_attn", "flash-attn")


def refuse(case: Case, device: Device) -> str:
    """Return why the dense function cannot run the case on `device`, or ""."""
    if case.layout != "dense":
        return "padding and packed documents are flash_attention_2_varlen's"
    return refuse_any_layout(case, device)


def refuse_any_layout(case: Case, device: Device, distribution: str = "flash-attn") -> str:
    """Return why neither function of flash-attn 2, as `distribution` built it, can run the case on `device`, or ""."""
    from attncheck.attention.calls import flash_attn_package, partial_builds

    if case.sinks:
        return "flash-attn 2 has no sinks"
    if case.head_dim != case.v_head_dim:
        return "flash-attn 2 needs equal head_dim for q, k and v"
    if case.head_dim > 256:
        return "flash-attn 2 takes a head_dim up to 256"
    if case.softcap and case.dropout:
        return "flash-attn 2 has no soft-cap with dropout"
    return flash_attn_package.refuse(case, device) or partial_builds.refuse_flash_attn_2(case, device, distribution)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with flash_attn_func."""
    from flash_attn import flash_attn_func

    from attncheck.attention.calls.flash_attn import run_dense

    kwargs = call_kwargs(inputs, deterministic)
    return drop_shifted_lse(inputs.case, run_dense(flash_attn_func, inputs, "flash-attn 2", None, **kwargs))


def call_kwargs(inputs: Inputs, deterministic: bool) -> dict[str, object]:
    """Return the keyword arguments of a call beyond softmax_scale and causal."""
    case = inputs.case
    return {
        "dropout_p": case.dropout,
        "window_size": case.window_size,
        "softcap": case.softcap,
        "alibi_slopes": inputs.slopes,
        "deterministic": deterministic,
        "return_attn_probs": True,
    }


def drop_shifted_lse(case: Case, outputs: Outputs) -> Outputs:
    """Return the outputs without LSE where that is not the softmax's own.

    With ALiBi and a causal mask flash-attn adds slope × key instead of the relative bias (csrc/flash_attn/src/alibi.h):
    the softmax is the same, its LSE is shifted by a multiple of the row.
    """
    return replace(outputs, lse=None) if case.alibi and case.causal else outputs


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it."""
    from attncheck.attention.calls.flash_attn import dense_script_lines, format_kwargs

    return dense_script_lines("from flash_attn import flash_attn_func", format_kwargs(case))


KERNEL_PATTERN = r"\bflash::flash_|flash_attn::_flash_attn"  # not pytorch_flash::, which is torch's own build
DETERMINISTIC = "deterministic=True (transformers: FLASH_ATTENTION_DETERMINISTIC=1)"

BACKEND = Backend(
    name="flash_attention_2",
    title="flash-attn 2, dense",
    package="flash-attn",
    installed=installed,
    refuse=refuse,
    run=run,
    script_lines=script_lines,
    kernel_pattern=KERNEL_PATTERN,
    deterministic=DETERMINISTIC,
    deterministic_switch="argument",
)
