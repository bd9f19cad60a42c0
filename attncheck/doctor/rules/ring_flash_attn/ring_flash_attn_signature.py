"""ring-flash-attn has no replacement for this transformers' attention function.

What it checks: how many parameters `transformers.modeling_flash_attention_utils._flash_attention_forward` has, from
the import lane or else from a table, against the counts for which the installed ring-flash-attn has a replacement
(0.1.8: 13, 18, 19, 20). transformers 5.19.0 changed from 20 to 23; 4.43 has 12.

Why it matters: `substitute_hf_flash_attn` raises "The current transformer version X is not supported. please use pip
install -U transformers to upgrade". The message is misleading: upgrading caused the failure, and the function prints
it for every error.

What to do: install the transformers that the finding names. Restoring the missing name, which helps under 5.5.0 to
5.18.0, does not help here.

Source: wheels of ring_flash_attn 0.1.0-0.1.8 (`adapters/hf_adapter.py`, check_params and the bare `except` of
substitute_hf_flash_attn) and transformers 4.43.0-5.23.0; zhuzilin/ring-flash-attention#61, #67; OpenRLHF/OpenRLHF#1222.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import ring_flash_attn
from attncheck.doctor.knowledge.transformers import LAST_RELEASE_READ
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, Version, need, only_if


@only_if(Snapshot.has, "ring-flash-attn")
@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    ring = need(snapshot.version("ring-flash-attn"), "ring-flash-attn's version")
    transformers = need(snapshot.version("transformers"), "transformers' version")
    measured = _measured_parameter_count(snapshot)
    count = measured or ring_flash_attn.forward_parameter_count(transformers)
    accepted_counts = ring_flash_attn.accepted_parameter_counts(ring)
    if not ring_flash_attn.is_known_release(ring) or count is None or count in accepted_counts:
        return
    newest = Version(ring_flash_attn.LAST_RELEASE_READ)
    newest_works = requirements.is_version_allowed(ring_flash_attn.compatible_transformers(newest), transformers)
    if ring < newest and newest_works:
        return  # ATN143: the newest ring-flash-attn works here
    accepted = ", ".join(map(str, sorted(accepted_counts)))
    yield Problem(
        message=f"ring-flash-attn {ring} expects a _flash_attention_forward of {accepted} parameters, but that of "
        f"transformers {transformers} has {count}",
        subject=f"ring-flash-attn {ring}",
        evidence=_evidence(snapshot, ring, count, measured),
        fixes=tuple(_fixes(snapshot, ring)),
        predicted=measured is None and transformers > Version(LAST_RELEASE_READ),
    )


def _measured_parameter_count(snapshot: Snapshot) -> int | None:
    if not isinstance(snapshot.interfaces, Known):
        return None
    return len(snapshot.interfaces.value.signatures.get(ring_flash_attn.FORWARD_FUNCTION, ())) or None


def _evidence(snapshot: Snapshot, ring: Version, count: int, measured: int | None) -> tuple[str, ...]:
    lane = "import lane" if measured else "static lane, from the table of versions"
    lines = [f"{lane}: {count} parameters", "its error says to upgrade transformers, which does not help"]
    symbol, releases = ring_flash_attn.imported_name(ring)
    outcome = snapshot.imported("ring_flash_attn")
    imports = isinstance(outcome, Known) and outcome.value.outcome == "ok"
    transformers = need(snapshot.version("transformers"), "transformers' version")
    if not imports and not requirements.is_version_allowed(releases, transformers):
        lines.append(f"`import ring_flash_attn` fails earlier: it imports {symbol}, which is missing too")
    return tuple(lines)


def _fixes(snapshot: Snapshot, ring: Version) -> Iterator[Fix]:
    ring_requirements = (
        (f"ring-flash-attn=={ring_flash_attn.LAST_RELEASE_READ}",)
        if ring < Version(ring_flash_attn.LAST_RELEASE_READ)
        else ()
    )
    compatible = requirements.resolve_transformers(snapshot, ring_flash_attn.COMPATIBLE_TRANSFORMERS["0.1.8"])
    shimmed = requirements.resolve_transformers(snapshot, ring_flash_attn.COMPATIBLE_WITH_SHIM)
    with_shim = (f"transformers{ring_flash_attn.COMPATIBLE_WITH_SHIM}", *ring_requirements)
    if shimmed and snapshot.lists("openrlhf"):
        yield install.install_packages(
            snapshot,
            *shimmed,
            *ring_requirements,
            title="use a transformers that OpenRLHF adapts to",
            allows=with_shim,
        )
    if compatible:
        allows = (f"transformers{ring_flash_attn.COMPATIBLE_TRANSFORMERS['0.1.8']}", *ring_requirements)
        yield install.install_packages(snapshot, *compatible, *ring_requirements, allows=allows)
    elif shimmed and not snapshot.lists("openrlhf"):
        yield install.install_packages(snapshot, *shimmed, *ring_requirements, allows=with_shim)
        title = "and restore the missing name before the import"
        yield Fix(title, "edit", ring_flash_attn.SHIM_CODE, "safe", follows=True)


RULE = Rule("ATN141", "error", check, needs=frozenset({"ring"}))
