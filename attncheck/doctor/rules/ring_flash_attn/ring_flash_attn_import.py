"""ring-flash-attn cannot be imported under this transformers.

What it checks: the name that ring-flash-attn's adapter imports from `transformers.modeling_flash_attention_utils`
against the installed transformers. Both are read from their files, or for a --target from a table of releases. 0.1.8
needs `is_flash_attn_greater_or_equal_2_10`, which that module has only in transformers 4.51.0 to 5.3.0. 0.1.7 and
older need `_flash_supports_window` or `_flash_supports_window_size`. If the import worked, or failed at that name,
its outcome decides. If it failed earlier, for example in flash-attn, the files decide.

Why it matters: `import ring_flash_attn` raises ImportError, even for a script that never uses the adapter, and
frameworks report it as "ring_flash_attn is not installed". The adapter's `except ImportError` retries the same name.

What to do: run the install command of the finding. Under transformers 5.5.0 to 5.18.0, restoring the name before the
import works too; OpenRLHF 0.11.2 and axolotl do so themselves. transformers 5.4.x has it in neither place.

Source: wheels of ring_flash_attn 0.1.0-0.1.8 (`adapters/hf_adapter.py`) and transformers 4.42.4-5.23.0;
OpenRLHF/OpenRLHF#1222; zhuzilin/ring-flash-attention#80, #88.
"""

from collections.abc import Iterator

from attncheck.core.links import UnresolvedName
from attncheck.core.plan import RING_NAMES
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import ring_flash_attn
from attncheck.doctor.queries import import_outcome, package_links, requirements
from attncheck.doctor.rules import Fix, ImportOutcome, Known, Problem, Problems, Rule, Snapshot, Version, need, only_if

MODULE = "transformers.modeling_flash_attention_utils"


@only_if(Snapshot.has, "ring-flash-attn")
@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    ring = need(snapshot.version("ring-flash-attn"), "ring-flash-attn's version")
    transformers = need(snapshot.version("transformers"), "transformers' version")
    attempt = _find_telling_attempt(snapshot)
    symbol = _failing_symbol(snapshot, ring, transformers, attempt)
    if not symbol or _is_reported_elsewhere(snapshot, ring, transformers):
        return
    yield Problem(
        message=(
            f"ring-flash-attn {ring} imports {symbol} from transformers, and transformers "
            f"{transformers} no longer has it in that module"
        ),
        subject=f"ring-flash-attn {ring}",
        evidence=_evidence(snapshot, ring, transformers, attempt),
        fixes=tuple(_fixes(snapshot, ring, transformers)),
    )


def _find_telling_attempt(snapshot: Snapshot) -> ImportOutcome | None:
    """Return how the import ended, if it reached the name: it succeeded or failed there."""
    outcome = import_outcome(snapshot, "ring_flash_attn")
    if outcome is None or outcome.outcome == "ok":
        return outcome
    is_about_name = f"from '{MODULE}'" in outcome.message and "cannot import name" in outcome.message
    return outcome if outcome.outcome == "raised" and is_about_name else None


def _failing_symbol(snapshot: Snapshot, ring: Version, transformers: Version, attempt: ImportOutcome | None) -> str:
    """Return the name whose import fails, or "". The import lane takes precedence over files, and files over tables."""
    symbol, releases = ring_flash_attn.imported_name(ring)
    if attempt is not None:
        return attempt.message.split("'")[1] if attempt.outcome == "raised" else ""
    if isinstance(snapshot.links, Known):
        return next((link.name for link in package_links(snapshot) if _is_the_name(link)), "")
    is_missing = not requirements.is_version_allowed(releases, transformers)
    return symbol if ring_flash_attn.is_known_release(ring) and is_missing else ""


def _is_the_name(link: UnresolvedName) -> bool:
    return link.consumer == "ring-flash-attn" and link.source == MODULE and "ring_flash_attn" in link.breaks


def _is_reported_elsewhere(snapshot: Snapshot, ring: Version, transformers: Version) -> bool:
    """Return whether ATN141 (wrong signature too), ATN143 (a newer ring works) or ATN145 (OpenRLHF) reports it.

    Nothing is wrong if the launch's framework restores the name itself.
    """
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    is_shimmed = requirements.is_version_allowed(ring_flash_attn.COMPATIBLE_WITH_SHIM, transformers)
    if job and RING_NAMES in job.plan.shims and is_shimmed:
        return True
    if snapshot.lists("openrlhf") and requirements.is_version_allowed(ring_flash_attn.WITHOUT_SYMBOL, transformers):
        return True
    newest = Version(ring_flash_attn.LAST_RELEASE_READ)
    newest_works = requirements.is_version_allowed(ring_flash_attn.compatible_transformers(newest), transformers)
    if ring < newest and newest_works:
        return True
    parameter_count = ring_flash_attn.forward_parameter_count(transformers)
    is_accepted = parameter_count in ring_flash_attn.accepted_parameter_counts(ring)
    return ring_flash_attn.is_known_release(ring) and not is_accepted


def _evidence(
    snapshot: Snapshot, ring: Version, transformers: Version, attempt: ImportOutcome | None
) -> tuple[str, ...]:
    is_read = isinstance(snapshot.links, Known)
    lines = ["static lane: from the installed files" if is_read else "static lane: from the table of versions"]
    if attempt:
        lines = [f"import lane: {attempt.exception}: {attempt.message}"]
    if ring_flash_attn.is_known_release(ring):
        lines.append(f"ring-flash-attn {ring} works with transformers {ring_flash_attn.compatible_transformers(ring)}")
    if snapshot.lists("openrlhf") and requirements.is_version_allowed(
        ring_flash_attn.COMPATIBLE_WITH_SHIM, transformers
    ):
        lines.append("OpenRLHF 0.11.2 restores the name itself, so its import works; a direct import does not")
    return tuple(lines)


def _fixes(snapshot: Snapshot, ring: Version, transformers: Version) -> Iterator[Fix]:
    newest = Version(ring_flash_attn.LAST_RELEASE_READ)
    ring_requirements = (f"ring-flash-attn=={newest}",) if ring < newest else ()
    compatible = ring_flash_attn.COMPATIBLE_TRANSFORMERS["0.1.8"]
    transformers_requirements = requirements.resolve_transformers(snapshot, compatible)
    if transformers_requirements:
        allows = (f"transformers{compatible}", *ring_requirements)
        yield install.install_packages(snapshot, *transformers_requirements, *ring_requirements, allows=allows)
    if requirements.is_version_allowed(ring_flash_attn.COMPATIBLE_WITH_SHIM, transformers) and not ring_requirements:
        allows = (f"transformers{ring_flash_attn.COMPATIBLE_WITH_SHIM}",)
        yield Fix("restore the name before the import", "edit", ring_flash_attn.SHIM_CODE, "safe", allows=allows)
    elif not transformers_requirements:
        yield from _shim_fixes(snapshot, ring_requirements)


def _shim_fixes(snapshot: Snapshot, ring_requirements: tuple[str, ...]) -> Iterator[Fix]:
    transformers_requirements = requirements.resolve_transformers(snapshot, ring_flash_attn.COMPATIBLE_WITH_SHIM)
    if transformers_requirements:
        allows = (f"transformers{ring_flash_attn.COMPATIBLE_WITH_SHIM}", *ring_requirements)
        yield install.install_packages(snapshot, *transformers_requirements, *ring_requirements, allows=allows)
        yield Fix("and restore the name before the import", "edit", ring_flash_attn.SHIM_CODE, "safe", follows=True)


RULE = Rule("ATN140", "error", check, needs=frozenset({"ring"}))
