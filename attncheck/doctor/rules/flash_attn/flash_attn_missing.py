"""flash-attn is not installed.

What it checks: whether flash-attn 2 is installed if it is needed: `--profile` requests it, or verl is installed,
whose default is flash_attention_2. It is not reported if flash-attn-3 or flash-attn-4 is installed, if the Hub's
kernel would replace it (ATN157, ATN158), or if OpenRLHF or ring-flash-attn need it (ATN146, ATN142).

Why it matters: `attn_implementation="flash_attention_2"` raises ImportError at load.

What to do: if a wheel is published for this torch, CUDA, Python and machine, the finding names it; it installs in
seconds. Otherwise the finding has the source build, with the number of jobs for this memory and the approximate time.

Source: attncheck/doctor/knowledge/flash_attn_wheels.py; verl 0.9.1 (`utils/model.py`).
"""

from attncheck.doctor.fixes.flash_attn import (
    describe_wheel_tags,
    find_published_wheel,
    flash_attn_fixes,
    required_wheel_tags,
)
from attncheck.doctor.queries import can_import, find_hub_fallback, need_torch
from attncheck.doctor.rules import Known, MissingFact, Problem, Problems, Rule, Snapshot

FLASH_ATTN_PACKAGES = ("flash-attn", "flash-attn-3", "flash-attn-4")
REPORTED_ELSEWHERE = ("ATN142", "ATN146", "ATN157", "ATN158")  # rules about its importer or its replacement


def check(snapshot: Snapshot) -> Problems:
    if snapshot.has(*FLASH_ATTN_PACKAGES) or can_import(snapshot, "flash_attn"):
        return
    need_torch(snapshot)
    if isinstance(snapshot.torch, Known) and isinstance(snapshot.torch.value.hip, Known):
        return  # ROCm's flash-attn has its own sources
    if snapshot.has("openrlhf", "ring-flash-attn") or find_hub_fallback(snapshot) is not None:
        raise MissingFact("packages that need flash-attn report that it is not installed", REPORTED_ELSEWHERE)
    yield Problem(
        message="flash-attn is not installed" + _describe_availability(snapshot),
        subject="flash-attn",
        evidence=(f"this environment: {describe_wheel_tags(snapshot)}",),
        fixes=flash_attn_fixes(snapshot),
        predicted=not snapshot.visible_devices(),
    )


def _describe_availability(snapshot: Snapshot) -> str:
    if required_wheel_tags(snapshot) is None:
        return ""
    wheel = find_published_wheel(snapshot)
    return f"; a wheel of {wheel.version} is published for this torch" if wheel else "; only a source build is possible"


RULE = Rule("ATN109", "error", check, needs=frozenset({"flash"}), general=True)
