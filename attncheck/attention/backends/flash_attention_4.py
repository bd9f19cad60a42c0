"""FlashAttention-4: the two functions of `flash_attn.cute`, compiled by the CuTe DSL at first use.

Read in flash-attn-4 4.0.0b36, flash_attn/cute/interface.py: `_validate_head_dims` (Hopper: 8 to 256, multiples of 8,
independent for v; Blackwell: 8 to 128, or 192 with 128, 256 with 256, 64 with 512), `_flash_attn_fwd` (compute
capability 8.x to 12.x; sinks not on 8.x and 12.x: flash_fwd.py), `_flash_attn_bwd` (9.x to 12.x; 256 on Blackwell
without soft-cap and sinks; on 12.x without soft-cap and `deterministic`). It has no dropout, and ALiBi only as a
user-defined score_mod. Every new kind of case (dtype, head_dim, mask, kv groups) is compiled, which takes seconds.
flash-attn 2.8's wheel has an early copy of the same module, so only the distribution shows whether it is installed.
Kernel names: Dao-AILab/flash-attention#2564. cu_seqlens come after `qv` in its arguments, so all of them are passed by
name.
"""

import importlib.metadata
from functools import partial
from typing import TYPE_CHECKING

from attncheck.attention.backend import Device, Installed, SinksArgument
from attncheck.attention.backends._flash_functions import flash_backend
from attncheck.attention.calls import flash_attn_package
from attncheck.core.cases import UNBOUNDED, Case

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs

TITLE = "FlashAttention-4"
DISTRIBUTION = "flash-attn-4"
# The modules that flash_attn/cute imports, and the packages that provide them; a wheel installed with --no-deps lacks
# all of them.
REQUIRED_MODULES = {"cutlass": "nvidia-cutlass-dsl", "quack": "quack-kernels", "tvm_ffi": "apache-tvm-ffi"}


def installed() -> Installed:
    """Return the installed flash-attn-4 by its metadata: a search for `flash_attn.cute` would import flash_attn."""
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return Installed(missing=f"{DISTRIBUTION} is not installed")
    required = REQUIRED_MODULES.items()
    absent = [package for module, package in required if flash_attn_package.find_distribution(module, package).missing]
    if absent:
        return Installed(version, missing=f"{DISTRIBUTION} {version} needs {', '.join(absent)}, not installed here")
    return Installed(version)


def refuse(case: Case, device: Device, packed: bool) -> str:
    """Return why neither function can run the case on `device`, or ""."""
    if case.alibi or case.dropout:
        return f"{TITLE} takes ALiBi only as a score_mod" if case.alibi else f"{TITLE} has no dropout"
    reason = flash_attn_package.refuse(case, device)
    if reason:
        return reason
    major = device.compute_capability[0]
    if major > 12:
        return f"{TITLE} supports compute capabilities up to 12.x"
    if case.sinks and major in (8, 12):
        return f"{TITLE} has no sinks on sm_{major}x"
    if case.backward and major == 8:
        return f"{TITLE} has no backward on sm_8x"
    if case.backward and case.softcap and major == 12:
        return f"{TITLE} has no backward with soft-cap on sm_12x"
    return _refuse_head_dim(case, major)


def _refuse_head_dim(case: Case, major: int) -> str:
    size, v_size = case.head_dim, case.v_head_dim
    if size % 8 or v_size % 8:
        return f"{TITLE} takes a head_dim that is a multiple of 8"
    if major == 9 and not (8 <= size <= 256 and 8 <= v_size <= 256):
        return f"{TITLE} takes a head_dim from 8 to 256 on Hopper"
    if major not in (10, 11):
        return ""
    if not (max(size, v_size) <= 128 or (size, v_size) in ((192, 128), (256, 256), (64, 512), (512, 512))):
        return f"{TITLE} takes a head_dim up to 128 on Blackwell, or 192 with 128, 256 with 256"
    if case.backward and size == 256 and (case.softcap or case.sinks):
        return f"{TITLE} has no backward at a head_dim of 256 with soft-cap or sinks on Blackwell"
    return ""


def call_kwargs(inputs: "Inputs", deterministic: bool) -> dict[str, object]:
    """Return the keyword arguments beyond softmax_scale, causal and sinks; an open side of a window is None."""
    case = inputs.case
    return {
        "window_size": tuple(None if side == UNBOUNDED else side for side in case.window_size),
        "softcap": case.softcap,
        "deterministic": deterministic,
        "return_lse": True,
    }


_make_backend = partial(
    flash_backend,
    source="flash_attn.cute",
    installed=installed,
    refuse=refuse,
    call_kwargs=call_kwargs,
    sinks=SinksArgument("learnable_sink"),
    open_side=None,
    package=DISTRIBUTION,
    kernel_pattern=r"flash_attncute|FlashAttention(Forward|Backward)\w*Sm\d+",
    compiles=True,
    deterministic="deterministic=True",
)
BACKENDS = (
    _make_backend("flash_attention_4", "FlashAttention-4, dense"),
    _make_backend("flash_attention_4_varlen", "FlashAttention-4, packed"),
)
