"""transformers, or the part of it that every model needs, cannot be imported.

What it checks: how importing `transformers`, `transformers.modeling_flash_attention_utils` and
`transformers.modeling_utils` ended in a child process, where torch itself can be imported and no broken flash_attn is
to blame.

Why it matters: nothing can be trained. The usual cause is a companion (huggingface-hub, tokenizers, kernels, numpy …)
outside the range that transformers checks when it is imported.

What to do: where the message names a requirement, install that; else reinstall transformers.

Source: transformers 4.43.0-5.23.0, `dependency_versions_check.py` and `utils/versions.py` ("X is required for a normal
functioning of this module, but found Y"); the import lane's own observation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attncheck.core.environment import Distribution, ImportOutcome
from attncheck.core.facts import need
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.fixes.torch import reinstall_from_own_index
from attncheck.doctor.knowledge.transformers import KERNELS_ERROR
from attncheck.doctor.queries.covering import hidden_by, require_dependencies, require_torch
from attncheck.doctor.queries.packages import can_import, find_failed_import, find_failing_distribution, is_shadowed
from attncheck.doctor.rules import Rule

MODULES = ("transformers", "transformers.modeling_flash_attention_utils", "transformers.modeling_utils")
DEPENDENCIES = ("torch", "flash_attn")
FILE_ERRORS = ("FileNotFoundError", "PermissionError", "NotADirectoryError", "OSError")  # a path, not a package
REQUIRED_PACKAGES = ("transformers", "torch", "tokenizers", "huggingface-hub", "numpy")  # as far as ATN117 watches them
_REQUIRED = re.compile(r"([A-Za-z0-9._-]+[<>=!~][^ ]*) is required for a normal functioning of this module")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for the first of the modules that failed."""
    if not snapshot.has("transformers"):
        return
    need(snapshot.imports, "how imports ended")
    outcome = find_failed_import(snapshot, *MODULES)
    if outcome is None:
        if not can_import(snapshot, MODULES[0]):
            require_torch(snapshot)
        return
    require_dependencies(snapshot, outcome, DEPENDENCIES)
    package = need(snapshot.package("transformers"), "transformers")
    if outcome.outcome == "raised" and KERNELS_ERROR in outcome.message:
        return  # ATN149
    if _has_damaged_package(snapshot) or is_shadowed(snapshot, "transformers"):
        raise hidden_by("transformers")
    error = f"{outcome.exception}: {outcome.message}" if outcome.outcome == "raised" else outcome.signal
    culprit = find_failing_distribution(snapshot, outcome) or package
    blame = "" if culprit.name == "transformers" else f", in {culprit.name} {culprit.version}"
    yield Problem(
        message=f"importing {outcome.module} {package.version} {outcome.outcome}{blame}",
        subject=f"transformers {package.version}",
        evidence=(f"import lane: {error or outcome.outcome}", *outcome.frames[-3:]),
        fixes=(*install.extend_import_timeout(outcome), _choose_fix(snapshot, outcome, culprit)),
    )


def _has_damaged_package(snapshot: Snapshot) -> bool:
    """Return whether ATN117 reports a package that transformers cannot do without."""
    return any(
        distribution.name in REQUIRED_PACKAGES and distribution.problem not in ("", "RECORD is missing")
        for distribution in snapshot.distributions
    )


def _choose_fix(snapshot: Snapshot, outcome: ImportOutcome, culprit: Distribution) -> Fix:
    requirement = _REQUIRED.search(outcome.message)
    if requirement:
        return install.install_packages(snapshot, requirement.group(1))
    if outcome.exception in FILE_ERRORS:
        return Fix("make the path usable, or name another", "manual", outcome.message)
    return reinstall_from_own_index(snapshot, culprit)


RULE = Rule("ATN154", "error", check)
