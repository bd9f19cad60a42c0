"""Compares each attention layer with the plan: the implementation in its configuration, and its operators."""

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
        return CheckResult("what_ran", "skipped", "could not identify this model's attention layers")
    requested = testbed.plan.attn_implementation
    return replace(judge_layers(layers, requested, _find_replacement(requested)), notes=tuple(notes))


def judge_layers(layers: tuple[Layer, ...], requested: str, replacement: str) -> CheckResult:
    """Return whether each layer ran the requested attention; a `replacement` from the Hub also counts, "" is none."""
    replaced = [
        layer
        for layer in layers
        if replacement
        and layer.dispatched == replacement
        and all("flash" in ran or "hub kernel" in ran for ran in layer.ran)  # a kernel's operators may be unknown
    ]
    text = f"{requested} is not installed, so {replacement} from the Hub runs instead"
    return CheckResult(
        "what_ran",
        violations=tuple(_find_violations([layer for layer in layers if layer not in replaced], requested)),
        warnings=(text,) if replaced else (),
        layers=layers,
    )


def _find_replacement(requested: str) -> str:
    """Return the Hub kernel that transformers uses for a flash attention that is not installed, "" for none.

    transformers 5.17.0, modeling_flash_attention_utils.py `FLASH_ATTN_KERNEL_FALLBACK`.
    """
    from transformers import modeling_flash_attention_utils, utils

    is_available = getattr(utils, f"is_flash_attn_{requested[-1:]}_available", None)
    if is_available is None or is_available():
        return ""
    fallbacks: dict[str, str] = getattr(modeling_flash_attention_utils, "FLASH_ATTN_KERNEL_FALLBACK", {})
    return fallbacks.get(requested, "")


def _find_violations(layers: Sequence[Layer], requested: str) -> Iterator[str]:
    pattern = EXPECTED_OPERATORS.get(requested, "")
    for layer in layers:
        if layer.kind == "linear_attention" or not requested:
            continue
        if layer.dispatched and layer.dispatched != requested:
            yield f"{layer.name} should use {requested}, but its configuration says {layer.dispatched}"
        elif pattern and layer.ran and not any(re.search(pattern, ran) for ran in layer.ran):
            yield f"{layer.name} should use {requested}, but used {', '.join(layer.ran)}"
        elif pattern and not layer.ran:
            yield f"{layer.name} should use {requested}, but no attention was observed in it"


def _summarize_layers(layers: Sequence[Layer]) -> str:
    """Return a line with the number of layers that ran each operator."""
    counts: dict[str, int] = {}
    for layer in layers:
        title = " and ".join(layer.ran) or "no known attention"
        counts[title] = counts.get(title, 0) + 1
    return "; ".join(f"{title} in {count} of {len(layers)} layers" for title, count in counts.items())
