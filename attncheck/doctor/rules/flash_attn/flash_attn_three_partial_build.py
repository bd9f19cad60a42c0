"""flash_attention_3 is requested, but this build of flash-attn-3 lacks features that the model or the job needs.

What it checks: the build switches that flash-attn-3 recorded (flash_attn_config.py, which is read and not run): head
sizes, backward, float16, sliding windows, soft-capping, packed batches. A head size uses the kernel of the next
larger size that was built.

Why it matters: builds of flash-attn-3 omit features to shorten an hour of compiling. The missing kernel is a
RuntimeError at the first step, or a segmentation fault: head sizes 192 and 256 on a build for 64 and 128 ended in
SIGSEGV on one H200.

What to do: use another attention, or build flash-attn-3 again without the switch.

Source: flash-attn-3 3.0.0 built on one H200, `flash_attn_3/flash_attn_config.py`, and Dao-AILab/flash-attention,
hopper/setup.py (the variables) and hopper/flash_api.cpp (`round_up_headdim`, the checks). sdpa and flash_attention_2
were run there on the same head sizes; the build without the switch was not tried.
"""

from collections.abc import Iterator

from attncheck.core.environment import FLASH_ATTN_3_HEAD_DIMS, ExtensionBuild
from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.queries.launch import requested_implementation
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, need

NAME = "flash_attention_3"
PREFIX = "FLASHATTENTION_DISABLE_"


def check(snapshot: Snapshot) -> Problems:
    build = snapshot.build("flash-attn-3")
    if not isinstance(build, Known) or requested_implementation(snapshot) != NAME:
        return
    version = need(snapshot.package("flash-attn-3"), "flash-attn-3").version
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    wants = dict(_list_wants(snapshot, model, build.value))
    for switch, purpose in wants.items():
        if build.value.leaves_out(switch):
            yield Problem(
                message=f"this build of flash-attn-3 {version} lacks {purpose}",
                subject=f"flash-attn-3 {version}",
                evidence=(f"flash_attn_config.py: {PREFIX}{switch} = True",),
                fixes=(*(use_other_attention(snapshot, model, NAME) if model else ()), _build_again(switch)),
            )


def _list_wants(snapshot: Snapshot, model: Model | None, build: ExtensionBuild) -> Iterator[tuple[str, str]]:
    """Yield the switches that must not be set, each with the feature that needs it."""
    yield "BACKWARD", "the backward pass, which training needs"
    plan = snapshot.job.value.plan if isinstance(snapshot.job, Known) else None
    if plan is not None and plan.precision == "fp16":
        yield "FP16", "float16, which the job uses"
    if plan is not None:
        yield "VARLEN", "packed and padded batches, which transformers computes with varlen"
    if model is None:
        return
    if isinstance(model.sliding_window, Known):
        yield "LOCAL", f"sliding windows, which {model.model_type} has"
    if isinstance(model.softcap, Known):
        yield "SOFTCAP", f"soft-capping, which {model.model_type} has"
    largest = max(build.head_dims, default=0)
    head_dim = max(model.head_dims, default=0)
    if head_dim > largest:
        switch = next((dim for dim in FLASH_ATTN_3_HEAD_DIMS if dim >= head_dim), FLASH_ATTN_3_HEAD_DIMS[-1])
        yield f"HDIM{switch}", f"head size {head_dim} of {model.model_type}: the largest it supports is {largest}"


def _build_again(switch: str) -> Fix:
    text = f"FLASH_ATTENTION_DISABLE_{switch}=FALSE python setup.py install  # in hopper/ of the sources you built from"
    return Fix(f"or build it again with {switch} (not tried here)", "command", text)


RULE = Rule("ATN168", "error", check)
