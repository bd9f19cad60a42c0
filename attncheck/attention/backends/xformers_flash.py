"""xformers' FlashAttention-2 operator, pinned: `fmha.flash`.

It calls flash-attn's extension if flash_attn is installed (2.7.1 to 2.8.4), otherwise torch's own build (xformers
0.0.35, ops/fmha/flash.py), always with deterministic=False; its backward is marked IS_DETERMINISTIC = False. It
supports 16-bit dtypes and one head_dim, a multiple of 8 up to 256. It supports no tensor bias, and no top-left
alignment of unequal lengths.
"""

from typing import TYPE_CHECKING

from attncheck.attention.backends import Backend, Case, Device, Outputs, defer
from attncheck.attention.backends.xformers_cutlass import installed
from attncheck.attention.calls import flash_attn_package

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs


def refuse(case: Case, device: Device) -> str:
    """Return why the operator cannot run the case on `device`, or ""."""
    from attncheck.attention.calls import xformers

    reason = flash_attn_package.refuse(case, device)
    if reason:
        return reason
    if case.head_dim != case.v_head_dim:
        return "xformers' flash operator needs equal head_dim for q, k and v"
    if case.head_dim > 256 or case.head_dim % 8:
        return "xformers' flash operator takes a head_dim up to 256 that is a multiple of 8"
    if case.alibi:
        return "xformers' flash operator takes no bias, so no ALiBi"
    return xformers.refuse(case)


def run(inputs: "Inputs", deterministic: bool) -> Outputs:
    """Run the case with fmha.flash."""
    from xformers.ops.fmha import flash

    from attncheck.attention.calls import xformers

    return xformers.run(inputs, deterministic, (flash.FwOp, flash.BwOp))


BACKEND = Backend(
    name="xformers_flash",
    title="xformers, FlashAttention-2 operator",
    package="xformers",
    installed=installed,
    refuse=refuse,
    run=run,
    script_lines=defer("xformers:script_lines", "flash"),
    kernel_pattern=r"(pytorch_|\b)flash::flash_(fwd|bwd)_|xformers_flash|aten::_flash_attention_(forward|backward)",
    deterministic="nothing: its backward is called with deterministic=False",
    deterministic_switch="torch",
)
