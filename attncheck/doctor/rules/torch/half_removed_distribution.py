"""A package is only partly removed, or its metadata is damaged.

What it checks: the metadata folders of torch, flash-attn and related packages: missing or unreadable METADATA, no
version, or files that are missing although the metadata exists. A leftover "~name" folder next to a healthy install
of the same package, and a missing RECORD alone, are harmless and not reported.

Why it matters: version checks fail with InvalidVersion or find a package that is not installed. transformers reports
flash-attn as available although its files no longer exist.

What to do: install the package again, or delete the folder if the package is no longer needed.

Source: packaging.python.org, "Recording installed projects"; transformers 5.17.0 `utils/import_utils.py`.
"""

from attncheck.doctor.fixes import flash_attn_fixes, install, reinstall_torch
from attncheck.doctor.knowledge.frameworks import RELEVANT_DISTRIBUTIONS
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot

ALSO_WATCHED = frozenset({"numpy", "einops"})
HARMLESS_PROBLEM = "RECORD is missing"
VITAL_PACKAGES = ("torch", "flash-attn", "transformers", "tokenizers", "numpy")
FATAL_PROBLEMS = (
    "files no longer exist",
    "METADATA is missing",
)  # transformers queries importlib.metadata for versions and fails


def check(snapshot: Snapshot) -> Problems:
    for distribution in snapshot.distributions:
        name = _watched_project(distribution.name)
        if not name or not distribution.problem or distribution.problem == HARMLESS_PROBLEM:
            continue
        if distribution.name != name and _is_whole(snapshot, name):
            continue
        version = f" {distribution.version}" if distribution.version else ""
        yield Problem(
            message=f"{name}{version} is damaged: {distribution.problem}",
            subject=name,
            evidence=(f"static lane: {distribution.name} in {distribution.location}",),
            fixes=_fixes(snapshot, name, distribution.version),
            predicted=name not in VITAL_PACKAGES or not any(text in distribution.problem for text in FATAL_PROBLEMS),
        )


def _watched_project(name: str) -> str:
    """Return the watched project that `name` denotes, or ""; pip renames directories that it removes to "~…"."""
    rest = name.lstrip("~")
    hidden_length = len(name) - len(rest)
    return next(
        (project for project in sorted(RELEVANT_DISTRIBUTIONS | ALSO_WATCHED) if project[hidden_length:] == rest), ""
    )


def _is_whole(snapshot: Snapshot, name: str) -> bool:
    return any(distribution.name == name and not distribution.problem for distribution in snapshot.distributions)


def _fixes(snapshot: Snapshot, name: str, version: str) -> tuple[Fix, ...]:
    if name == "torch" and isinstance(snapshot.torch, Known):
        return (reinstall_torch(snapshot),)
    if name == "flash-attn" and isinstance(snapshot.torch, Known):
        return flash_attn_fixes(snapshot)[:1]
    requirement = f"{name}=={version}" if version else name
    return (install.install_packages(snapshot, requirement, options=("--no-deps", "--force-reinstall")),)


RULE = Rule("ATN117", "error", check)
