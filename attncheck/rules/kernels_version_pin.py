"""The installed `kernels` is not one that this transformers works with.

What it checks: the version of `kernels` against the range that transformers names in its own metadata or, where that
is not at hand, in a table of its releases. Nearly every minor release of transformers moves the range.

Why it matters: from 5.13 on transformers then holds kernels to be missing, so that the fallback of flash_attention_2
to the Hub does not happen; older ones import it all the same, and a newer `kernels` can break that import.

What to do: install the `kernels` that the finding names.

Source: wheels of transformers 4.50.0-5.23.0, `dependency_versions_table.py` and `utils/import_utils.py`
(KERNELS_MIN_VERSION, KERNELS_MAX_VERSION); huggingface/transformers#46291.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement

from attncheck import advice, pins
from attncheck.facts import need
from attncheck.findings import Problem
from attncheck.knowledge import transformers as knowledge
from attncheck.rules import Rule
from attncheck.snapshot import Snapshot


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where `kernels` lies outside transformers' range."""
    if not snapshot.has("kernels") or not snapshot.has("transformers"):
        return
    kernels = need(snapshot.version("kernels"), "the version of kernels")
    transformers = need(snapshot.version("transformers"), "transformers' version")
    wanted, source = _wanted(snapshot)
    if not wanted or pins.allowed(wanted, kernels):
        return
    yield Problem(
        message=f"transformers {transformers} works with kernels{wanted}; {kernels} is installed",
        subject=f"kernels {kernels}",
        evidence=(source,),
        fixes=(advice.install(snapshot, f"kernels{wanted}"),),
    )


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
    if pins.allowed(f">{knowledge.LAST}", version):
        return "", ""
    return knowledge.row(knowledge.KERNELS, version) or "", "static lane: from the table of transformers' releases"


RULE = Rule("ATN149", "warning", check)
