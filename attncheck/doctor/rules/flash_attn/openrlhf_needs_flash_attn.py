"""OpenRLHF is installed without flash-attn.

What it checks: whether flash-attn is installed alongside openrlhf. If importing `openrlhf.models` was tried, its
outcome decides.

Why it matters: `openrlhf.models` always imports flash_attn. OpenRLHF therefore stops with "No module named
'flash_attn'", even with sdpa, without packing or without a GPU.

What to do: install the flash-attn it pins (2.8.3), even if it will not be used.

Source: openrlhf 0.11.2, `openrlhf/models/ring_attn_utils.py` lines 3-4 and METADATA (`flash-attn==2.8.3`);
OpenRLHF/OpenRLHF#790, #538.
"""

from attncheck.doctor.fixes.flash_attn import install_flash_attn_package
from attncheck.doctor.queries import finds_stray_flash_attn, import_outcome, may_import
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    if not snapshot.has("openrlhf") or snapshot.has("flash-attn") or not may_import(snapshot, "openrlhf"):
        return
    if isinstance(snapshot.job, Known) and "flash_attn" in snapshot.job.value.imports:
        return  # ATN452 reports this for the launch
    outcome = import_outcome(snapshot, "openrlhf.models")
    if outcome is not None and finds_stray_flash_attn(snapshot, outcome):
        return  # flash_attn belongs to no distribution
    attempt = outcome if outcome and "flash_attn" in outcome.message else None  # otherwise it failed before that import
    openrlhf = need(snapshot.package("openrlhf"), "openrlhf")
    evidence = (
        f"import lane: {attempt.exception}: {attempt.message}" if attempt else "static lane: flash-attn was not found"
    )
    yield Problem(
        message=(f"OpenRLHF {openrlhf.version} cannot start: it always imports flash-attn, which is not installed"),
        subject=f"openrlhf {openrlhf.version}",
        evidence=(evidence,),
        fixes=install_flash_attn_package(snapshot),
    )


RULE = Rule("ATN146", "error", check)
