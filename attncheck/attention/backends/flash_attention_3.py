"""FlashAttention-3, dense: `flash_attn_interface.flash_attn_func`, for Hopper.

Read in Dao-AILab/flash-attention at v2.7.0, v2.7.4, v2.8.0, v2.8.3 and main of 2026-08-15, hopper/setup.py (it builds
for sm_90a and, unless FLASH_ATTENTION_DISABLE_SM80, sm_80: nothing newer than Hopper can load it),
hopper/flash_api.cpp (`mha_fwd`, `mha_bwd`: 16-bit dtypes in training, a head_dim up to 256 and a multiple of 8, v's own
head_dim on Hopper only) and hopper/flash_attn_interface.py. No release has sinks, ALiBi or dropout; some return (out,
lse), v2.8.3 returns out alone, main has `return_attn_probs`. main refuses `deterministic` for a head_dim over 192, and
has attention chunks in the forward alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend, Device, Installed, Outputs
from attncheck.core.cases import Case

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs

TITLE = "FlashAttention-3"
MODULE = "flash_attn_interface"
DISTRIBUTIONS = ("flash-attn-3", "flashattn-hopper")


def installed() -> Installed:
    """Return the installed FlashAttention-3; v2.7's was distributed as flashattn-hopper."""
    from attncheck.attention.calls import flash_attn_package

    candidates = [flash_attn_package.find_distribution(MODULE, name) for name in DISTRIBUTIONS]
    return next((candidate for candidate in candidates if candidate.version not in ("", "unknown")), candidates[0])


def refuse(case: Case, device: Device) -> str:
    """Return why the dense function cannot run the case on `device`, or ""."""
    if case.layout != "dense":
        return "padding and packed documents are flash_attention_3_varlen's"
    return refuse_any_layout(case, device) or refuse_build(case, device, packed=False)


def refuse_any_layout(case: Case, device: Device, sinks: bool = False) -> str:
    """Return why neither function can run the case on `device`, or ""; `sinks` where this build has them."""
    from attncheck.attention.calls import flash_attn_package

    if case.sinks and not sinks:
        return f"{TITLE} has no sinks"
    if case.alibi or case.dropout:
        return f"{TITLE} has no ALiBi" if case.alibi else f"{TITLE} has no dropout"
    if device.compute_capability >= (10, 0):
        return f"{TITLE} is built for sm_90 and sm_80, nothing newer"
    return flash_attn_package.refuse(case, device) or _refuse_head_dim(case, device)


def refuse_build(case: Case, device: Device, packed: bool, distribution: str = DISTRIBUTIONS[0]) -> str:
    """Return what the case needs and the installed build lacks, or ""; `packed` where cu_seqlens are given."""
    from attncheck.attention.calls import partial_builds

    return partial_builds.refuse_flash_attn_3(case, device, distribution, packed)


def _refuse_head_dim(case: Case, device: Device) -> str:
    size, v_size = case.head_dim, case.v_head_dim
    if size % 8 or v_size % 8:
        return f"{TITLE} takes a head_dim that is a multiple of 8"
    if size > 256:
        return f"{TITLE} takes a head_dim up to 256"
    if size == v_size:
        return ""
    if device.compute_capability < (9, 0):
        return f"{TITLE} takes another head_dim for v on Hopper only"
    if not (128 < size <= 192 and 96 < v_size <= 128) and not (size <= 64 and v_size <= 512):
        return f"{TITLE} takes another head_dim for v at 129 to 192 with 97 to 128, or up to 64 with up to 512"
    if case.backward and v_size > 256:
        return f"{TITLE} has no backward for a head_dim over 256"
    return ""


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with flash_attn_func."""
    from flash_attn_interface import flash_attn_func

    from attncheck.attention.calls.flash_attn import run_dense

    return run_dense(flash_attn_func, inputs, TITLE, None, **call_kwargs(inputs.case, deterministic))


def call_kwargs(case: Case, deterministic: bool) -> dict[str, object]:
    """Return the keyword arguments of a call beyond softmax_scale and causal."""
    return {
        "window_size": case.window_size,
        "attention_chunk": case.attention_chunk,
        "softcap": case.softcap,
        "deterministic": deterministic,
        "return_attn_probs": True,
    }


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it."""
    from attncheck.attention.calls.flash_attn import dense_script_lines, format_kwargs

    return dense_script_lines("from flash_attn_interface import flash_attn_func", format_kwargs(case))


KERNEL_PATTERN = r"\bflash::(enable_sm\d+|FlashAttn(Fwd|Bwd)|prepare_varlen)|\bflash_attn_3::"
DETERMINISTIC = "deterministic=True, up to a head_dim of 192"

BACKEND = Backend(
    name="flash_attention_3",
    title="FlashAttention-3, dense",
    package="flash-attn-3",
    installed=installed,
    refuse=refuse,
    run=run,
    script_lines=script_lines,
    kernel_pattern=KERNEL_PATTERN,
    deterministic=DETERMINISTIC,
    deterministic_switch="argument",
    takes_chunks=True,
)
