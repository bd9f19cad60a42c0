"""The installed `kernels` is not one that this transformers works with.

What it checks: the version of `kernels` against the range that transformers names in its own metadata or, where that
is not at hand, in a table of its releases. Nearly every minor release of transformers moves the range.

Why it matters: from 5.13 on transformers then holds kernels to be missing, so that the fallback of flash_attention_2
to the Hub does not happen. 5.0 to 5.12 import it all the same: from kernels 0.14 on the Hub's kernels are off, and from
0.17 on `import transformers.modeling_utils` raises "Either a revision or a version must be specified": no model loads.
That is an error, the rest a warning.

What to do: install the `kernels` that the finding names.

Source: wheels of transformers 4.50.0-5.23.0, `dependency_versions_table.py` and `utils/import_utils.py`
(KERNELS_MIN_VERSION, KERNELS_MAX_VERSION); the import was tried with 5.0.0, 5.3.0, 5.4.0 and 5.12.0;
huggingface/transformers#46291.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from attncheck.core.facts import Known, need
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import transformers as knowledge
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Rule

MODULES = ("transformers", "transformers.modeling_flash_attention_utils", "transformers.modeling_utils")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where `kernels` lies outside transformers' range."""
    if not snapshot.has("kernels") or not snapshot.has("transformers"):
        return
    kernels = need(snapshot.version("kernels"), "the version of kernels")
    transformers = need(snapshot.version("transformers"), "transformers' version")
    wanted, source = _wanted(snapshot)
    if not wanted or requirements.allowed(wanted, kernels):
        return
    raised = _breaks_import(snapshot, transformers, kernels)
    installed = f"kernels {kernels} breaks the import of its models" if raised else f"{kernels} is installed"
    yield Problem(
        message=f"transformers {transformers} works with kernels{wanted}; {installed}",
        subject=f"kernels {kernels}",
        evidence=(source, raised) if raised else (source,),
        fixes=(install.install(snapshot, f"kernels{wanted}"),),
        predicted=not raised,
    )


def _breaks_import(snapshot: Snapshot, transformers: Version, kernels: Version) -> str:
    """Return the evidence that models cannot be imported, or ""; the import lane's word goes before the table's."""
    outcomes = [found.value for name in MODULES if isinstance(found := snapshot.imported(name), Known)]
    for outcome in outcomes:
        if outcome.outcome == "raised" and knowledge.KERNELS_ERROR in outcome.message:
            return f"import lane: {outcome.exception}: {outcome.message}"
    if any(outcome.module == MODULES[-1] and outcome.outcome == "ok" for outcome in outcomes):
        return ""
    unguarded = requirements.allowed(knowledge.KERNELS_UNGUARDED, transformers)
    breaks = unguarded and kernels >= Version(knowledge.KERNELS_BREAKS_IMPORT)
    return f'static lane: "{knowledge.KERNELS_ERROR}"' if breaks else ""


def _wanted(snapshot: Snapshot) -> tuple[str, str]:
    """Return transformers' range for kernels and where it is written; "" where it is not known."""
    distribution = need(snapshot.package("transformers"), "transformers")
    for line in distribution.requires:
        if line.startswith("kernels"):
            try:
                return str(Requirement(line).specifier), f"METADATA of transformers: {line}"
            except InvalidRequirement:
                continue
    version = need(snapshot.version("transformers"), "transformers' version")
    if requirements.allowed(f">{knowledge.LAST}", version):
        return "", ""
    return knowledge.row(knowledge.KERNELS, version) or "", "static lane: from the table of transformers' releases"


RULE = Rule("ATN149", "error", check)
