"""Does every attention layer run what the plan requests: what its configuration named, and which operators ran."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attncheck.core.results.smoke import CheckResult, Layer
from attncheck.smoke.worker.attention_trace import EXPECTED_OPERATORS, AttentionTrace, collect_attention_kernels
from attncheck.smoke.worker.testbed import Testbed


def run(testbed: Testbed) -> CheckResult:
    """Check that every attention layer runs the requested implementation."""
    model, batch = testbed.build_model(), testbed.make_batch(testbed.make_rows())
    trace = AttentionTrace(model, testbed.plan.attn_implementation)
    backward = not testbed.no_backward_reason
    trace.record(lambda: testbed.run_batch(model, batch, backward=backward))
    layers = trace.collect_layers()
    kernels = collect_attention_kernels(lambda: testbed.run_batch(model, batch, backward=backward), testbed.device)
    notes = [line for line in (_summarize_layers(layers), f"kernels: {', '.join(kernels)}" if kernels else "") if line]
    if not layers:
        return CheckResult("what_ran", "skipped", "no attention layer could be told apart in this model")
    violations = tuple(_find_violations(layers, testbed.plan.attn_implementation))
    return CheckResult("what_ran", violations=violations, notes=tuple(notes), layers=layers)


def _find_violations(layers: tuple[Layer, ...], requested: str) -> Iterator[str]:
    pattern = EXPECTED_OPERATORS.get(requested, "")
    for layer in layers:
        if layer.kind == "linear_attention" or not requested:
            continue
        if layer.dispatched and layer.dispatched != requested:
            yield f"{layer.name} was asked for {requested}, and its configuration says {layer.dispatched}"
        elif pattern and layer.ran and not any(re.search(pattern, ran) for ran in layer.ran):
            yield f"{layer.name} was asked for {requested} and ran {', '.join(layer.ran)}"
        elif pattern and not layer.ran:
            yield f"{layer.name} was asked for {requested}, and no attention was seen to run in it"


def _summarize_layers(layers: tuple[Layer, ...]) -> str:
    """Return in a line how many layers ran which operators."""
    counts: dict[str, int] = {}
    for layer in layers:
        title = " and ".join(layer.ran) or "nothing that is known"
        counts[title] = counts.get(title, 0) + 1
    return "; ".join(f"{title} in {count} of {len(layers)} layers" for title, count in counts.items())
