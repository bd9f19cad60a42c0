"""torch.compile on against off: the same logits, loss and gradients, and that something was compiled at all.

Compiled in place with `Module.compile`, which is `torch.compile` of its call and keeps the parameters' names, with
torch's defaults, as transformers' `torch_compile=True`. Inductor fuses and reorders float32 sums, which costs about
1e-6; in 16 bit it leaves out roundings between fused operations, so it may lie nearer to the exact result than eager.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from attncheck.attention.device import message
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult
from attncheck.smoke.worker.checks import agreement
from attncheck.smoke.worker.testbed import Bed, Result

QUESTION = "compile"
BACKEND = "inductor"  # torch's default
# What inductor and triton say where there is no compiler: torch/_inductor/exc.py, triton/runtime/build.py.
NO_COMPILER = re.compile(
    r"InvalidCxxCompiler|No working C\+\+ compiler|Failed to find C compiler|Python\.h|TritonMissing"
)
SHOWN = 3  # reasons of graph breaks


def prove(bed: Bed) -> CheckResult:
    """Return the proof."""
    seen: list[Any] = []
    try:
        measures = tuple(agreement.compared(bed, {"": lambda plan: compiled(bed, plan, seen)}))
    except Exception as error:
        return told(error)
    finally:
        torch._dynamo.reset()
    wrong = () if all(counts["graphs"] for counts in seen) else (NOTHING,)
    notes = (*dict.fromkeys(map(describe, seen)), *agreement.left_out(bed))
    return CheckResult(QUESTION, measures=measures, violations=wrong, notes=notes)


NOTHING = "torch.compile is on, but nothing was compiled: the model runs as before"


def compiled(bed: Bed, plan: Plan, seen: list[Any]) -> Result:
    """Return what the plan's compiled model makes of the proofs' rows; add to `seen` what the compiler counted."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = bed.model(plan)
    switch(model)
    found = bed.run(model, bed.batch(bed.rows(), plan), plan)
    breaks = dict(counters["graph_break"])
    seen.append({"graphs": counters["stats"]["unique_graphs"], "breaks": breaks, "precision": plan.precision})
    return found


def switch(model: nn.Module) -> None:
    """Compile a model where it stands."""
    model.compile(backend=BACKEND)


def describe(counts: Any) -> str:
    """Return in a line how many graphs were compiled, and why there is more than one."""
    reasons = [" ".join(str(reason).split())[:100] for reason in counts["breaks"]][:SHOWN]
    why = f": {'; '.join(reasons)}" if reasons else ""
    number = sum(counts["breaks"].values())
    return f"{counts['precision']}: {counts['graphs']} graphs compiled, {number} graph breaks{why}"


def told(error: BaseException) -> CheckResult:
    """Return the proof that an exception of the compiler put an end to: a missing compiler is a refusal."""
    error = getattr(error, "inner_exception", None) or error  # BackendCompilerFailed's and InductorError's cause
    whole = f"{type(error).__name__}: {error}"
    if NO_COMPILER.search(whole):
        return CheckResult(QUESTION, "refused", f"torch.compile needs a C++ compiler: {message(error)}")
    return agreement.failed(QUESTION, error)
