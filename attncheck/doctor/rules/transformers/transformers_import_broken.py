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
from attncheck.doctor.fixes.torch import reinstall
from attncheck.doctor.knowledge.transformers import KERNELS_ERROR
from attncheck.doctor.queries.packages import culprit as culprit_of
from attncheck.doctor.queries.packages import failed
from attncheck.doctor.rules import Rule

MODULES = ("transformers", "transformers.modeling_flash_attention_utils", "transformers.modeling_utils")
EXPLAINED = ("No module named 'torch'", KERNELS_ERROR)  # the second: ATN149
FILE_ERRORS = ("FileNotFoundError", "PermissionError", "NotADirectoryError", "OSError")  # a path, not a package
NEEDED = ("transformers", "torch", "tokenizers", "huggingface-hub", "numpy")  # as far as ATN117 watches them
_REQUIRED = re.compile(r"([A-Za-z0-9._-]+[<>=!~][^ ]*) is required for a normal functioning of this module")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for the first of the modules that failed."""
    if not snapshot.has("transformers"):
        return
    need(snapshot.imports, "how imports ended")
    outcome = failed(snapshot, *MODULES)
    if outcome is None or failed(snapshot, "torch", "flash_attn", "flash_attn_2_cuda"):
        return
    package = need(snapshot.package("transformers"), "transformers")
    if (outcome.outcome == "raised" and any(text in outcome.message for text in EXPLAINED)) or _damaged(snapshot):
        return
    how = f"{outcome.exception}: {outcome.message}" if outcome.outcome == "raised" else outcome.signal
    culprit = culprit_of(snapshot, outcome) or package
    blame = "" if culprit.name == "transformers" else f", in {culprit.name} {culprit.version}"
    yield Problem(
        message=f"importing {outcome.module} {package.version} {outcome.outcome}{blame}",
        subject=f"transformers {package.version}",
        evidence=(f"import lane: {how or outcome.outcome}", *outcome.frames[-3:]),
        fixes=(*install.patience(outcome), _fix(snapshot, outcome, culprit)),
    )


def _damaged(snapshot: Snapshot) -> bool:
    """Say whether ATN117 reports a package that transformers cannot do without."""
    return any(d.name in NEEDED and d.problem not in ("", "RECORD is missing") for d in snapshot.distributions)


def _fix(snapshot: Snapshot, outcome: ImportOutcome, culprit: Distribution) -> Fix:
    required = _REQUIRED.search(outcome.message)
    if required:
        return install.install(snapshot, required.group(1))
    if outcome.exception in FILE_ERRORS:
        return Fix("make the path usable, or name another", "manual", outcome.message)
    return reinstall(snapshot, culprit)


RULE = Rule("ATN154", "error", check)
