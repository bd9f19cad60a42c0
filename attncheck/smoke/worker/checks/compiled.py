"""Compares torch.compile on and off: the same logits, loss and gradients, and at least one compiled graph.

Models are compiled in place with `Module.compile`, which is `torch.compile` of its call and keeps the parameters'
names, with torch's defaults, as with transformers' `torch_compile=True`. Inductor fuses and reorders float32 sums,
which costs about 1e-6. In 16 bits it omits roundings between fused operations, so it may be closer to the exact result
than eager.
"""

import re
from typing import Any

import torch
from torch import nn

from attncheck.attention.device import describe_exception
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult
from attncheck.smoke.worker.checks import agreement
from attncheck.smoke.worker.testbed import ModelRun, Testbed

CHECK_NAME = "compile"
BACKEND = "inductor"  # torch's default
# Errors of inductor and triton if there is no C++ compiler: torch/_inductor/exc.py, triton/runtime/build.py.
NO_COMPILER = re.compile(
    r"InvalidCxxCompiler|No working C\+\+ compiler|Failed to find C compiler|Python\.h|TritonMissing"
)
MAX_SHOWN_BREAKS = 3  # the most reasons of graph breaks that are shown


def run(testbed: Testbed) -> CheckResult:
    """Compare the plan's compiled model with the uncompiled one."""
    if testbed.random_in_training:  # on and off draw different numbers, and evaluation mode is not what is trained
        return CheckResult(CHECK_NAME, "skipped", testbed.random_in_training)
    graph_counts: list[Any] = []
    try:
        measures = tuple(
            agreement.measure_switches(testbed, {"": lambda plan: run_compiled(testbed, plan, graph_counts)})
        )
    except Exception as error:
        return failed_result(error)
    finally:
        torch._dynamo.reset()
    violations = () if all(counts["graphs"] for counts in graph_counts) else (NOTHING_COMPILED,)
    notes = (*dict.fromkeys(map(describe_graphs, graph_counts)), *agreement.omission_notes(testbed))
    return CheckResult(CHECK_NAME, measures=measures, violations=violations, notes=notes)


NOTHING_COMPILED = "torch.compile is on, but nothing was compiled"


def run_compiled(testbed: Testbed, plan: Plan, graph_counts: list[Any]) -> ModelRun:
    """Run the plan's compiled model on the checks' rows; add the compiler's counters to `graph_counts`."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = testbed.build_model(plan)
    compile_model(model)
    result = testbed.run_batch(model, testbed.make_batch(testbed.make_rows(), plan), plan)
    breaks = dict(counters["graph_break"])
    graph_counts.append({"graphs": counters["stats"]["unique_graphs"], "breaks": breaks, "precision": plan.precision})
    return result


def compile_model(model: nn.Module) -> None:
    """Compile a model in place."""
    model.compile(backend=BACKEND)


def describe_graphs(counts: Any) -> str:
    """Return a line with the number of compiled graphs, and the first reasons for breaks between them."""
    reasons = [" ".join(str(reason).split())[:100] for reason in counts["breaks"]][:MAX_SHOWN_BREAKS]
    why = f": {'; '.join(reasons)}" if reasons else ""
    break_count = sum(counts["breaks"].values())
    return f"{counts['precision']}: {counts['graphs']} graphs compiled, {break_count} graph breaks{why}"


def failed_result(error: BaseException) -> CheckResult:
    """Return the result of a check that ended with a compiler's exception; a missing C++ compiler is a refusal."""
    error = getattr(error, "inner_exception", None) or error  # the cause of BackendCompilerFailed and InductorError
    text = f"{type(error).__name__}: {error}"
    if NO_COMPILER.search(text):
        return CheckResult(CHECK_NAME, "refused", f"torch.compile needs a C++ compiler: {describe_exception(error)}")
    return agreement.failed_result(CHECK_NAME, error)
