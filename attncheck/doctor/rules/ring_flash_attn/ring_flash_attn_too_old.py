"""A newer ring-flash-attn works with this transformers; the installed one does not.

What it checks: the installed ring-flash-attn (0.1.0 to 0.1.7) and 0.1.8 against the installed transformers: the name
that the adapter imports, and the parameter counts that it supports.

Why it matters: the import raises ImportError, or `substitute_hf_flash_attn` asks to upgrade transformers, although
ring-flash-attn is the outdated package.

What to do: install ring-flash-attn 0.1.8. No other package has to change, because its metadata requires nothing.

Source: wheels of ring_flash_attn 0.1.0-0.1.8 (`adapters/hf_adapter.py`) and transformers 4.43.0-5.23.0;
zhuzilin/ring-flash-attention#42, #55.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import ring_flash_attn
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, Version, need, only_if


@only_if(Snapshot.has, "ring-flash-attn")
@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    ring = need(snapshot.version("ring-flash-attn"), "ring-flash-attn's version")
    transformers = need(snapshot.version("transformers"), "transformers' version")
    newest = Version(ring_flash_attn.LAST_RELEASE_READ)
    compatible = ring_flash_attn.compatible_transformers(ring)
    compatible_with_newest = ring_flash_attn.compatible_transformers(newest)
    if ring >= newest or requirements.is_version_allowed(compatible, transformers):
        return
    if not requirements.is_version_allowed(compatible_with_newest, transformers):
        return
    if _works_when_patched(snapshot, ring, transformers):
        return
    yield Problem(
        message=f"ring-flash-attn {ring} is too old for transformers {transformers}; {newest} works with it",
        subject=f"ring-flash-attn {ring}",
        evidence=(
            f"static lane: ring-flash-attn {ring} works with transformers {compatible}, "
            f"{newest} with {compatible_with_newest}",
        ),
        fixes=(install.install_packages(snapshot, f"ring-flash-attn=={newest}", options=("--no-deps",)),),
    )


def _works_when_patched(snapshot: Snapshot, ring: Version, transformers: Version) -> bool:
    """Return whether the import works, as it does after a patch, and the signature fits."""
    outcome = snapshot.imported("ring_flash_attn")
    imports = isinstance(outcome, Known) and outcome.value.outcome == "ok"
    parameter_count = ring_flash_attn.forward_parameter_count(transformers)
    return imports and parameter_count in ring_flash_attn.accepted_parameter_counts(ring)


RULE = Rule("ATN143", "error", check, needs=frozenset({"ring"}))
