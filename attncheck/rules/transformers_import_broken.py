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

from attncheck import advice
from attncheck.environment import ImportOutcome
from attncheck.facts import Known, need
from attncheck.findings import Fix, Problem
from attncheck.knowledge.transformers import KERNELS_ERROR
from attncheck.rules import Rule
from attncheck.snapshot import Snapshot

MODULES = ("transformers", "transformers.modeling_flash_attention_utils", "transformers.modeling_utils")
EXPLAINED = ("No module named 'torch'", KERNELS_ERROR)  # the second: ATN149
FAILED = ("raised", "died", "hung")
_REQUIRED = re.compile(r"([A-Za-z0-9._-]+[<>=!~][^ ]*) is required for a normal functioning of this module")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for the first of the modules that failed."""
    if not snapshot.has("transformers"):
        return
    need(snapshot.imports, "how imports ended")
    failed = [outcome for module in MODULES if (outcome := _failure(snapshot, module)) is not None]
    if not failed or any(_failure(snapshot, module) for module in ("torch", "flash_attn", "flash_attn_2_cuda")):
        return
    outcome = failed[0]
    transformers = need(snapshot.package("transformers"), "transformers").version
    if outcome.outcome == "raised" and any(text in outcome.message for text in EXPLAINED):
        return
    how = f"{outcome.exception}: {outcome.message}" if outcome.outcome == "raised" else outcome.signal
    yield Problem(
        message=f"importing {outcome.module} {transformers} {outcome.outcome}",
        subject=f"transformers {transformers}",
        evidence=(f"import lane: {how or outcome.outcome}", *outcome.frames[-3:]),
        fixes=(*advice.patience(outcome), _fix(snapshot, outcome, transformers)),
    )


def _failure(snapshot: Snapshot, module: str) -> ImportOutcome | None:
    outcome = snapshot.imported(module)
    return outcome.value if isinstance(outcome, Known) and outcome.value.outcome in FAILED else None


def _fix(snapshot: Snapshot, outcome: ImportOutcome, transformers: str) -> Fix:
    required = _REQUIRED.search(outcome.message)
    if required:
        return advice.install(snapshot, required.group(1))
    return advice.install(
        snapshot, f"transformers=={transformers}", options=("--force-reinstall",), title="reinstall it"
    )


RULE = Rule("ATN154", "error", check)
