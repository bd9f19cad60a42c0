"""Do packed documents see each other? Packed against alone, replaced neighbours, poisoned neighbours.

Packed rows are compared with each document alone: in float32 to rounding (where the implementation runs in it), in the
plan's precision within twice what rounding makes of the unpacked run. Then one
document is replaced: logits of all others must keep their very bits. NaN in the neighbours is judged only where a
kernel that indexes by cu_seqlens ran: elsewhere a mask multiplies, and 0 × NaN is NaN without any leak.
Source of the method: xformers/MSLK `nanify_oob_seqlen`; transformers' `test_flash_attention_2_padding_matches_…`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker import testbed as beds
from attncheck.smoke.worker.attention_trace import Watcher
from attncheck.smoke.worker.data.packing import Batch
from attncheck.smoke.worker.testbed import Bed

POWER = 20.0  # a leak of everything must change logits by this many limits, else the proof would see nothing


def prove(bed: Bed) -> CheckResult:
    """Return the proof."""
    measures: list[Measure] = []
    notes: list[str] = []
    violations: list[str] = []
    exact = replace(bed.plan, precision="fp32")
    for plan in dict.fromkeys((exact, bed.plan)):
        try:
            measures += against_alone(bed, plan)
        except beds.REFUSALS as error:
            if plan is bed.plan:
                raise
            notes.append(f"not in float32: {_line(error)}")
    violations += replaced(bed)
    spread, told = poisoned(bed, indexes_documents(bed))
    violations += spread
    notes += told
    if bed.untrainable:
        notes.append(f"forward only: {bed.untrainable}")
    weak = powerless(bed, measures)
    if weak:
        return CheckResult("isolation", "skipped", weak, tuple(measures), notes=tuple(notes))
    return CheckResult("isolation", measures=tuple(measures), violations=tuple(violations), notes=tuple(notes))


def against_alone(bed: Bed, plan: Plan) -> list[Measure]:
    """Return how far logits and gradients of the packed rows are from each document alone."""
    backward = not bed.untrainable
    model = bed.model(plan)
    packed = bed.run(model, bed.batch(bed.rows(), plan), plan, backward)
    order = bed.order(plan)
    reference = bed.own if plan.precision == "fp32" else bed.exact
    wanted = [reference.logits[index] for index in order]
    logits, gradients = bed.limits(plan.precision)
    where = _worst_document(packed.logits, wanted, order)
    found = [Measure(f"logits, {plan.precision}", beds.relative(packed.logits, wanted), logits, where)]
    if backward:
        error = beds.apart(packed.gradients, reference.gradients)
        name = f"worst in {beds.worst(packed.gradients, reference.gradients)}"
        found.append(Measure(f"gradients, {plan.precision}", error, gradients, name))
    return found


def _worst_document(got: Sequence[Tensor], wanted: Sequence[Tensor], order: Sequence[int]) -> str:
    errors = [beds.relative([g], [w]) for g, w in zip(got, wanted, strict=True)]
    worst = max(range(len(errors)), key=lambda index: errors[index])
    return f"worst in document {order[worst]} of {len(got[worst])} tokens"


def replaced(bed: Bed) -> Iterator[str]:
    """Yield where replacing one document changes a bit of another's logits."""
    model, order = bed.model(), bed.order()
    before = _logits(bed, model, bed.documents)
    for changed in (0, len(bed.documents) // 2):
        documents = [*bed.documents]
        documents[changed] = bed.other[changed]
        after = _logits(bed, model, documents)
        for place, index in enumerate(order):
            if index != changed and not torch.equal(before[place], after[place]):
                error = beds.relative([after[place]], [before[place]])
                yield f"replacing document {changed} changes the logits of document {index} by {error:.2g}"
                break
        if torch.equal(before[order.index(changed)], after[order.index(changed)]):
            yield f"replacing document {changed} does not change its own logits: the model does not read its input"


def _logits(bed: Bed, model: nn.Module, documents: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return bed.run(model, bed.batch(bed.rows(documents)), backward=False).logits


def poisoned(bed: Bed, indexed: bool) -> tuple[list[str], list[str]]:
    """Return violations and notes: does NaN in all other documents reach one in the middle of the row?"""
    model, batch = bed.model(), bed.batch(bed.rows())
    kept = batch.spots[len(batch.spots) // 2]
    embedded = model.get_input_embeddings()(batch.inputs["input_ids"]).detach()  # type: ignore[operator]
    mine = torch.zeros(embedded.shape[:2], dtype=torch.bool, device=embedded.device)
    mine[kept.row, kept.start : kept.stop] = True
    found = []
    for name, value in (("NaN", float("nan")), ("infinity", float("inf"))):
        inputs = {key: item for key, item in batch.inputs.items() if key != "input_ids"}
        inputs["inputs_embeds"] = torch.where(mine[..., None], embedded, torch.full_like(embedded, value))
        try:
            logits = bed.run(model, Batch(inputs, batch.labels, batch.spots), backward=False).logits
        except beds.REFUSALS as error:
            return [], [f"not poisoned: the model takes no embeddings: {_line(error)}"]
        if not bool(torch.isfinite(logits[batch.spots.index(kept)]).all()):
            found.append(name)
    if not found:
        return [], ["NaN and infinity in neighbours do not spread"]
    told = f"{' and '.join(found)} in neighbours spreads to a document between them"
    if indexed:
        return [told], []
    return [], [f"{told}: 0 × NaN under a mask, which is no leak"]


def powerless(bed: Bed, measures: Sequence[Measure]) -> str:
    """Return why a leak would not have been seen: the model hardly attends. "" where it would."""
    if any(measure.beyond for measure in measures):
        return ""
    joined = torch.cat(list(bed.documents))
    whole = bed.alone(bed.model(replace(bed.plan, precision="fp32", compile=False), "eager"), [joined]).logits[0]
    edges = [0, *torch.tensor([len(d) for d in bed.documents]).cumsum(0).tolist()]
    pieces = [whole[start:stop] for start, stop in pairwise(edges)]
    change = beds.relative(pieces, bed.exact.logits)
    limit = max((m.limit for m in measures if m.what.startswith("logits")), default=beds.EXACT)
    if change > min(POWER * beds.EXACT, limit):
        return ""
    return f"documents that see each other change logits by {change:.1g} only: this model cannot show a leak"


def _line(error: BaseException) -> str:
    from attncheck.attention.device import message

    return message(error)


def indexes_documents(bed: Bed) -> bool:
    """Say whether every attention layer runs a kernel that is told where documents begin and end."""
    model, batch = bed.model(), bed.batch(bed.rows())
    watcher = Watcher(model, bed.plan.attn_implementation)
    watcher.call(lambda: bed.run(model, batch, backward=False))
    layers = watcher.found()
    return bool(layers) and all(any("packed" in ran for ran in layer.ran) for layer in layers)
