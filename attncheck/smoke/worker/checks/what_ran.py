"""What really ran: requested, dispatched, seen, for each layer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attncheck.core.results.smoke import CheckResult, Layer
from attncheck.smoke.worker.attention_trace import FAMILIES, Watcher, kernels
from attncheck.smoke.worker.testbed import Bed


def prove(bed: Bed) -> CheckResult:
    """Return the proof: in every attention layer, what was asked for is what ran."""
    model, batch = bed.model(), bed.batch(bed.rows())
    watcher = Watcher(model, bed.plan.attn_implementation)
    backward = not bed.untrainable
    watcher.call(lambda: bed.run(model, batch, backward=False) if not backward else bed.run(model, batch))
    layers = watcher.found()
    seen = kernels(lambda: bed.run(model, batch, backward=backward), bed.device)
    notes = [line for line in (_told(layers), f"kernels: {', '.join(seen)}" if seen else "") if line]
    if not layers:
        return CheckResult("what_ran", "skipped", "no attention layer could be told apart in this model")
    wrong = tuple(_wrong(layers, bed.plan.attn_implementation))
    return CheckResult("what_ran", violations=wrong, notes=tuple(notes), layers=layers)


def _wrong(layers: tuple[Layer, ...], requested: str) -> Iterator[str]:
    pattern = FAMILIES.get(requested, "")
    for layer in layers:
        if layer.kind == "linear_attention" or not requested:
            continue
        if layer.dispatched and layer.dispatched != requested:
            yield f"{layer.name} was asked for {requested}, and its configuration says {layer.dispatched}"
        elif pattern and layer.ran and not any(re.search(pattern, ran) for ran in layer.ran):
            yield f"{layer.name} was asked for {requested} and ran {', '.join(layer.ran)}"
        elif pattern and not layer.ran:
            yield f"{layer.name} was asked for {requested}, and no attention was seen to run in it"


def _told(layers: tuple[Layer, ...]) -> str:
    """Return how many layers ran what."""
    counts: dict[str, int] = {}
    for layer in layers:
        title = " and ".join(layer.ran) or "nothing that is known"
        counts[title] = counts.get(title, 0) + 1
    return "; ".join(f"{title} in {count} of {len(layers)} layers" for title, count in counts.items())
