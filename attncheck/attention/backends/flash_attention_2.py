"""flash-attn 2: `flash_attn_func`, `flash_attn_varlen_func` with cu_seqlens, and the Hub's build of both.

It takes fp16 and bf16, a head_dim up to 256 that q, k and v share, GQA, windows, ALiBi, and a soft-cap from 2.6
(flash-attn 2.8.3, flash_attn/flash_attn_interface.py, and csrc/flash_attn/flash_api.cpp `mha_fwd`). transformers, verl
and OpenRLHF train with the packed function. transformers uses `kernels-community/flash-attn2` for `flash_attention_2`
if flash-attn is not installed. Its functions are flash-attn's own (kernels-community of 2026-08-21,
flash-attn2/torch-ext/flash_attn2/flash_attn_interface.py). It has CPU and XPU builds as well, which are not used here.
Nothing is downloaded; loading it runs the code that the repository published, from the cache.
"""

from functools import partial
from typing import TYPE_CHECKING

from attncheck.attention.backends import Case, Device
from attncheck.attention.backends._flash_functions import flash_backend
from attncheck.attention.calls import flash_attn_package, hub_kernels, partial_builds

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs


installed = partial(flash_attn_package.find_distribution, "flash_attn", "flash-attn")


def refuse_any_layout(case: Case, device: Device, distribution: str = "flash-attn") -> str:
    """Return why neither function of flash-attn 2, as built by `distribution`, can run the case on `device`, or ""."""
    if case.sinks:
        return "flash-attn 2 has no sinks"
    if case.head_dim != case.v_head_dim:
        return "flash-attn 2 needs equal head_dim for q, k and v"
    if case.head_dim > 256:
        return "flash-attn 2 takes a head_dim up to 256"
    if case.softcap and case.dropout:
        return "flash-attn 2 has no soft-cap with dropout"
    return flash_attn_package.refuse(case, device) or partial_builds.refuse_flash_attn_2(case, device, distribution)


def call_kwargs(inputs: "Inputs", deterministic: bool) -> dict[str, object]:
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


def refuse(case: Case, device: Device, packed: bool) -> str:
    """Return why neither function of the installed flash-attn 2 can run the case on `device`, or ""."""
    return refuse_any_layout(case, device)


def refuse_hub(case: Case, device: Device, packed: bool) -> str:
    """Return why the Hub's build cannot run the case on `device`, or ""."""
    if device.kind == "cpu":
        return "attncheck runs Hub kernels on CUDA only"
    return refuse_any_layout(case, device, HUB)


KERNEL_PATTERN = r"\bflash::flash_|flash_attn::_flash_attn"  # without pytorch_flash::, which is torch's own build
DETERMINISTIC = "deterministic=True (transformers: FLASH_ATTENTION_DETERMINISTIC=1)"

HUB = "kernels-community/flash-attn2"

_make_backend = partial(
    flash_backend, call_kwargs=call_kwargs, kernel_pattern=KERNEL_PATTERN, deterministic=DETERMINISTIC
)
_make_installed = partial(_make_backend, source="flash_attn", installed=installed, refuse=refuse, package="flash-attn")
BACKENDS = (
    _make_installed("flash_attention_2", "flash-attn 2, dense"),
    _make_installed("flash_attention_2_varlen", "flash-attn 2, packed"),
    _make_backend(
        "hub_flash_attn_2",
        "flash-attn 2 from the Hugging Face Hub",
        HUB,
        partial(hub_kernels.find_repository, HUB),
        refuse_hub,
        package="kernels",
    ),
)
