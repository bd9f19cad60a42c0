"""A package is half removed, or its metadata is damaged.

What it checks: the metadata folder of torch, flash-attn and what decides about them: missing or unreadable METADATA,
no version, files gone while the metadata stayed. A leftover "~name" folder beside a healthy install of the same package
is harmless and left alone, and so is a missing RECORD alone.

Why it matters: version checks fail with InvalidVersion or find a package that is not there; transformers calls a
flash-attn available whose files are gone.

What to do: install the package again; where it is no longer wanted, delete the folder.

Source: packaging.python.org, "Recording installed projects"; transformers 5.17.0 `utils/import_utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck import advice
from attncheck.facts import Known
from attncheck.findings import Fix, Problem
from attncheck.flash_attn_advice import install_flash_attn
from attncheck.knowledge.frameworks import MATTERS
from attncheck.rules import Rule
from attncheck.snapshot import Distribution, Snapshot

ALSO = frozenset({"numpy", "einops"})
HARMLESS = "RECORD is missing"


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for each watched package that is not whole."""
    for distribution in snapshot.distributions:
        name = distribution.name.lstrip("~")
        if not distribution.problem or distribution.problem == HARMLESS or not _matters(name):
            continue
        if distribution.name != name and _whole(snapshot, distribution):
            continue
        version = f" {distribution.version}" if distribution.version else ""
        yield Problem(
            message=f"{name}{version} is damaged: {distribution.problem}",
            subject=name,
            evidence=(f"static lane: in {distribution.location}",),
            fixes=tuple(_fixes(snapshot, name, distribution.version)),
        )


def _matters(name: str) -> bool:
    # pip renames what it is about to remove by putting "~" in the place of the first letter
    return any(known == name or known[1:] == name for known in MATTERS | ALSO)


def _whole(snapshot: Snapshot, remains: Distribution) -> bool:
    name = remains.name.lstrip("~")
    return any(d.name.endswith(name) and not d.problem and d.name[:1] != "~" for d in snapshot.distributions)


def _fixes(snapshot: Snapshot, name: str, version: str) -> Iterator[Fix]:
    full = next((known for known in sorted(MATTERS | ALSO) if known == name or known[1:] == name), name)
    if full == "flash-attn" and isinstance(snapshot.torch, Known):
        yield from install_flash_attn(snapshot)[:1]
        return
    requirement = f"{full}=={version}" if version else full
    yield advice.install(snapshot, requirement, options=("--no-deps", "--force-reinstall"))


RULE = Rule("ATN117", "warning", check)
