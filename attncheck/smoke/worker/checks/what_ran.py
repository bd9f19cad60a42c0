"""Does every attention layer run what the plan requests: what its configuration named, and which operators ran."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
    return replace(judge_layers(layers, testbed.plan.attn_implementation), notes=tuple(notes))


def judge_layers(layers: tuple[Layer, ...], requested: str) -> CheckResult:
    """Return whether each layer ran what was requested; the Hub's build of it, where it is not installed, will do."""
    replaced = [layer for layer in layers if _is_from_hub(layer, requested)]
    from_hub = dict.fromkeys(layer.dispatched for layer in replaced)
    return CheckResult(
        "what_ran",
        violations=tuple(_find_violations([layer for layer in layers if layer not in replaced], requested)),
        reservations=tuple(
            f"{requested} is not installed here, and {name} of the Hub runs for it" for name in from_hub
        ),
        layers=layers,
    )


def _is_from_hub(layer: Layer, requested: str) -> bool:
    """Return whether transformers replaced a flash attention that is not installed by the Hub's build of it."""
    is_replaced = requested.startswith("flash_attention") and re.search(r"/.*flash[-_]?attn", layer.dispatched)
    return bool(is_replaced) and all("flash" in ran or "hub kernel" in ran for ran in layer.ran)


def _find_violations(layers: Sequence[Layer], requested: str) -> Iterator[str]:
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


def _summarize_layers(layers: Sequence[Layer]) -> str:
    """Return in a line how many layers ran which operators."""
    counts: dict[str, int] = {}
    for layer in layers:
        title = " and ".join(layer.ran) or "nothing that is known"
        counts[title] = counts.get(title, 0) + 1
    return "; ".join(f"{title} in {count} of {len(layers)} layers" for title, count in counts.items())
