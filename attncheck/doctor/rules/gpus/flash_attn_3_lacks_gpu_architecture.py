"""FlashAttention 3 is not compiled for a visible GPU.

What it checks: the machine code and PTX inside the extension of flash-attn-3 (or flashattn-hopper), read from the
file, against every visible GPU. Its Hopper code is for sm_90a and runs only on compute capability 9.0.

Why it matters: transformers accepts flash_attention_3 on any GPU of sm_80 or newer, and the first call then ends in
"no kernel image is available for execution on the device".

What to do: use flash_attention_2 or sdpa on this GPU.

Source: flash-attention hopper/setup.py (targets sm_80 and sm_90a); CUDA C++ Programming Guide,
"Architecture-specific features".
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.gpus import has_code_for
from attncheck.doctor.queries import gpus, may_import
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, only_if

DISTRIBUTIONS = ("flash-attn-3", "flashattn-hopper")


@only_if(may_import, "flash-attn-3")
def check(snapshot: Snapshot) -> Problems:
    extensions = [binary for binary in snapshot.binaries if binary.distribution in DISTRIBUTIONS]
    targets = tuple(sorted({target for binary in extensions for target in binary.sass + binary.ptx}))
    if not targets:
        return
    devices = gpus.known_capabilities(gpus.visible_gpus(snapshot))
    lacking = [gpu for gpu, capability in devices if not has_code_for(targets, capability)]
    for group in gpus.group_by_capability(lacking):
        alternative = "flash_attention_2" if snapshot.lists("flash-attn") else "sdpa"
        described = gpus.describe_gpus(group)
        yield Problem(
            message=f"flash-attn-3 is built for {', '.join(targets)}, which does not run on {described}",
            subject=extensions[0].distribution,
            evidence=(f"static lane: {extensions[0].path} has {', '.join(targets)}", *gpus.list_gpu_kinds(group)),
            fixes=(install.set_attn_implementation(snapshot, alternative),),
        )


RULE = Rule("ATN218", "warning", check, needs=frozenset({"flash"}))
