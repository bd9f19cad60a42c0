"""Checks whether packed documents attend to each other: compares packed with unpacked rows, and replaces or poisons
neighbours.

Packed rows are compared with each document in isolation. The limit in float32, if the implementation supports it, is
rounding; in the plan's precision it is twice the rounding error of the unpacked run. Then one document is replaced:
logits of all others must keep every bit. NaN in the neighbours is judged only if a kernel that indexes by cu_seqlens
ran. Otherwise a mask multiplies, and 0 × NaN is NaN without any leak.
Source of the method: xformers/MSLK `nanify_oob_seqlen`; transformers' `test_flash_attention_2_padding_matches_…`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from attncheck.attention.device import describe_exception
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker import controls
from attncheck.smoke.worker.attention_trace import AttentionTrace
from attncheck.smoke.worker.checks.implementation import NOT_CAUSAL, find_fault
from attncheck.smoke.worker.controls import Comparison
from attncheck.smoke.worker.data.packing import Batch
from attncheck.smoke.worker.testbed import FP32_LIMIT, UNSUPPORTED_ERRORS, Testbed, relative_error

REPEAT_MULTIPLE = 3.0  # times the change of a document in a repeated run, which random numbers may cause
# a leak of everything must change logits by this many limits, otherwise the check could not detect one
LEAK_MULTIPLE = 20.0


def run(testbed: Testbed) -> CheckResult:
    """Compare packed rows with unpacked documents, then replace and poison neighbours."""
    if testbed.random_always:
        return CheckResult("isolation", "skipped", testbed.random_always)
    measures: list[Measure] = []
    notes: list[str] = []
    violations: list[str] = []
    warnings = [*controls.mode_warnings(testbed)]
    fp32_plan = replace(testbed.plan, precision="fp32")
    for plan in dict.fromkeys((fp32_plan, testbed.plan)):
        try:
            comparison = compare_with_unpacked(testbed, plan)
        except UNSUPPORTED_ERRORS as error:
            if plan is testbed.plan:
                raise
            notes.append(f"not in float32: {describe_exception(error)}")
            continue
        measures += comparison.measures
        warnings += comparison.warnings
        notes += comparison.notes
    violations += find_replacement_leaks(testbed)
    poison_violations, poison_notes = poison_neighbours(testbed, runs_varlen_kernels(testbed))
    violations += poison_violations
    notes += poison_notes
    if testbed.no_backward_reason:
        notes.append(f"forward only: {testbed.no_backward_reason}")
    fault = find_fault(testbed) if violations or any(measure.beyond for measure in measures) else ""
    if fault and (NOT_CAUSAL in fault or not violations):
        return CheckResult("isolation", "skipped", fault, tuple(measures), notes=tuple(notes))
    if fault:
        notes.append(fault)
        measures = [measure for measure in measures if not measure.beyond]
    blind_reason = "" if violations else describe_blindness(testbed, measures)
    if blind_reason:
        return CheckResult("isolation", "skipped", blind_reason, tuple(measures), notes=tuple(notes))
    return CheckResult(
        "isolation",
        measures=tuple(measures),
        violations=tuple(violations),
        warnings=tuple(dict.fromkeys(warnings)),
        notes=tuple(notes),
    )


def compare_with_unpacked(testbed: Testbed, plan: Plan) -> Comparison:
    """Return the difference of the packed rows' logits and gradients from those of each document in isolation."""
    order, batch = testbed.document_order(plan), testbed.make_batch(testbed.make_rows(), plan)
    backward = not testbed.no_backward_reason
    layout = controls.batch_layout(testbed, testbed.build_model(plan), batch, order, plan, backward)
    reference = testbed.implementation_reference if plan.precision == "fp32" else testbed.reference
    expected = replace(reference, logits=tuple(reference.logits[index] for index in order))
    return controls.compare(testbed, layout, plan, expected, testbed.error_limits(plan.precision), plan.precision)


def find_replacement_leaks(testbed: Testbed) -> Iterator[str]:
    """Yield a line if replacing one document changes a bit of another's logits, or none of its own.

    If another's changes, the unchanged rows run again: a change in that run too is not a leak.
    """
    model, order = testbed.build_model(), testbed.document_order()
    before = _packed_logits(testbed, model, testbed.documents)
    for changed in (0, len(testbed.documents) // 2):
        documents = [*testbed.documents]
        documents[changed] = testbed.replacements[changed]
        after = _packed_logits(testbed, model, documents)
        for position, index in enumerate(order):
            if index != changed and not torch.equal(before[position], after[position]):
                error = relative_error([after[position]], [before[position]])
                again = _packed_logits(testbed, model, testbed.documents)
                if error <= REPEAT_MULTIPLE * relative_error([again[position]], [before[position]]):
                    continue
                yield f"replacing document {changed} changes the logits of document {index} by {error:.2g}"
                break
        if torch.equal(before[order.index(changed)], after[order.index(changed)]):
            yield f"replacing document {changed} does not change its own logits: the model does not read its input"


def _packed_logits(testbed: Testbed, model: nn.Module, documents: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return testbed.run_batch(model, testbed.make_batch(testbed.make_rows(documents)), backward=False).logits


def poison_neighbours(testbed: Testbed, is_varlen: bool) -> tuple[list[str], list[str]]:
    """Return violations and notes: whether NaN and infinity in all other documents reach a middle one."""
    model, batch = testbed.build_model(), testbed.make_batch(testbed.make_rows())
    kept_span = batch.spans[len(batch.spans) // 2]
    embeddings = model.get_input_embeddings()(batch.inputs["input_ids"]).detach()  # type: ignore[operator]
    kept_tokens = torch.zeros(embeddings.shape[:2], dtype=torch.bool, device=embeddings.device)
    kept_tokens[kept_span.row, kept_span.start : kept_span.stop] = True
    spreading = []
    for name, value in (("NaN", float("nan")), ("infinity", float("inf"))):
        inputs = {key: item for key, item in batch.inputs.items() if key != "input_ids"}
        inputs["inputs_embeds"] = torch.where(kept_tokens[..., None], embeddings, torch.full_like(embeddings, value))
        try:
            logits = testbed.run_batch(model, Batch(inputs, batch.labels, batch.spans), backward=False).logits
        except (*UNSUPPORTED_ERRORS, AttributeError) as error:  # a router may need the tokens: deepseek_v4's
            return [], [f"not tested with NaN: the model does not accept embeddings: {describe_exception(error)}"]
        if not bool(torch.isfinite(logits[batch.spans.index(kept_span)]).all()):
            spreading.append(name)
    if not spreading:
        return [], ["NaN and infinity in neighbours do not spread"]
    description = f"{' and '.join(spreading)} in neighbours spreads to a document between them"
    if is_varlen:
        return [description], []
    return [], [f"{description}: 0 × NaN under a mask, which is not a leak"]


def describe_blindness(testbed: Testbed, measures: Sequence[Measure]) -> str:
    """Return a reason if the model attends so little that a leak would not show; otherwise ""."""
    if any(measure.beyond for measure in measures):
        return ""
    joined = torch.cat(list(testbed.documents))
    model = testbed.build_model(replace(testbed.plan, precision="fp32", compile=False), "eager")
    joined_logits = testbed.run_unpacked(model, [joined]).logits[0]
    boundaries = [0, *torch.tensor([len(d) for d in testbed.documents]).cumsum(0).tolist()]
    pieces = [joined_logits[start:stop] for start, stop in pairwise(boundaries)]
    change = relative_error(pieces, testbed.reference.logits)
    limit = max((m.limit for m in measures if m.what.startswith("logits")), default=FP32_LIMIT)
    if change > min(LEAK_MULTIPLE * FP32_LIMIT, limit):
        return ""
    return f"documents that attend to each other change logits by only {change:.1g}: this model cannot show a leak"


def runs_varlen_kernels(testbed: Testbed) -> bool:
    """Return whether every attention layer runs a kernel that receives the documents' boundaries."""
    model, batch = testbed.build_model(), testbed.make_batch(testbed.make_rows())
    trace = AttentionTrace(model, testbed.plan.attn_implementation)
    trace.record(lambda: testbed.run_batch(model, batch, backward=False))
    layers = trace.collect_layers()
    return bool(layers) and all(any("packed" in ran for ran in layer.ran) for layer in layers)
