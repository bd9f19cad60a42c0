"""flash_attention_2 would be a kernel downloaded from the Hub, not flash-attn.

What it checks: whether transformers (4.56 or newer) would download `kernels-community/flash-attn2` at load, because
flash_attention_2 is requested, flash-attn is missing and an accepted `kernels` is installed.

Why it matters: it is a different build with its own version, numerics and defects. It needs the network, and patches
that look for flash_attention_2 by name (sequence parallelism) may not affect it. Only one line of warning says so.
USE_HUB_KERNELS=0 does not prevent it.

What to do: install flash-attn, or request explicitly what should run: the kernel by its name and version, or sdpa.

Source: wheels of transformers 4.56.0-5.23.0, `modeling_utils.py` (FLASH_ATTN_KERNEL_FALLBACK) and
`modeling_flash_attention_utils.py`; huggingface/transformers#45399; huggingface/kernels#327.
"""

from attncheck.doctor.fixes import install, install_flash_attn_package
from attncheck.doctor.queries import (
    HubKernel,
    find_hub_fallback,
    find_redirect,
    is_hub_offline,
    requested_implementation,
)
from attncheck.doctor.rules import Known, MissingFact, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    kernel = find_hub_fallback(snapshot)
    if kernel is None:
        return
    if is_hub_offline(snapshot) and not kernel.is_cached(snapshot):
        raise MissingFact("the Hub is offline and the kernel is not cached", ("ATN158",))
    if requested_implementation(snapshot) not in ("", "flash_attention_2"):
        return
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    if model is not None and find_redirect(snapshot, model, "flash_attention_2"):
        return  # the class uses another kernel in any case: ATN313
    cached = "cached here" if kernel.is_cached(snapshot) else "not cached: it would be downloaded at load"
    yield Problem(
        message=f"flash_attention_2 would run {kernel} from the Hub, because flash-attn is not installed",
        subject="flash_attention_2",
        evidence=(f"kernels is installed and accepted; the repository is {cached}",),
        fixes=(
            *install_flash_attn_package(snapshot),
            install.set_attn_implementation(snapshot, _name_usable_kernel(snapshot, kernel)),
            install.set_attn_implementation(snapshot, "sdpa"),
        ),
    )


def _name_usable_kernel(snapshot: Snapshot, kernel: HubKernel) -> str:
    """Return the kernel with its version: 2 instead of 3, unless the model is known to work with 3 (ATN159)."""
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    is_grouped = model is None or model.num_kv_heads != model.num_heads
    return f"{kernel.repository}@v2" if kernel.version == "3" and is_grouped else str(kernel)


RULE = Rule("ATN157", "warning", check, needs=frozenset({"flash"}))
