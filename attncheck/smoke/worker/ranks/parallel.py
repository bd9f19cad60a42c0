"""Compares a training step across ranks with the same documents one at a time in one process.

Two modules locate the fault. From a row's tokens to its logits, and to the gradients of all parameters, rounding hides
small errors: `reference` measures how large they may be. From the logits to the loss, and back to the loss's gradients
at the logits, nothing is rounded: `loss_shares` detects one label, one token, one rank's weight. If the logits are
wrong, `wrong_models` searches for a wrong model with these logits.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.core import codec
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Layer
from attncheck.core.verdicts import Outcome
from attncheck.ring.worker.rank import RankContext, RankFailed
from attncheck.smoke.worker.data.language import Language
from attncheck.smoke.worker.models import build
from attncheck.smoke.worker.ranks import loss_shares, reference
from attncheck.smoke.worker.ranks.ring_attention import SCHEMES, RankAttention, Refused, describe_error
from attncheck.smoke.worker.ranks.sharded import Driver, ShardedStep, pack_row, run_step
from attncheck.smoke.worker.ranks.wrong_models import match_wrong_model
from attncheck.smoke.worker.shims import applied_shims
from attncheck.smoke.worker.testbed import Testbed, gradient_norm

CHECK_NAME = "parallel"
SHARD_TOKENS = 40  # tokens of a row on one rank, padding included
EQUAL_TOLERANCE = 1e-6  # relative: after a reduction the ranks hold the same bits
DRIVERS: dict[str, type[Driver]] = dict.fromkeys(
    SCHEMES, Driver
)  # the framework code around the model, by the name in an item


class _StepFailed(Exception):
    """The step raised; the message describes its error."""


def smoke(member: RankContext) -> None:
    """Run the check on every item, (driver, case); `cases` has the model and the plan of each case. Rank 0 judges."""
    build.stay_offline()
    for index, (driver, name) in enumerate(member.message["items"]):
        member.send_if_leader({"started": index})
        case = member.message["cases"][name]
        plan = codec.read(Plan, case["plan"])
        os.environ.update(dict(plan.environ))
        try:
            with applied_shims(plan):
                result = run(member, case["model"], plan, DRIVERS[driver])
        except _StepFailed as error:  # the other ranks may be waiting in a collective
            raise RankFailed(str(error)) from error
        member.send_if_leader({"item": index, "answer": codec.to_plain(result)})


def run(member: RankContext, model_name: str, plan: Plan, driver_class: type[Driver]) -> CheckResult:
    """Compare a plan's step across ranks with one process; every rank of the group must call it."""
    attention = SCHEMES[plan.scheme](member.group, member.world_size, member.device.emulated)
    device = torch.device("cuda", torch.cuda.current_device()) if member.device.kind == "cuda" else torch.device("cpu")
    plan = replace(plan, max_length=max(plan.max_length, member.world_size * SHARD_TOKENS))
    model, outcome, reason = None, "ok", ""
    try:
        testbed = Testbed(build.load_architecture(model_name), plan, device)
        attention.prepare(plan)
        model = attention.build_model(testbed)
    except build.Unbuildable as error:
        outcome, reason = "skipped", str(error)
    except Refused as error:
        outcome, reason = "refused", str(error)
    except BaseException as error:  # a damaged package may raise anything
        outcome, reason = "raised", describe_error(error, plan)
    reason = member.agree_on_reason(reason)
    if reason or model is None:
        return CheckResult(CHECK_NAME, _as_outcome(outcome), reason)
    try:
        return _compare_with_single(member, testbed, attention, model, driver_class)
    except Refused as error:  # on every rank, before any collective
        return CheckResult(CHECK_NAME, "refused", member.agree_on_reason(str(error)))
    except Exception as error:
        raise _StepFailed(describe_error(error, plan, attention.kv_heads)) from error


def _as_outcome(outcome: str) -> Outcome:
    """Return the outcome by its name; "raised" if only another rank gives a reason."""
    known: dict[str, Outcome] = {"skipped": "skipped", "refused": "refused"}
    return known.get(outcome, "raised")


def make_documents(seed: int, ranks: int) -> tuple[tuple[Tensor, ...], ...]:
    """Return the documents of two rows for `ranks` shards.

    In the first row a document ends at the first shard's edge, and the row is one token shorter than the shards. In the
    second row a document is longer than a shard and begins in the first.
    """
    language = Language(seed)
    first = (28, SHARD_TOKENS - 28, 1, 7, (ranks - 1) * SHARD_TOKENS - 9)
    second = (9, SHARD_TOKENS + 11, (ranks - 1) * SHARD_TOKENS - 20)
    return tuple(tuple(map(language.next_document, lengths)) for lengths in (first, second))


def _compare_with_single(
    member: RankContext, testbed: Testbed, attention: RankAttention, model: nn.Module, driver_class: type[Driver]
) -> CheckResult:
    """Return the result of a model across ranks; only rank 0's is complete and used."""
    documents = make_documents(testbed.plan.seed, member.world_size)
    rows = [pack_row(row_documents, testbed.device) for row_documents in documents]
    driver = driver_class(member.group, member.rank, member.world_size, attention.set_cu_seqlens)
    sharded = run_step(driver, model, rows, lambda: attention.autocast_context(testbed))
    layers = attention.collect_layers(model, testbed.plan.attn_implementation)
    member.agreements += 1
    reports = [
        json.loads(text)
        for text in member.all_gather_text(f"own/{member.agreements}", json.dumps(_summarize_rank(sharded)))
    ]
    if not member.is_leader:
        return CheckResult(CHECK_NAME)
    single = reference.run_single_process(testbed, documents)
    measures = (*reference.measure_step(sharded, rows, single), *loss_shares.measure_loss(sharded, rows))
    violations = [
        *_find_missed_layers(layers, attention.title),
        *_find_rank_violations(reports, sharded),
        *loss_shares.find_violations(sharded, rows, driver),
    ]
    if measures[0].beyond:
        wrong_model = match_wrong_model(testbed, rows, sharded, driver, measures[0].limit)
        violations += [f"the logits match {wrong_model}"] if wrong_model else []
    notes = tuple(_collect_notes(member, attention, layers, sharded))
    return CheckResult(CHECK_NAME, measures=measures, violations=tuple(violations), notes=notes, layers=layers)


def _summarize_rank(sharded: ShardedStep) -> dict[str, Any]:
    """Return a rank's report: its loss, gradient norms before and after reduction, gradients missing or not finite."""
    missing = [name for name in sharded.gradients if name not in sharded.local_gradients and ".experts." not in name]
    not_finite = [name for name, gradient in sharded.local_gradients.items() if not bool(gradient.isfinite().all())]
    return {
        "norm": gradient_norm(sharded.local_gradients),
        "lacking": missing,
        "blown": not_finite,
        "loss": sharded.loss,
        "reduced": gradient_norm(sharded.gradients),
    }


def _find_missed_layers(layers: Sequence[Layer], title: str) -> Iterator[str]:
    """Yield a line if layers did not enter the attention across ranks, naming them."""
    recurrent = [layer.name for layer in layers if layer.kind == "linear_attention"]
    if recurrent:
        yield f"{', '.join(recurrent)}: the state along the row is not passed between ranks by {title}"
    missed = [layer for layer in layers if not layer.ran and layer.name not in recurrent]
    if not missed:
        return
    implementation = missed[0].dispatched or missed[0].requested
    if len(missed) + len(recurrent) == len(layers):
        yield f"{title} is never called under {implementation}: the ring is silently inactive"
    else:
        yield (f"{title} is not called in {', '.join(layer.name for layer in missed)}, under {implementation}")


def _find_rank_violations(reports: Sequence[Mapping[str, Any]], sharded: ShardedStep) -> Iterator[str]:
    """Yield the faults of single ranks: gradients that are missing, not finite, left out or not reduced."""
    missing_everywhere = set.intersection(*(set(report["lacking"]) for report in reports))
    for rank, report in enumerate(reports):
        missing = [name for name in report["lacking"] if name not in missing_everywhere]
        if report["blown"]:
            yield f"rank {rank} has NaN or infinity in the gradient of {_format_names(report['blown'])}"
        elif not report["norm"]:
            yield f"rank {rank} has no gradient"
        elif missing:
            yield f"rank {rank} has no gradient of {_format_names(missing)}"
    if not _are_equal([report["loss"] for report in reports]):
        yield "the ranks report different losses: " + ", ".join(f"{report['loss']:.6g}" for report in reports)
    if not _are_equal([report["reduced"] for report in reports]):
        yield "the ranks hold different gradients after the reduction"
        return
    largest = max(sharded.rank_weights)
    for rank, weight in enumerate(sharded.rank_weights):
        if not _are_equal([weight, largest]):
            yield f"rank {rank}'s gradient is reduced with weight {weight:.3g}, others' with {largest:.3g}"


def _format_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} parameters, first {names[0]}"


def _are_equal(values: Sequence[float]) -> bool:
    """Return whether values are equal within EQUAL_TOLERANCE; NaNs pass, because they are reported elsewhere."""
    return not max(values) - min(values) > EQUAL_TOLERANCE * max(abs(value) for value in values)


def _collect_notes(
    member: RankContext, attention: RankAttention, layers: Sequence[Layer], sharded: ShardedStep
) -> Iterator[str]:
    entered = sum(bool(layer.ran) for layer in layers)
    yield f"{attention.title} on {member.world_size} ranks: entered in {entered} of {len(layers)} layers"
    weight = sharded.rank_weights[0]
    yield (f"rows are split as in OpenRLHF 0.11.2; each rank's gradients have weight {weight:.3g} in the reduction")
    yield from attention.list_notes()
