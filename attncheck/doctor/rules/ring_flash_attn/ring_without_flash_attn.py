"""ring-flash-attn is installed without flash-attn.

What it checks: whether the distribution flash-attn is installed, which ring-flash-attn's metadata does not require.
flash-attn-4 alone is not enough: it has the package `flash_attn` but no `flash_attn.flash_attn_interface`.

Why it matters: `import ring_flash_attn` begins with `from flash_attn.flash_attn_interface import _flash_attn_forward`
and raises ModuleNotFoundError.

What to do: install flash-attn 2 for the installed torch.

Source: ring_flash_attn 0.1.8, `ring_flash_attn/ring_flash_attn.py` line 3 and METADATA (no Requires-Dist);
flash_attn_4 4.0.0b36, which contains only `flash_attn/cute`.
"""

from attncheck.doctor.fixes.flash_attn import install_flash_attn_package
from attncheck.doctor.queries import finds_stray_flash_attn, import_outcome, may_import
from attncheck.doctor.rules import MissingFact, Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    if not snapshot.has("ring-flash-attn") or snapshot.has("flash-attn"):
        return
    if not may_import(snapshot, "ring-flash-attn"):
        return  # the launch requests only flash-attn: ATN452
    if snapshot.has("openrlhf") and may_import(snapshot, "openrlhf"):
        raise MissingFact("OpenRLHF needs flash-attn too", ("ATN146", "ATN452"))
    outcome = import_outcome(snapshot, "ring_flash_attn")
    if outcome is not None and finds_stray_flash_attn(snapshot, outcome):
        return  # flash_attn belongs to no distribution
    attempt = outcome if outcome and "flash_attn" in outcome.message else None  # otherwise it failed before that import
    ring = need(snapshot.version("ring-flash-attn"), "ring-flash-attn's version")
    evidence = (
        f"import lane: {attempt.exception}: {attempt.message}" if attempt else "static lane: flash-attn was not found"
    )
    flash_attn_4_evidence = (
        ("flash-attn-4 is installed, but has no flash_attn_interface",) if snapshot.has("flash-attn-4") else ()
    )
    yield Problem(
        message=f"ring-flash-attn {ring} cannot be imported: flash-attn is not installed",
        subject=f"ring-flash-attn {ring}",
        evidence=(evidence, *flash_attn_4_evidence),
        fixes=install_flash_attn_package(snapshot),
    )


RULE = Rule("ATN142", "error", check, needs=frozenset({"flash", "ring"}))
