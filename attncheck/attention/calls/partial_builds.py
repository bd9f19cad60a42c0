"""The cases that a partial build of flash-attn 2 or FlashAttention-3 cannot run, by its recorded or compiled switches.

Read in Dao-AILab/flash-attention, hopper/setup.py (the switches) and hopper/flash_api_stable.cpp at 01d6dd1
(`get_max_headdim`, `round_up_headdim`: a head_dim uses the next larger one that was built; `run_mha_fwd`: another
head_dim for v, up to 64, has its own kernels, without which v is cut to 64 columns; `mha_bwd`: the larger of both
decides), and in flash-attn 2.8.3, csrc/flash_attn/flash_api.cpp. Leaving out PACKGQA, SPLIT, PAGEDKV, APPENDKV, CLUSTER
or HDIMDIFF192 changes which kernel runs a case, not whether one does.
"""

from collections.abc import Callable, Mapping

from attncheck.attention.backend import Device
from attncheck.core.cases import Case
from attncheck.core.environment import ExtensionBuild

# Switch of flash-attn 2 -> the feature that its build lacks, and the cases that need it.
FLASH_ATTN_2_SWITCHES: dict[str, tuple[str, Callable[[Case], bool]]] = {
    "BACKWARD": ("backward", lambda case: case.backward),
    "SOFTCAP": ("soft-cap", lambda case: case.softcap > 0),
    "DROPOUT": ("dropout", lambda case: case.dropout > 0),
    "LOCAL": ("windows", lambda case: case.windowed),
    "ALIBI": ("ALiBi", lambda case: case.alibi),
    "UNEVEN_K": ("head_dim that is not a multiple of 32", lambda case: case.head_dim % 32 != 0),
}
FLASH_ATTN_3_SWITCHES: dict[str, tuple[str, Callable[[Case], bool]]] = {
    "BACKWARD": ("backward", lambda case: case.backward),
    "FP16": ("fp16", lambda case: case.dtype == "float16"),
    "SOFTCAP": ("soft-cap", lambda case: case.softcap > 0),
    "LOCAL": ("windows or chunks", lambda case: case.windowed or case.attention_chunk > 0),
}


def find_build(device: Device, distribution: str) -> ExtensionBuild | None:
    """Return how `distribution` was built, None if it is unknown."""
    return next((build for build in device.builds if build.distribution == distribution), None)


def refuse_flash_attn_2(case: Case, device: Device, distribution: str = "flash-attn") -> str:
    """Return the feature that the case needs and this build of flash-attn 2 lacks, or ""."""
    build = find_build(device, distribution)
    return _refuse_switches(case, build, FLASH_ATTN_2_SWITCHES) if build is not None else ""


def refuse_flash_attn_3(case: Case, device: Device, distribution: str, packed: bool) -> str:
    """Return the feature that the case needs and this build of FlashAttention-3 lacks, or "".

    `packed` if cu_seqlens are given. `distribution` is "flash-attn-3", or the Hub repository of the build.
    """
    build = find_build(device, distribution)
    if build is None:
        return ""
    if packed and build.leaves_out("VARLEN"):
        return "this build does not support cu_seqlens (varlen)"
    if device.compute_capability < (9, 0) and build.leaves_out("SM8x"):
        return "this build has no kernels for sm_80 to sm_89"
    return _refuse_switches(case, build, FLASH_ATTN_3_SWITCHES) or _refuse_head_dim(case, build)


def _refuse_switches(
    case: Case, build: ExtensionBuild, switches: Mapping[str, tuple[str, Callable[[Case], bool]]]
) -> str:
    for switch, (feature, is_needed) in switches.items():
        if build.leaves_out(switch) and is_needed(case):
            return f"this build has no {feature}"
    return ""


def _refuse_head_dim(case: Case, build: ExtensionBuild) -> str:
    built = build.head_dims
    size, v_size = case.head_dim, case.v_head_dim
    needed = max(size, v_size) if case.backward else size
    if needed > max(built, default=0):
        return f"this build has no head_dim {needed} (it has {_join(built)})"
    serving = next(candidate for candidate in built if candidate >= size)
    has_wider_v = not (build.leaves_out("HDIM64") or build.leaves_out("HDIMDIFF64"))
    if v_size > serving and not has_wider_v:
        return f"this build has no head_dim {v_size} of v alongside {size} (it has the same for both)"
    return ""


def _join(sizes: tuple[int, ...]) -> str:
    if len(sizes) < 2:
        return str(sizes[0]) if sizes else "none"
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"
