"""The Hub's attention kernel is not built for a visible GPU.

What it checks: the kernel repository that the launch or the model's configuration names, and the one that
transformers uses in place of a flash attention that is not installed. The kernel's list of architectures is compared
with every visible GPU.

Why it matters: the kernel can be downloaded and loaded on any GPU. The first call then ends in "no kernel image is
available for execution on the device", after the model was loaded.

What to do: use another attention, or kernels-community/flash-attn2, which is built for sm_80 to sm_120.

Source: huggingface/kernels-community at 40d4194f, build.toml of each kernel (`cuda-capabilities`); CUDA C++ Programming
Guide, "Architecture-specific features"; karpathy/nanochat#820.
"""

from attncheck.doctor.fixes import set_attn_implementation, use_other_attention
from attncheck.doctor.knowledge.gpus import has_code_for
from attncheck.doctor.knowledge.hub_kernels import KERNEL_TARGETS
from attncheck.doctor.queries import (
    change_settings,
    find_redirect,
    find_requested_kernel,
    gpus,
    requested_implementation,
    requested_model,
)
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot

BROADEST = "kernels-community/flash-attn2"


def check(snapshot: Snapshot) -> Problems:
    requested = requested_implementation(snapshot)
    model = requested_model(snapshot)
    if model is not None and find_redirect(snapshot, model, requested):
        return  # ATN313
    kernel = find_requested_kernel(snapshot, requested)
    targets = KERNEL_TARGETS.get(kernel.repository, ()) if kernel is not None else ()
    if kernel is None or not targets:
        return
    devices = gpus.known_capabilities(gpus.visible_gpus(snapshot))
    lacking = [gpu for gpu, capability in devices if not has_code_for(targets, capability)]
    for group in gpus.group_by_capability(lacking):
        capability = group[0].compute_capability
        is_served = isinstance(capability, Known) and has_code_for(KERNEL_TARGETS[BROADEST], capability.value)
        others = (
            use_other_attention(snapshot, model, requested, "flash_attention_3", "flash_attention_4")
            if model is not None
            else (_use(snapshot, "sdpa"),)
        )
        yield Problem(
            message=f"{kernel} is built for {', '.join(targets)}, but not for {gpus.describe_gpus(group)}",
            subject=kernel.repository,
            evidence=(
                "according to its build.toml; its first call fails because no kernel image is available",
                *gpus.list_gpu_kinds(group),
            ),
            fixes=(*others, *((_use(snapshot, BROADEST),) if is_served and kernel.repository != BROADEST else ())),
        )


def _use(snapshot: Snapshot, name: str) -> Fix:
    if isinstance(snapshot.job, Known):
        return change_settings(f"use {name}", {"attn_implementation": name})
    return set_attn_implementation(snapshot, name)


RULE = Rule("ATN225", "error", check, needs=frozenset({"flash"}))
