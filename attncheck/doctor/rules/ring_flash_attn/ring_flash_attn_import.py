"""ring-flash-attn cannot be imported under this transformers.

What it checks: the name that ring-flash-attn's adapter imports from `transformers.modeling_flash_attention_utils`
against the installed transformers. 0.1.8 wants `is_flash_attn_greater_or_equal_2_10`, which that module holds only in
transformers 4.51.0 to 5.3.0; 0.1.7 and older want `_flash_supports_window` or `_flash_supports_window_size`. Where the
import was tried, its outcome decides.

Why it matters: `import ring_flash_attn` raises ImportError, also for a script that never uses the adapter, and
frameworks report it as "ring_flash_attn is not installed". The adapter's `except ImportError` retries the same name.

What to do: run the install command of the finding. Under transformers 5.5.0 to 5.18.0 putting the name back before
the import works too; OpenRLHF 0.11.2 and axolotl do so themselves. transformers 5.4.x lacks it in both places.

Source: wheels of ring_flash_attn 0.1.0-0.1.8 (`adapters/hf_adapter.py`) and transformers 4.42.4-5.23.0;
OpenRLHF/OpenRLHF#1222; zhuzilin/ring-flash-attention#80, #88.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from attncheck.core.environment import ImportOutcome
from attncheck.core.facts import Known, need
from attncheck.core.findings import Fix, Problem
from attncheck.core.plan import RING_NAMES
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import ring_flash_attn as knowledge
from attncheck.doctor.queries import requirements as pins
from attncheck.doctor.rules import Rule

MODULE = "transformers.modeling_flash_attention_utils"


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where the adapter's import of transformers' private name fails."""
    if not snapshot.has("ring-flash-attn") or not snapshot.has("transformers"):
        return
    ring = need(snapshot.version("ring-flash-attn"), "ring-flash-attn's version")
    transformers = need(snapshot.version("transformers"), "transformers' version")
    outcome = snapshot.imported("ring_flash_attn")
    tried = outcome.value if isinstance(outcome, Known) and outcome.value.outcome in ("ok", "raised") else None
    symbol = _symbol(ring, transformers, tried)
    if not symbol or _reported_elsewhere(snapshot, ring, transformers):
        return
    yield Problem(
        message=f"ring-flash-attn {ring} imports {symbol} from transformers, and transformers {transformers} "
        "does not have it there",
        subject=f"ring-flash-attn {ring}",
        evidence=_evidence(snapshot, ring, transformers, tried),
        fixes=tuple(_fixes(snapshot, ring, transformers)),
    )


def _symbol(ring: Version, transformers: Version, tried: ImportOutcome | None) -> str:
    """Return the name whose import fails, or ""; the import lane's word goes before the table's."""
    symbol, releases = knowledge.imports(ring)
    if tried is not None:
        named = (
            tried.outcome == "raised" and f"from '{MODULE}'" in tried.message and "cannot import name" in tried.message
        )
        return tried.message.split("'")[1] if named else ""
    return symbol if knowledge.known(ring) and not pins.allowed(releases, transformers) else ""


def _reported_elsewhere(snapshot: Snapshot, ring: Version, transformers: Version) -> bool:
    """Say whether ATN141 (signature does not fit either), ATN143 (newer ring works) or ATN145 (OpenRLHF) speaks.

    Nothing is wrong where the launch's framework puts the name back itself.
    """
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    if job and RING_NAMES in job.plan.shims and pins.allowed(knowledge.WORKS_WITH_SHIM, transformers):
        return True
    if snapshot.has("openrlhf") and pins.allowed(knowledge.NOWHERE, transformers):
        return True
    count = knowledge.parameters(transformers)
    outdated = ring < Version(knowledge.LAST) and pins.allowed(knowledge.works(Version(knowledge.LAST)), transformers)
    return outdated or (knowledge.known(ring) and count not in knowledge.accepted(ring))


def _evidence(snapshot: Snapshot, ring: Version, transformers: Version, tried: ImportOutcome | None) -> tuple[str, ...]:
    lane = f"import lane: {tried.exception}: {tried.message}" if tried else "static lane: from the table of versions"
    lines = [lane]
    if knowledge.known(ring):
        lines.append(f"ring-flash-attn {ring} works with transformers {knowledge.works(ring)}")
    if snapshot.has("openrlhf") and pins.allowed(knowledge.WORKS_WITH_SHIM, transformers):
        lines.append("OpenRLHF 0.11.2 puts the name back itself: its own import works, a direct one does not")
    return tuple(lines)


def _fixes(snapshot: Snapshot, ring: Version, transformers: Version) -> Iterator[Fix]:
    newest = Version(knowledge.LAST)
    also = (f"ring-flash-attn=={newest}",) if ring < newest else ()
    requirements = pins.transformers_in(snapshot, knowledge.WORKS["0.1.8"])
    if requirements:
        yield install.install(snapshot, *requirements, *also)
    if pins.allowed(knowledge.WORKS_WITH_SHIM, transformers) and not also:
        yield Fix("put the name back before the import", "edit", knowledge.SHIM, "safe")
    elif not requirements:
        yield from _with_shim(snapshot, also)


def _with_shim(snapshot: Snapshot, also: tuple[str, ...]) -> Iterator[Fix]:
    requirements = pins.transformers_in(snapshot, knowledge.WORKS_WITH_SHIM)
    if requirements:
        yield install.install(snapshot, *requirements, *also)
        yield Fix("and put the name back before the import", "edit", knowledge.SHIM, "safe")


RULE = Rule("ATN140", "error", check, needs=frozenset({"ring"}))
