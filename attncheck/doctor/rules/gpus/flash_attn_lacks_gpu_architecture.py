"""flash-attn is not compiled for a visible GPU.

What it checks: the machine code (SASS) and PTX inside flash_attn_2_cuda, read from the file, against every visible GPU
of sm_80 and newer. Machine code for sm_XY runs on the same major version with the same or a higher minor; PTX runs on
anything newer.

Why it matters: the first attention call raises "CUDA error: no kernel image is available for execution on the device".
flash-attn's default targets are 80, 90, 100 and 120, the last two only with nvcc 12.8 or newer, without PTX. An image
built with FLASH_ATTN_CUDA_ARCHS=90 supports only Hopper.

What to do: build it again for this GPU, or select sdpa.

Source: flash-attn 2.8.3 setup.py (`cuda_archs`, `cc_flag`); Dao-AILab/flash-attention#2168, #1785, #1763.
"""

from attncheck.doctor.fixes import flash_attn_fixes, install
from attncheck.doctor.knowledge.gpus import FLASH_ATTN_MIN_CAPABILITY, flash_attn_2_target, has_code_for
from attncheck.doctor.queries import gpus, may_import
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, only_if

MODULE = "flash_attn_2_cuda"


@only_if(may_import, "flash-attn")
def check(snapshot: Snapshot) -> Problems:
    extension = snapshot.binary(MODULE)
    if not isinstance(extension, Known) or not (extension.value.sass or extension.value.ptx):
        return
    targets = extension.value.sass + extension.value.ptx
    lacking = [
        gpu
        for gpu, capability in gpus.known_capabilities(gpus.visible_gpus(snapshot))
        if capability >= FLASH_ATTN_MIN_CAPABILITY and not has_code_for(targets, capability)
    ]
    for group in gpus.group_by_capability(lacking):
        yield Problem(
            message=f"flash-attn is built for {', '.join(targets)}, which does not run on {gpus.describe_gpus(group)}",
            subject="flash-attn",
            evidence=(f"static lane: {extension.value.path} has {', '.join(targets)}", *gpus.list_gpu_kinds(group)),
            fixes=_fixes(snapshot, gpus.known_capabilities(group)[0][1]),
        )


def _fixes(snapshot: Snapshot, capability: tuple[int, int]) -> tuple[Fix, ...]:
    """Return the ways to get a flash-attn with code for every visible GPU, then sdpa, which does not need it."""
    use_sdpa = install.set_attn_implementation(snapshot, "sdpa")
    fixes = flash_attn_fixes(snapshot) if flash_attn_2_target(capability) else ()
    return (*(fix for fix in fixes if fix != use_sdpa), use_sdpa)


RULE = Rule("ATN207", "error", check, needs=frozenset({"flash"}))
