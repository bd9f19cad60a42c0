"""Parallel equals single: a step of training over ranks against the same documents one at a time in one process.

Two instruments, so that what is wrong can be named. From a row's tokens to its logits, and to the gradients of all
parameters, rounding hides small things: `single` measures by how much. From the logits to the loss, and back to the
loss's gradients at the logits, nothing is rounded: `shares` sees one label, one token, one rank's weight. Where the
logits are wrong, `wrong_ways` looks for the wrong model that they are right for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attncheck.core import codec
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Layer
from attncheck.core.results.verdicts import Outcome
from attncheck.smoke.worker.data.language import Language
from attncheck.smoke.worker.models import build
from attncheck.smoke.worker.ranks import loss_shares, reference
from attncheck.smoke.worker.ranks.ring_attention import SCHEMES, Attention, Refused, told
from attncheck.smoke.worker.ranks.sharded import Driver, Step, row, step
from attncheck.smoke.worker.ranks.wrong_models import nearest
from attncheck.smoke.worker.testbed import Bed, norm

if TYPE_CHECKING:
    from attncheck.ring.worker.rank import Member

QUESTION = "parallel"
SHARD = 40  # tokens of a rank, padding included
ALIKE = 1e-6  # relative: what the ranks hold after a reduction are the same bits
DRIVERS: dict[str, type[Driver]] = dict.fromkeys(SCHEMES, Driver)  # how a row is laid over ranks, by name


class _Failed(Exception):
    """The step raised; the message says what."""


def smoke(member: Member) -> None:
    """Prove every item, (driver, name of a case); `cases` has the model and the plan of each. Rank 0 judges."""
    from attncheck.ring.worker.rank import Lost

    build.stay_offline()
    for index, (driver, name) in enumerate(member.message["items"]):
        member.say({"started": index})
        case = member.message["cases"][name]
        plan = codec.read(Plan, case["plan"])
        os.environ.update(dict(plan.environ))
        try:
            found = prove(member, case["model"], plan, DRIVERS[driver])
        except _Failed as error:  # the peers may wait for us in a collective
            raise Lost(str(error)) from error
        member.say({"item": index, "answer": codec.plain(found)})


def prove(member: Member, name: str, plan: Plan, kind: type[Driver]) -> CheckResult:
    """Return the proof of a plan; every rank of the group must ask for the same."""
    attention = SCHEMES[plan.scheme](member.group, member.world_size, member.device.emulated)
    device = torch.device("cuda", torch.cuda.current_device()) if member.device.kind == "cuda" else torch.device("cpu")
    plan = replace(plan, max_length=max(plan.max_length, member.world_size * SHARD))
    model, outcome, reason = None, "ok", ""
    try:
        bed = Bed(build.architecture(name), plan, device)
        attention.prepare(plan)
        model = attention.model(bed)
    except build.Unbuildable as error:
        outcome, reason = "skipped", str(error)
    except Refused as error:
        outcome, reason = "refused", str(error)
    except BaseException as error:  # a damaged package may raise anything
        outcome, reason = "raised", told(error, plan)
    reason = member.agree(reason)
    if reason or model is None:
        return CheckResult(QUESTION, _outcome(outcome), reason)
    try:
        return _compared(member, bed, attention, model, kind)
    except Refused as error:  # of every rank alike, before they exchange anything
        return CheckResult(QUESTION, "refused", member.agree(str(error)))
    except Exception as error:
        raise _Failed(told(error, plan, attention.kv_heads)) from error


def _outcome(outcome: str) -> Outcome:
    """Return what came of the plan; where only a peer has the reason, it raised there."""
    known: dict[str, Outcome] = {"skipped": "skipped", "refused": "refused"}
    return known.get(outcome, "raised")


def documents(seed: int, ranks: int) -> tuple[tuple[Tensor, ...], ...]:
    """Return the documents of two rows for so many shards.

    In the first, one ends on the first shard's edge, and the row has a token less than the shards; in the second one
    is longer than a shard and begins in the first.
    """
    language = Language(seed)
    first = (28, SHARD - 28, 1, 7, (ranks - 1) * SHARD - 9)
    second = (9, SHARD + 11, (ranks - 1) * SHARD - 20)
    return tuple(tuple(map(language.document, lengths)) for lengths in (first, second))


def _compared(member: Member, bed: Bed, attention: Attention, model: nn.Module, kind: type[Driver]) -> CheckResult:
    """Return the proof of a model over ranks; what rank 0 returns, the others' is not used."""
    texts = documents(bed.plan.seed, member.world_size)
    rows = [row(each, bed.device) for each in texts]
    driver = kind(member.group, member.rank, member.world_size, attention.tell)
    made = step(driver, model, rows, lambda: attention.arithmetic(bed))
    layers = attention.layers(model, bed.plan.attn_implementation)
    member.agreed += 1
    reports = [json.loads(text) for text in member.shared(f"own/{member.agreed}", json.dumps(_own(made)))]
    if not member.leads:
        return CheckResult(QUESTION)
    one = reference.single(bed, texts)
    measures = (*reference.measures(made, rows, one), *loss_shares.measures(made, rows))
    violations = [
        *_silent(layers, attention.title),
        *_ranks(reports, made),
        *loss_shares.violations(made, rows, driver),
    ]
    if measures[0].beyond:
        wrong = nearest(bed, rows, made, driver, measures[0].limit)
        violations += [f"the logits are those of {wrong}"] if wrong else []
    notes = tuple(_notes(member, attention, layers, made))
    return CheckResult(QUESTION, measures=measures, violations=tuple(violations), notes=notes, layers=layers)


def _own(made: Step) -> dict[str, Any]:
    """Return what a rank tells of itself: its gradients before they are reduced, and what it holds after."""
    lacking = [name for name in made.gradients if name not in made.own and ".experts." not in name]
    blown = [name for name, gradient in made.own.items() if not bool(gradient.isfinite().all())]
    return {
        "norm": norm(made.own),
        "lacking": lacking,
        "blown": blown,
        "loss": made.loss,
        "reduced": norm(made.gradients),
    }


def _silent(layers: Sequence[Layer], title: str) -> Iterator[str]:
    """Yield that the attention over ranks was not entered, and where."""
    recurrent = [layer.name for layer in layers if layer.kind == "linear_attention"]
    if recurrent:
        yield f"{', '.join(recurrent)}: a state along the row, which {title} does not hand from rank to rank"
    without = [layer for layer in layers if not layer.ran and layer.name not in recurrent]
    if not without:
        return
    asked = without[0].dispatched or without[0].requested
    if len(without) + len(recurrent) == len(layers):
        yield f"{title} is never entered under {asked}: the ring is off, silently"
    else:
        yield f"{title} is not entered in {', '.join(layer.name for layer in without)}, under {asked}"


def _ranks(reports: Sequence[Mapping[str, Any]], made: Step) -> Iterator[str]:
    """Yield what ranks have wrong by themselves: gradients that are missing, left out or not shared."""
    everywhere = set.intersection(*(set(report["lacking"]) for report in reports))
    for rank, report in enumerate(reports):
        lacking = [name for name in report["lacking"] if name not in everywhere]
        if report["blown"]:
            yield f"rank {rank} has NaN or infinity in the gradient of {_listed(report['blown'])}"
        elif not report["norm"]:
            yield f"rank {rank} has no gradient"
        elif lacking:
            yield f"rank {rank} has no gradient of {_listed(lacking)}"
    if not _alike([report["loss"] for report in reports]):
        yield "the ranks report different losses: " + ", ".join(f"{report['loss']:.6g}" for report in reports)
    if not _alike([report["reduced"] for report in reports]):
        yield "the ranks hold different gradients after they were reduced"
        return
    for rank, weight in enumerate(made.weights):
        if not _alike([weight, max(made.weights)]):
            yield f"rank {rank}'s gradient is reduced with weight {weight:.3g}, others' with {max(made.weights):.3g}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} parameters, first {names[0]}"


def _alike(values: Sequence[float]) -> bool:
    """Say whether values are the same; NaNs are told of elsewhere."""
    return not max(values) - min(values) > ALIKE * max(abs(value) for value in values)


def _notes(member: Member, attention: Attention, layers: Sequence[Layer], made: Step) -> Iterator[str]:
    entered = sum(bool(layer.ran) for layer in layers)
    yield f"{attention.title} on {member.world_size} ranks: entered in {entered} of {len(layers)} layers"
    yield f"rows are cut as OpenRLHF 0.11.2 does; each rank's gradients weigh {made.weights[0]:.3g} in the reduced ones"
    yield from attention.notes()
