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

from attncheck.core.facts import Known
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.fixes.flash_attn import install_flash_attn
from attncheck.doctor.fixes.torch import reinstall_torch
from attncheck.doctor.knowledge.frameworks import MATTERS
from attncheck.doctor.rules import Rule

ALSO = frozenset({"numpy", "einops"})
HARMLESS = "RECORD is missing"
VITAL = ("torch", "flash-attn", "transformers", "tokenizers", "numpy")
FATAL = ("files are gone", "METADATA is missing")  # transformers asks importlib.metadata for versions, and dies


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for each watched package that is not whole."""
    for distribution in snapshot.distributions:
        name = _project(distribution.name)
        if not name or not distribution.problem or distribution.problem == HARMLESS:
            continue
        if distribution.name != name and _is_whole(snapshot, name):
            continue
        version = f" {distribution.version}" if distribution.version else ""
        yield Problem(
            message=f"{name}{version} is damaged: {distribution.problem}",
            subject=name,
            evidence=(f"static lane: {distribution.name} in {distribution.location}",),
            fixes=_fixes(snapshot, name, distribution.version),
            predicted=name not in VITAL or not any(words in distribution.problem for words in FATAL),
        )


def _project(name: str) -> str:
    """Return the watched project that `name` stands for, or ""; pip hides what it removes behind "~"."""
    rest = name.lstrip("~")
    hidden = len(name) - len(rest)
    return next((known for known in sorted(MATTERS | ALSO) if known[hidden:] == rest), "")


def _is_whole(snapshot: Snapshot, name: str) -> bool:
    return any(d.name == name and not d.problem for d in snapshot.distributions)


def _fixes(snapshot: Snapshot, name: str, version: str) -> tuple[Fix, ...]:
    if name == "torch" and isinstance(snapshot.torch, Known):
        return (reinstall_torch(snapshot),)
    if name == "flash-attn" and isinstance(snapshot.torch, Known):
        return install_flash_attn(snapshot)[:1]
    requirement = f"{name}=={version}" if version else name
    return (install.install(snapshot, requirement, options=("--no-deps", "--force-reinstall")),)


RULE = Rule("ATN117", "error", check)
