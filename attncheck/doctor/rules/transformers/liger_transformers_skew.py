"""liger-kernel and transformers are of different times.

What it checks: the oldest transformers that the installed liger-kernel can patch (0.7.0 to 0.8.4: 4.52; 0.8.5: 5.0);
where its patches were imported, the outcome decides. For a vision-language model also that liger's forward knows the
arguments of transformers 5.3 (liger-kernel 0.8.0 does); that part is predicted.

Why it matters: `apply_liger_kernel_to_…` raises "liger-kernel requires transformers >= X", or the first step raises
"lce_forward() got an unexpected keyword argument 'mm_token_type_ids'".

What to do: install the liger-kernel that the finding names; nothing else has to move.

Source: wheels of liger_kernel 0.5.10-0.8.5, `transformers/monkey_patch.py` and `transformers/model/qwen2_vl.py`;
hiyouga/LLaMA-Factory#9387; linkedin/Liger-Kernel#827.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from attncheck.core.facts import Known, need
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import liger as knowledge
from attncheck.doctor.knowledge.transformers import row
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Rule

MODULE = "liger_kernel.transformers"


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where liger-kernel refuses transformers, or its forward lags behind."""
    if not snapshot.has("liger-kernel") or not snapshot.has("transformers"):
        return
    liger = need(snapshot.version("liger-kernel"), "liger-kernel's version")
    transformers = need(snapshot.version("transformers"), "transformers' version")
    wanted = row(knowledge.TRANSFORMERS, liger)
    outcome = snapshot.imported(MODULE)
    fine = isinstance(outcome, Known) and outcome.value.outcome == "ok"
    if wanted is not None and not requirements.allowed(wanted, transformers):
        if not fine:
            yield _refused(snapshot, liger, transformers, wanted)
    elif _lags(snapshot, liger, transformers):
        yield _lagging(snapshot, liger, transformers)


def _refused(snapshot: Snapshot, liger: Version, transformers: Version, wanted: str) -> Problem:
    outcome = snapshot.imported(MODULE)
    tried = isinstance(outcome, Known) and outcome.value.outcome == "raised"
    lane = f"import lane: {outcome.value.message}" if tried and isinstance(outcome, Known) else "static lane"
    older = knowledge.LAST_FOR_TRANSFORMERS_4 if transformers >= Version("4.52") else knowledge.BEFORE_TRANSFORMERS_4_52
    return Problem(
        message=f"liger-kernel {liger} patches transformers {wanted}; {transformers} is installed",
        subject=f"liger-kernel {liger}",
        evidence=(lane,),
        fixes=(install.install(snapshot, f"liger-kernel=={older}", options=("--no-deps",)),),
    )


def _lags(snapshot: Snapshot, liger: Version, transformers: Version) -> bool:
    since, needed = (Version(text) for text in knowledge.MM_TOKEN_TYPE_IDS)
    vision = isinstance(snapshot.model, Known) and any("vision" in tower.name for tower in snapshot.model.value.towers)
    return vision and transformers >= since and liger < needed


def _lagging(snapshot: Snapshot, liger: Version, transformers: Version) -> Problem:
    needed = knowledge.MM_TOKEN_TYPE_IDS[1]
    return Problem(
        message=f"liger-kernel {liger} does not know the arguments that transformers {transformers} gives to a "
        "vision-language model",
        subject=f"liger-kernel {liger}",
        evidence=("static lane: mm_token_type_ids, known to liger-kernel 0.8.0",),
        fixes=(install.install(snapshot, f"liger-kernel>={needed}", options=("--no-deps",)),),
        predicted=True,
    )


RULE = Rule("ATN150", "error", check, needs=frozenset({"liger"}))
