"""FlashAttention 4 cannot train on a visible GPU.

What it checks: the compute capability of every visible GPU against the range that flash-attn-4 4.0.0b36 accepts:
forward on 8.x to 12.x, backward on 9.x to 12.x. For other releases of the beta this is a prediction.

Why it matters: the first forward raises `AssertionError: Unsupported compute capability`. On Ampere and Ada, only the
first backward does.

What to do: use flash_attention_2 or sdpa on this GPU.

Source: flash_attn_4 4.0.0b36 flash_attn/cute/interface.py lines 845 (forward) and 2288 (backward).
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.gpus import FLASH_ATTN_4_BACKWARD, FLASH_ATTN_4_FORWARD, FLASH_ATTN_4_VERSION
from attncheck.doctor.queries import gpus, may_import
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, only_if


@only_if(may_import, "flash-attn-4")
def check(snapshot: Snapshot) -> Problems:
    package = snapshot.package("flash-attn-4")
    if not isinstance(package, Known):
        return
    version = package.value.version
    devices = gpus.known_capabilities(gpus.visible_gpus(snapshot))
    unsupported = [gpu for gpu, capability in devices if capability[0] not in FLASH_ATTN_4_BACKWARD]
    for group in gpus.group_by_capability(unsupported):
        has_forward = gpus.known_capabilities(group)[0][1][0] in FLASH_ATTN_4_FORWARD
        alternative = "flash_attention_2" if has_forward and snapshot.lists("flash-attn") else "sdpa"
        missing = "backward" if has_forward else "kernels"
        yield Problem(
            message=f"flash-attn-4 {version} has no {missing} for {gpus.describe_gpus(group)}",
            subject=f"flash-attn-4 {version}",
            evidence=(
                *gpus.list_gpu_kinds(group),
                *(
                    ()
                    if version == FLASH_ATTN_4_VERSION
                    else (f"according to the source of {FLASH_ATTN_4_VERSION}; this release was not read",)
                ),
            ),
            fixes=(install.set_attn_implementation(snapshot, alternative),),
            predicted=version != FLASH_ATTN_4_VERSION,
        )


RULE = Rule("ATN219", "warning", check, needs=frozenset({"flash"}))
