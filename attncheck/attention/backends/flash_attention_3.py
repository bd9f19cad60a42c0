"""FlashAttention-3, for Hopper: the two functions of `flash_attn_interface`, and two builds of them on the Hub.

Read in Dao-AILab/flash-attention at v2.7.0, v2.7.4, v2.8.0, v2.8.3 and main of 2026-08-15: hopper/setup.py (it builds
for sm_90a and, unless FLASH_ATTENTION_DISABLE_SM80, sm_80; newer GPUs than Hopper cannot load it), hopper/flash_api.cpp
(`mha_fwd`, `mha_bwd`: 16-bit dtypes in training, a head_dim up to 256 that is a multiple of 8, another head_dim for v
only on Hopper) and hopper/flash_attn_interface.py. No release has sinks, ALiBi or dropout. Some return (out, lse),
v2.8.3 returns only out, main has `return_attn_probs`. main refuses `deterministic` for a head_dim over 192, and has
attention chunks only in forward. v2.7.4's packed function also requires `seqused_q` and `seqused_k`, which are None for
whole documents.

Nothing is downloaded from the Hub; loading a kernel runs the code that its repository published, from the cache. Read
in kernels-community of 2026-08-21: flash-attn3's functions and limits are FlashAttention-3's own (build.toml: sm_80 and
sm_90a, and torch-ext/flash_attn3/flash_attn_interface.py). vllm-flash-attn3 has sinks, `s_aux`, only in bfloat16
(flash-attn/flash_api_stable.cpp). They have no gradient, since backward returns None for them. It also cuts dq and dk
to v's head_dim, so it cannot train a model if that is smaller (torch-ext/vllm_flash_attn3/flash_attn_interface.py).
"""

from functools import partial
from typing import TYPE_CHECKING

from attncheck.attention.backends import Case, Device, Installed, SinksArgument
from attncheck.attention.backends._flash_functions import flash_backend
from attncheck.attention.calls import flash_attn_package
from attncheck.attention.calls.hub_kernels import find_repository
from attncheck.attention.calls.partial_builds import refuse_flash_attn_3

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs

TITLE = "FlashAttention-3"
MODULE = "flash_attn_interface"
DISTRIBUTIONS = ("flash-attn-3", "flashattn-hopper")


def installed() -> Installed:
    """Return the installed FlashAttention-3; v2.7's was distributed as flashattn-hopper."""
    candidates = [flash_attn_package.find_distribution(MODULE, name) for name in DISTRIBUTIONS]
    return next((candidate for candidate in candidates if candidate.version not in ("", "unknown")), candidates[0])


def refuse(case: Case, device: Device, packed: bool) -> str:
    """Return why the installed functions cannot run the case on `device`, or ""."""
    return refuse_any_layout(case, device) or refuse_flash_attn_3(case, device, DISTRIBUTIONS[0], packed)


def refuse_hub(case: Case, device: Device, packed: bool) -> str:
    """Return why the Hub's build cannot run the case on `device`, or ""."""
    return refuse_any_layout(case, device) or refuse_flash_attn_3(case, device, HUB, packed)


def refuse_vllm_hub(case: Case, device: Device, packed: bool) -> str:
    """Return why vLLM's build on the Hub cannot run the case on `device`, or ""."""
    if case.backward and case.head_dim > case.v_head_dim:
        return "vllm-flash-attn3 cuts dq and dk to v's head_dim, so it has no backward if that is smaller"
    if case.sinks and (case.num_heads > 64 or case.head_dim != case.v_head_dim):
        return "vllm-flash-attn3 takes sinks for up to 64 heads and equal head_dim for q, k and v"
    if case.sinks and device.compute_capability != (9, 0):
        return "vllm-flash-attn3 takes sinks on sm_90 only"
    return refuse_any_layout(case, device, sinks=True) or refuse_flash_attn_3(case, device, VLLM_HUB, packed)


def refuse_any_layout(case: Case, device: Device, sinks: bool = False) -> str:
    """Return why neither function can run the case on `device`, or ""; `sinks`: whether this build has them."""
    if case.sinks and not sinks:
        return f"{TITLE} has no sinks"
    if case.alibi or case.dropout:
        return f"{TITLE} has no ALiBi" if case.alibi else f"{TITLE} has no dropout"
    if device.compute_capability >= (10, 0):
        return f"{TITLE} is built for sm_80 and sm_90 only"
    return flash_attn_package.refuse(case, device) or _refuse_head_dim(case, device)


def _refuse_head_dim(case: Case, device: Device) -> str:
    size, v_size = case.head_dim, case.v_head_dim
    if size % 8 or v_size % 8:
        return f"{TITLE} takes a head_dim that is a multiple of 8"
    if size > 256:
        return f"{TITLE} takes a head_dim up to 256"
    if size == v_size:
        return ""
    if device.compute_capability < (9, 0):
        return f"{TITLE} takes a different head_dim for v on Hopper only"
    if not (128 < size <= 192 and 96 < v_size <= 128) and not (size <= 64 and v_size <= 512):
        return f"{TITLE} takes a different head_dim for v only at 129 to 192 with 97 to 128, or up to 64 with up to 512"
    if case.backward and v_size > 256:
        return f"{TITLE} has no backward for a head_dim over 256"
    return ""


def call_kwargs(inputs: "Inputs", deterministic: bool) -> dict[str, object]:
    """Return the keyword arguments of a call beyond softmax_scale and causal."""
    case = inputs.case
    return {
        "window_size": case.window_size,
        "attention_chunk": case.attention_chunk,
        "softcap": case.softcap,
        "deterministic": deterministic,
        "return_attn_probs": True,
        "seqused_q": None,
        "seqused_k": None,
    }


HUB, VLLM_HUB = "kernels-community/flash-attn3", "kernels-community/vllm-flash-attn3"

_make_backend = partial(
    flash_backend,
    call_kwargs=call_kwargs,
    kernel_pattern=r"\bflash::(enable_sm\d+|FlashAttn(Fwd|Bwd)|prepare_varlen)|\bflash_attn_3::",
    deterministic="deterministic=True, for a head_dim up to 192",
    takes_chunks=True,
)
_make_installed = partial(_make_backend, source=MODULE, installed=installed, refuse=refuse, package="flash-attn-3")
_make_hub = partial(_make_backend, package="kernels")
BACKENDS = (
    _make_installed("flash_attention_3", "FlashAttention-3, dense"),
    _make_installed("flash_attention_3_varlen", "FlashAttention-3, packed"),
    _make_hub(
        "hub_flash_attn_3",
        "FlashAttention-3 from the Hugging Face Hub",
        HUB,
        partial(find_repository, HUB),
        refuse=refuse_hub,
    ),
    _make_hub(
        "hub_vllm_flash_attn_3",
        "vLLM's FlashAttention-3 from the Hugging Face Hub",
        VLLM_HUB,
        partial(find_repository, VLLM_HUB),
        refuse=refuse_vllm_hub,
        sinks=SinksArgument("s_aux", "bfloat16", has_gradient=False),
    ),
)
