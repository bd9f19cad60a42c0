"""Compares the optimiser's first steps with the same steps repeated from its gradients."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal.worker.changes import ROUNDED_LIMIT, Gradients, compare, judge_change, name
from attncheck.rehearsal.worker.definitions import compute_loss, is_scaled
from attncheck.rehearsal.worker.evidence import Evidence
from attncheck.rehearsal.worker.explanations import explain_loss
from attncheck.rehearsal.worker.norms import find_wrong_norm, read_before, read_stepped
from attncheck.rehearsal.worker.optimizers import step_again
from attncheck.rehearsal.worker.records import RankRecord

UPDATE_LIMIT = 0.01  # relative error of an update
SAME = 1e-5  # relative, of gradients that are equal on all ranks
LOGGED_LIMIT = 0.01  # relative, of logged numbers
SMALL_RATE = 0.05  # share of the launch's learning rate
ROUND = 50  # a multiple may be a number of batches that the author chose
OTHER_LENGTH = 1.5  # factor between the steps of a schedule and those of the training
MIN_STEPS = 4  # later steps with equal numbers of batches
ROUNDED_AWAY = 0.95  # share of the weights
PLAINLY_ROUNDED = ("torch.optim.", "bitsandbytes.", "apex.")  # by these Adams: neither stochastically, nor corrected
KEPT = (Tensor, Mapping)  # a recorded tensor, and the shape of one that is too large
LEAST_DECAY = 1e-5  # of a weight in each step: less is no more than 1% in 1000 steps
TOWER = re.compile(r"vis(?:ion|ual)|audio|multi_modal_projector|mm_projector")  # in the names of parameters
MOST_ROWS = 0.5  # a hook that zeroes the gradients of more rows than this freezes them
MOST = 0.9  # share of the parameters: freezing this many is intentional
NORM = re.compile(r"norm|(^|\.|_)ln(_|\.|\d|$)", re.IGNORECASE)
EMBEDDING = re.compile(r"embed|wte|lm_head")
ADAPTER = re.compile(r"lora|adapter|prompt_encoder|ia3|modules_to_save|vera|oft_")


def run(evidence: Evidence) -> CheckResult:
    """Judge the optimiser's parameters and actions in each recorded step."""
    taken = evidence.taken
    violations = [*_find_unreached(taken)]
    violations = violations or [
        *_find_mode(taken), *_find_unheld(taken), *_find_leftovers(taken), *_find_misplaced_clips(taken),
        *_find_idle(evidence), *_find_early_step(evidence), *_find_lost_state(taken), *_find_unread_settings(taken),
    ]  # fmt: skip
    schedule, unclear_schedule = _find_schedule(evidence)
    violations += [
        *schedule,
        *_find_unscheduled(evidence),
        *_find_decayed_rows(evidence),
        *_find_unequal_steps(evidence.step.ranks),
        *find_wrong_norm(evidence.clipped),
    ]
    deliberate: list[str] = []  # only the author knows whether it is intended
    for number, record in enumerate(taken if not violations else (), 1):
        altered, unclear = _find_altered(record)
        violations += [f"step {number}: {text}" for text in (*altered, *_find_wrong_updates(record))]
        deliberate = deliberate or [f"step {number}: {text}" for text in unclear]
        if violations:
            break
    violations += [*_find_other_classes(evidence.step.ranks), *(_find_unchanged(taken) if not violations else ())]
    frozen, warnings, notes = _judge_frozen(evidence)
    warnings += [*deliberate, *unclear_schedule, *find_outside_changes(taken), *_find_wrong_logs(evidence)]
    warnings += [
        *_find_untied(taken),
        *_find_untrained_tokens(evidence),
        *_find_decayed_norms(taken[0]),
        *_tell_zero_rate(taken),
        *_tell_other_rate(evidence),
        *_find_rounded_away(evidence),
        *_find_empty_clips(taken),
        *_find_unscaled(evidence),
        *_find_other_length(evidence),
    ]
    warnings += [
        f"dropout is applied in evaluation mode ({', '.join(evidence.drawn)}): the model's answers change from call to "
        "call"
    ] * bool(evidence.drawn)
    violations += frozen
    seen = [update for record in taken for update in record.updates if update["weights"]]
    if not violations and not seen:
        reason = "the optimiser's parameters are not the model's: they are sharded, flat or copies"
        return CheckResult("update", "skipped", reason, notes=tuple(notes))
    notes = [*_describe(taken, seen), *notes]
    return CheckResult("update", violations=tuple(violations), warnings=tuple(warnings), notes=tuple(notes))


def _describe(taken: Sequence[RankRecord], seen: Sequence[Mapping[str, Any]]) -> list[str]:
    if not seen:
        return []
    kinds = dict.fromkeys(update["classes"][0] for update in seen)
    count = len({name for update in seen for name in update["weights"]})
    unknown = [kind for kind in kinds if all(step_again(u) is None for u in seen if u["classes"][0] == kind)]
    notes = [f"{len(taken)} steps of {', '.join(kinds)}, {count} parameters"]
    return notes + [f"not known: how {kind} uses a gradient" for kind in unknown]


def _find_other_classes(ranks: Sequence[RankRecord]) -> Iterator[str]:
    """Yield a line if the ranks' models number the same classes otherwise, as by the order of a set of texts."""
    texts = sorted({text for record in ranks for text in record.code.get("classes", ())})
    if len(texts) > 1:
        yield (
            f"the models of {len(ranks)} ranks have different label2id, {texts[0][:80]} and {texts[1][:80]}: each rank "
            "trains other numbers for a class (the order of a set of texts differs from process to process)"
        )


def _find_mode(taken: Sequence[RankRecord]) -> Iterator[str]:
    for number, record in enumerate(taken, 1):
        if record.calls and not any(call.description["is_training"] for call in record.calls):
            begin = f", from step {number} onwards" if number > 1 else ""
            yield (
                f"the model is trained in evaluation mode{begin}: model.eval() was called and model.train() was not; "
                "dropouts and gradient checkpointing are off"
            )
            return


def _find_idle(evidence: Evidence) -> Iterator[str]:
    """Yield a line if no trained parameter gets a gradient in any recorded step, as if each waits for another."""
    taken, trained = evidence.taken, evidence.taken[0].trainable
    gradients = [gradient for record in taken for gradient in record.gradients.values()]
    is_known = len(taken) > 1 and gradients and not taken[0].unkept
    if is_known and any(any(record.losses) for record in taken) and not any(bool(g.any()) for g in gradients):
        frozen = [parameter for parameter in taken[0].frozen if ADAPTER.search(parameter)]
        why = f"; these parts of the adapter are frozen: {name(frozen)}" if frozen else ""
        yield (
            f"the gradients of all {len(trained)} trained parameters are 0 in the first {len(taken)} steps: "
            f"{name(trained)}{why}"
        )


def _find_early_step(evidence: Evidence) -> Iterator[str]:
    """Yield a line if the first step has fewer batches than all others, and its loss is divided by theirs."""
    first, *others = [len(step.losses[0]) for step in evidence.steps] or [0]
    usual = max(others, default=0)
    if len(others) < MIN_STEPS or min(others) != usual or not 0 < first < usual:
        return
    explanation = explain_loss(evidence)
    if explanation is not None and abs(explanation.factor * usual / first - 1.0) < LOGGED_LIMIT:
        yield (
            f"step 1 is taken after {first} of the {usual} batches of each later step, and its loss is divided by "
            f"{usual}: the optimiser steps before the batches are complete"
        )


def _find_schedule(evidence: Evidence) -> tuple[list[str], list[str]]:
    """Return a fault if a scheduler steps several times for each step that it is made for, a warning if it may."""
    steps = [step.schedule for step in evidence.steps[1 : len(evidence.taken)]]  # before, it may step only once
    count = min(map(len, steps), default=0)
    if count < 2:
        return [], []
    lines, repeats = list(dict.fromkeys(filter(None, steps[0]))), "" in steps[0]
    text = (
        f"the learning-rate scheduler steps {count} times for each optimiser step ({', '.join(lines)}"
        f"{', which a library repeats for each rank' * repeats}), so its schedule ends {count} times too early"
    )
    batches, planned = _count_batches(evidence), evidence.steps[-1].planned
    rounded = batches // evidence.batches, -(-batches // evidence.batches)
    epochs = [
        planned // steps
        for steps in rounded
        if steps and not planned % steps and (planned % (steps * count) or not repeats)
    ]
    steps_in_all = {int(steps * evidence.trained_epochs) for steps in (*rounded, batches / evidence.batches)}
    if planned and planned in steps_in_all:
        return [f"{text}: it is made for {planned} steps, those of the optimiser in the launch's epochs"], []
    if planned and epochs and planned % batches and planned % ROUND:  # otherwise it may be made for batches
        length = f"{epochs[0]} epoch{'s' * (epochs[0] > 1)}"
        return [f"{text}: it is made for {planned} steps, those of the optimiser in {length}"], []
    if repeats or (planned and batches and not planned % batches):
        return [], []
    return ([text], []) if len(lines) > 1 else ([], [f"{text}, unless it counts batches"])


def _find_unscheduled(evidence: Evidence) -> Iterator[str]:
    """Yield a line if no optimiser that steps ever had a scheduler, although one steps, or if its own never steps.

    A scheduler that is made for fewer steps than an epoch has may step after each epoch. Another model's optimiser may
    have it, as a critic's.

    torch 2.13 optim/lr_scheduler.py sets `initial_lr` in its optimiser's groups; transformers' for Adafactor without a
    rate removes it.
    """
    updates = [own for record in evidence.taken for own in record.updates]
    groups = [group["options"] for own in updates for group in own["groups"]]
    lines = [line for step in evidence.steps[: len(evidence.taken)] for line in step.schedule]
    is_constant = len({step.rate for step in evidence.steps}) == 1
    scheduled = ["initial_lr" in own for own in groups if own.get("lr")]
    if not (is_constant and len(scheduled) == len(groups) and any(own["weights"] for own in updates)):
        return
    rate = f"the learning rate stays {groups[0]['lr']:.2g}"
    planned, epoch = evidence.steps[-1].planned, _count_batches(evidence) // evidence.batches
    if lines and not any(scheduled):
        yield f"{rate}: the scheduler that steps ({lines[0]}) is made for another optimiser, not the one that trains"
    elif not lines and all(scheduled) and len(evidence.steps) >= MIN_STEPS and 0 < epoch <= planned:
        yield f"{rate}: its scheduler, which is made for {planned} steps, has not stepped in {len(evidence.steps)}"


def _find_other_length(evidence: Evidence) -> Iterator[str]:
    """Yield a line if a scheduler that steps with the optimiser is made for far more or fewer steps than it takes."""
    counts = {len(step.schedule) for step in evidence.steps[1 : len(evidence.taken)]}
    planned = evidence.steps[-1].planned if counts == {1} else 0
    length = -(-_count_batches(evidence) // evidence.batches) * evidence.trained_epochs
    is_chosen = planned % ROUND == 0 and planned % _count_batches(evidence) != 0 if length else True  # for other rows
    if planned and not is_chosen and not 1 / OTHER_LENGTH < planned / length < OTHER_LENGTH:
        yield (
            f"the learning-rate scheduler is made for {planned} steps, but the optimiser takes {length:.0f} in the "
            f"launch's {evidence.trained_epochs:g} epochs"
        )


def _count_batches(evidence: Evidence) -> int:
    """Return the number of batches of an epoch, 0 if it is not known."""
    own = int(*evidence.taken[0].code.get("batches", ("0",)))  # of rows that are not tokens
    return len(evidence.epochs[0].batches) if evidence.epochs else own


def _find_unreached(taken: Sequence[RankRecord]) -> Iterator[str]:
    """Yield a line if the optimisers' parameters have no gradients, because other parameters are trained."""
    held = sum(update["held"] for update in taken[0].updates)
    reached = any(update["reached"] for record in taken for update in record.updates)
    if held and not reached and any(bool(gradient.any()) for gradient in taken[0].gradients.values()):
        yield (
            f"none of the {held} parameters that the optimiser holds has a gradient: it holds another model's "
            f"parameters, or those that existed before the model was wrapped"
        )


def _find_unequal_steps(ranks: Sequence[RankRecord]) -> Iterator[str]:
    """Yield a line if ranks with equal gradients take different steps, in parameters that each rank has whole."""
    first, *others = map(read_stepped, ranks)
    for record, own in zip(ranks[1:], others, strict=True):
        alike = {
            name: value
            for name, value in first.items()
            if _is_same(read_before(ranks[0]).get(name), read_before(record).get(name), value)
        }
        change = compare(alike, own, set(alike))
        if abs(change.usual - 1.0) > 10 * SAME:
            yield (
                f"rank {record.rank} steps with {change.usual:.6g} times the gradients of rank 0, which are the same "
                f"before they are clipped: each rank clips by its own norm; {name(list(alike))}"
            )
            return


def _is_same(one: Any, other: Any, stepped: Any) -> bool:
    """Return whether two ranks have the whole, equal gradient; otherwise each may step with its own part."""
    if not all(isinstance(value, Tensor) and value.shape == one.shape for value in (one, other, stepped)):
        return False
    return float((one - other).norm()) <= SAME * float(one.norm())


def _find_unheld(taken: Sequence[RankRecord]) -> Iterator[str]:
    """Yield the trained parameters that no optimiser has, if the ones that it has are the model's own."""
    held = {name for record in taken for update in record.updates for name in update["weights"]}
    for number, record in enumerate(taken if held else (), 1):
        trained = [name for name, gradient in record.gradients.items() if bool(gradient.any())]
        unheld = [name for name in trained if name not in held]
        begin = f" from step {number} onwards, in which they are no longer frozen" if number > 1 else ""
        if unheld:
            yield (
                f"the optimiser does not hold {len(unheld)} of {len(trained)} parameters with gradients{begin}: "
                f"{name(unheld)}"
            )
            return


def _find_decayed_rows(evidence: Evidence) -> Iterator[str]:
    """Yield a line if weight decay shrinks rows whose gradients a script's hook zeroes in every step, most of all."""
    taken = evidence.taken
    hooks = {name: hook for hook, names in taken[0].gradient_hooks.items() for name in names}
    groups = [(update, group) for update in taken[0].updates for group in update["groups"]]
    for update, group in groups:
        decay = group["options"].get("weight_decay") or 0.0
        is_slow = decay * (evidence.rates[0] or group["options"].get("lr") or 0.0) < LEAST_DECAY
        for parameter in () if is_slow else hooks.keys() & {*group["parameters"]} & update.get("after", {}).keys():
            own = [record.gradients.get(parameter) for record in taken]
            before, after = update["weights"][parameter], update["after"][parameter]
            if not all(isinstance(value, Tensor) and value.dim() == 2 for value in (before, after, *own)):
                continue
            zeroed = ~torch.stack([gradient.any(1) for gradient in own if gradient is not None]).any(0)
            moved = int((zeroed & (before != after).any(1)).sum())
            if moved > MOST_ROWS * len(zeroed):
                yield (
                    f"weight_decay={decay:g} changes {moved} of {len(zeroed)} rows of {parameter}, whose gradients "
                    f"the hook {hooks[parameter]} zeroes: they are not frozen"
                )


def _find_unread_settings(taken: Sequence[RankRecord]) -> Iterator[str]:
    """Yield an option that a script changes as an attribute of torch's own optimiser, which reads only its groups."""
    updates = [own for record in taken for own in record.updates[:1] if own["classes"][0].startswith("torch.optim.")]
    for option in dict.fromkeys(key for own in updates for key in own["attributes"]):
        values = [own["attributes"][option] for own in updates if option in own["attributes"]]
        used = [group["options"].get(option) for own in updates for group in own["groups"]]
        if None not in values and any(value != values[0] for value in values) and all(own == used[0] for own in used):
            yield (
                f"the script sets optimizer.{option}, to {values[-1]} by step {len(taken)}, which has no effect: in "
                f"param_groups, which the optimiser reads, {option} stays {used[0]}"
            )


def _find_leftovers(taken: Sequence[RankRecord]) -> Iterator[str]:
    held = {name for update in taken[0].updates for name in update["weights"]}  # a zero_grad reaches no others
    for number, record in enumerate(taken, 1):
        left = [parameter for parameter in record.leftover if not held or parameter in held]
        lines = record.code.get("zeroed", ())
        why = f"zero_grad in {lines[0]} runs between a step's batches, and" if lines else "zero_grad is missing, so"
        if left:
            yield (
                f"{len(left)} gradients are not zero when step {number} differentiates its first loss: {why} "
                f"the previous step's gradients are {'not zeroed after it' if lines else 'added'}; {name(left)}"
            )
            return


def _find_lost_state(taken: Sequence[RankRecord]) -> Iterator[str]:
    """Yield a line if an optimiser no longer has the state of the step before."""
    for number, (own, later) in enumerate(itertools.pairwise(taken), 2):
        stateful = {parameter for update in own.updates for parameter in update.get("stateful", ())}
        states = {parameter: state for update in later.updates for parameter, state in update["state"].items()}
        lost = [p for p in states if p in stateful and not any(isinstance(v, KEPT) for v in states[p].values())]
        if lost:
            yield (
                f"the optimiser's state of {len(lost)} of {len(states)} parameters is lost before step {number}: other "
                f"code clears it, or makes a new optimiser, so moments never build up; {name(lost)}"
            )
            return


def _find_misplaced_clips(taken: Sequence[RankRecord]) -> Iterator[str]:
    for record in taken:
        batches = len(record.losses)
        early = [clip for clip in record.clips if 0 < clip["losses"] < batches]
        if early:
            place = early[0]["losses"]
            yield f"gradients are clipped after batch {place} of the {batches} of a step, before they are complete"
            return
    late = [clip for record in taken[1:] for clip in record.clips if not clip["losses"]]
    if late and all(not clip["losses"] for record in taken for clip in record.clips):
        yield "gradients are clipped after the optimiser's step, which uses them unclipped"


def _find_empty_clips(taken: Sequence[RankRecord]) -> Iterator[str]:
    """Yield a line if all clippings get no parameter at all."""
    clips = [clip for record in taken for clip in record.clips]
    if clips and not any(clip["names"] for clip in clips) and taken[0].gradients:
        yield (
            f"{clips[0]['kind']} gets no parameter, so that nothing is clipped: an iterator, such as "
            "model.parameters(), is empty after it was read once"
        )


def _find_unscaled(evidence: Evidence) -> Iterator[str]:
    """Yield a line if operators are cast to float16, and the loss is not scaled for it: torch 2.13 GradScaler."""
    kinds = {str(call.description["autocast"]) for call in evidence.step.calls}
    explanation = explain_loss(evidence) if kinds == {"torch.float16"} else None
    if explanation is not None and not is_scaled(abs(explanation.factor)):
        yield "operators are cast to float16, but the loss is not scaled (GradScaler): small gradients become 0"


def _find_altered(record: RankRecord) -> tuple[list[str], list[str]]:
    """Return faults and possibly intended effects of other code that changes gradients before the step."""
    clipped = _clip_again(record)
    held = {name for update in record.updates for name in update["weights"]}
    change = compare(clipped or record.gradients, read_stepped(record), held)
    wrong, deliberate = judge_change(change, "before the step")
    if record.backward and record.world_size == 1:  # with several ranks the last backward leaves each with its own
        early = judge_change(compare(record.backward, record.gradients, held), "after the last backward")
        wrong, deliberate = [*early[0], *wrong], [*early[1], *deliberate]
    norms = [clip["limit"] for clip in record.clips if clip["kind"] == "clip_grad_norm_"]
    if clipped is None or not norms or wrong or deliberate or record.unkept or not change.factors:
        return wrong, deliberate
    if abs(change.usual - 1.0) > ROUNDED_LIMIT and len(change.factors) == len(record.gradients):
        wrong = [f"the gradients are {change.usual:.4g} times what clipping to a norm of {norms[0]:g} gives"]
        if is_scaled(1 / (change.usual or 1.0)):
            wrong[0] += ", because they are clipped before unscale_: a GradScaler's factor is still on them"
    return wrong, deliberate


def _clip_again(record: RankRecord) -> Gradients | None:
    """Return the gradients after the step's clippings; None if a clipping is unknown."""
    clipped = dict(record.gradients)
    for clip in record.clips:
        if clip["losses"] != len(record.losses):
            continue
        names = set(clip["names"])
        if "" in names or not names <= clipped.keys() or (clip["kind"] != "clip_grad_value_" and clip["norm"] != 2.0):
            return None
        if clip["kind"] == "clip_grad_value_":
            clipped |= {name: clipped[name].clamp(-clip["limit"], clip["limit"]) for name in names}
            continue
        norm = math.sqrt(sum(float(clipped[name].double().square().sum()) for name in names))
        factor = min(1.0, clip["limit"] / (norm + 1e-6))
        clipped |= {name: clipped[name] * factor for name in names}
    return clipped


def _find_wrong_updates(record: RankRecord) -> Iterator[str]:
    """Yield updates of parameters that differ from the optimiser's documented rule."""
    for update in record.updates:
        kind = update["classes"][0].rpartition(".")[2]
        if any(group["options"].get("maximize") for group in update["groups"]):
            yield f"{kind} follows the gradient upwards (maximize), so the loss grows"
        expected = step_again(update)
        if expected is None or "after" not in update:
            continue
        still: list[str] = []
        wrong: list[str] = []
        for parameter, right in expected.items():
            before, after = update["weights"][parameter], update["after"].get(parameter)
            if not isinstance(after, Tensor) or after.shape != right.shape:
                continue
            change = float((right.double() - before.double()).norm())
            rounding = 2 * torch.finfo(right.dtype).eps * float(right.double().norm())
            if float((after.double() - right.double()).norm()) > UPDATE_LIMIT * change + rounding:
                (still if torch.equal(after, before) else wrong).append(parameter)
        if still:
            yield f"{kind} leaves {len(still)} of {len(expected)} parameters unchanged: {name(still)}"
        if wrong:
            count = f"{len(wrong)} of {len(expected)} parameters"
            yield f"{kind} changes {count} differently from what its rule, gradients and state give: {name(wrong)}"


def _list_rates(record: RankRecord) -> list[float]:
    return [float(group["options"].get("lr") or 0.0) for update in record.updates for group in update["groups"]]


def _tell_zero_rate(taken: Sequence[RankRecord]) -> Iterator[str]:
    rates = [rate for record in taken for rate in _list_rates(record)]
    if rates and not any(rates) and any("lr" in g["options"] for u in taken[0].updates for g in u["groups"]):
        yield f"the learning rate is 0 in the first {len(taken)} steps"


def _tell_other_rate(evidence: Evidence) -> Iterator[str]:
    """Yield a line if no optimiser has the learning rate that the launch sets, or its scheduler makes little of it."""
    own, here = evidence.rates
    groups = [group["options"] for record in evidence.taken for update in record.updates for group in update["groups"]]
    held = {float(options[name]) for options in groups for name in ("lr", "initial_lr") if options.get(name)}
    rates = [step.rate for step in evidence.steps if step.rate]
    known = next((own for own in (here, own) if any(math.isclose(r, own, rel_tol=SAME) for r in (*held, *rates))), 0.0)
    place = f"{here:.2g}" if own in (0.0, here) else f"{own:.2g} (in this run {here:.2g})"
    if own and held and rates and not known:
        yield (
            f"the launch sets a learning rate of {place}, but the optimiser has {max(held):.2g}: it reads another "
            "setting, unless the script scales the rate"
        )
    elif rates and max(rates) < SMALL_RATE * known and rates[-1] <= rates[0]:  # a warm-up's grow
        yield (
            f"the launch sets a learning rate of {place}, but a scheduler makes it {rates[0]:.2g}: a scheduler's "
            "function must return a factor of the rate, not a rate"
        )


def _find_unchanged(taken: Sequence[RankRecord]) -> Iterator[str]:
    """Yield the parameters that keep their weights in all recorded steps, although they get gradients."""
    first, last = taken[0], taken[-1]
    if len(taken) < 2 or not any(rate for record in taken[:-1] for rate in _list_rates(record)):
        return
    known = [
        parameter
        for parameter, gradient in first.gradients.items()
        if bool(gradient.any()) and parameter in first.weights and parameter in last.weights
    ]
    still = [parameter for parameter in known if torch.equal(first.weights[parameter], last.weights[parameter])]
    rounded = [parameter for parameter in still if first.weights[parameter].dtype != torch.float32]
    if rounded and len(still) == len(known):
        kind = str(first.weights[rounded[0]].dtype).removeprefix("torch.")
        rate = max(rate for record in taken for rate in _list_rates(record))
        yield (
            f"{len(still)} of {len(known)} parameters that get gradients never change: at a learning rate of "
            f"{rate:.2g} each update rounds to nothing in {kind}"
        )
        return
    still = [parameter for parameter in still if parameter not in rounded]
    if still:
        held = {parameter for record in taken for update in record.updates for parameter in update["weights"]}
        why = "" if held else ": the optimiser holds another model's parameters"
        yield f"{len(still)} of {len(known)} parameters that get gradients never change{why}: {name(still)}"


def _find_rounded_away(evidence: Evidence) -> Iterator[str]:
    """Yield a line if most of Adam's updates would round to nothing at the launch's own rate, which they reach."""
    kept = lost = 0
    rate = evidence.rates[0] or max(_list_rates(evidence.taken[0]), default=0.0)
    for update in evidence.taken[0].updates if rate else ():
        kind = update["classes"][0]
        for weight in update["weights"].values() if "Adam" in kind and kind.startswith(PLAINLY_ROUNDED) else ():
            if isinstance(weight, Tensor) and weight.dtype in (torch.bfloat16, torch.float16):
                spacing = torch.finfo(weight.dtype).eps * 2.0 ** weight.float().abs().log2().floor()
                lost += int((rate < spacing / 2).sum())
                kept += weight.numel()
    if lost > ROUNDED_AWAY * max(kept, 1):
        yield (
            f"at the launch's learning rate of {rate:.2g}, Adam's updates of {lost / kept:.1%} of the weights "
            "round to nothing, because the optimiser holds them in half precision: hold them in float32"
        )


def find_outside_changes(taken: Sequence[RankRecord]) -> Iterator[str]:
    """Yield the weights that change between an optimiser's step and the next forward, or that no optimiser has.

    The step whose change is known is named, because a warm-up's first step is none.
    """
    moves: list[tuple[str, int, list[str]]] = []
    for number, (own, later) in enumerate(itertools.pairwise(taken), 1):
        after = {**own.weights, **{n: value for update in own.updates for n, value in update.get("after", {}).items()}}
        if not any(update["weights"] for update in own.updates):
            break
        changed = [
            parameter
            for parameter, value in later.weights.items()
            if isinstance(after.get(parameter), Tensor) and not torch.equal(after[parameter], value)
        ]
        if changed:
            moves.append((_describe_move(own, after, later, changed), number, changed))
    for number, own in enumerate(taken, 1):
        held = {name: value for update in own.updates[:1] for name, value in update["weights"].items()}
        changed = [
            parameter
            for parameter, value in held.items()
            if isinstance(value, Tensor) and _is_moved(value, own.weights.get(parameter, value))
        ]
        if changed:
            yield f"{len(changed)} parameters are changed by other code during step {number}: {name(changed)}"
            break
    for move, number, changed in sorted(moves, key=lambda item: not item[0])[:1]:
        yield (
            f"{len(changed)} parameters are changed by other code between the optimiser's step {number} and the "
            f"next batch{move}: {name(changed)}"
        )


def _is_moved(value: Tensor, before: Tensor) -> bool:
    """Return whether weights differ by more than rounding, as after a way there and back."""
    difference = float((value.double() - before.double()).norm())
    return difference > 2 * torch.finfo(value.dtype).eps * float(before.double().norm())


def _describe_move(own: RankRecord, after: Gradients, later: RankRecord, changed: Sequence[str]) -> str:
    """Return how weights moved after a step: back towards those before it, or by a factor; "" if not known."""
    backs: list[float] = []
    factors: list[float] = []
    for parameter in changed:
        before, stepped = own.weights[parameter].double(), after[parameter].double()
        move, step, norm = later.weights[parameter].double() - stepped, before - stepped, float(stepped.square().sum())
        size = float(step.square().sum())
        back, factor = (float((move * way).sum()) / max(own, 1e-30) for way, own in ((step, size), (stepped, norm)))
        if float((move - back * step).norm()) <= LOGGED_LIMIT * float(move.norm()):
            backs.append(back)
        if float((move - factor * stepped).norm()) <= LOGGED_LIMIT * float(move.norm()):
            factors.append(1.0 + factor)
    if len(backs) == len(changed) and max(backs) - min(backs) < LOGGED_LIMIT:
        return f", back by {backs[0]:.3g} of the step, as if averaged weights (EMA) are copied into the trained model"
    if len(factors) == len(changed) and max(factors) - min(factors) < LOGGED_LIMIT:
        return f", multiplied by {factors[0]:.4g}"
    return ""


def _judge_frozen(evidence: Evidence) -> tuple[list[str], list[str], list[str]]:
    """Return faults, possibly intended effects, and notes about parameters that are not trained."""
    record = evidence.taken[0]
    total = len(record.frozen) + len(record.trainable)
    if not record.frozen or record.adapters or any(ADAPTER.search(n) for n in (*record.trainable, *record.frozen)):
        return [], [], []
    text = f"{len(record.trainable)} of {total} parameters are trained, without an adapter: {name(record.trainable)}"
    # frameworks freeze a whole tower unless a setting trains it: llamafactory 0.9.5 hparams, ms-swift 4.6.0 freeze_vit
    tower = () if any(map(TOWER.search, record.trainable)) else [*filter(TOWER.search, record.frozen)]
    count, total = len(record.frozen) - len(tower), total - len(tower)
    if evidence.freezes or not count:
        return [], [], [text]
    if count > MOST * total and evidence.step.objective.is_documented:
        return [f"{text}; the launch does not freeze the others"], [], []
    return [], [text] if count > total / 2 else [], [text]


def _find_untied(taken: Sequence[RankRecord]) -> Iterator[str]:
    """Yield a line if a step's model has two weights that its configuration ties; ranks may share parts of weights."""
    if any(call.description.get("is_untied") for record in taken for call in record.calls if record.world_size == 1):
        yield (
            "the configuration ties the head to the embeddings (tie_word_embeddings), but they are two parameters: "
            "code such as set_input_embeddings replaced one, so each learns alone"
        )


def _find_decayed_norms(record: RankRecord) -> Iterator[str]:
    """Yield a line if normalisation weights decay because a pattern of the script matches none of them."""
    groups = [group for update in record.updates for group in update["groups"] if group["parameters"]]
    decayed, kept = (
        [own for group in groups if bool(group["options"].get("weight_decay")) is decays for own in group["parameters"]]
        for decays in (True, False)
    )
    norms, patterns = [own for own in decayed if NORM.search(own)], record.code.get("patterns", ())
    unmatched = [text for text in patterns if NORM.search(text)]
    if norms and unmatched and kept and not any(map(NORM.search, kept)):
        yield (
            f"{len(norms)} normalisation weights decay, such as {norms[0]}, while {len(kept)} other parameters are "
            f"excluded: no parameter's name contains the script's \"{unmatched[0]}\""
        )


def _find_untrained_tokens(evidence: Evidence) -> Iterator[str]:
    """Yield a line if the batches have tokens that the launch adds, and nothing trains their embeddings."""
    first, record = evidence.tokens, evidence.step.ranks[0]
    added, used = {*map(int, record.code.get("added", ()))}, set()
    for call in evidence.step.calls:
        mask = call.tensors.get("attention_mask")
        seen = call.input_ids[mask != 0] if mask is not None and mask.shape == call.input_ids.shape else call.input_ids
        used |= {token for token in seen.flatten().tolist() if token in added or token >= first > 0}
    sizes = {key: len(own) for key, own in record.weights.items() if own.dim() == 2 and EMBEDDING.search(key)}
    held = [key for key, size in sizes.items() if size > max(used, default=size)]
    places = tuple(key.removesuffix("weight").replace("base_layer.", "") for key in held)
    if used and held and not any(key.startswith(places) for key in record.trainable):
        line = "".join(f" in {line}" for line in record.code.get("adds", ()))
        yield (
            f"nothing trains the rows in {name(held)} of {len(used)} token{'s' * (len(used) > 1)} that the launch "
            f"adds{line}, so they keep their initial values (PEFT does with trainable_token_indices or modules_to_save)"
        )


def _find_wrong_logs(evidence: Evidence) -> Iterator[str]:
    """Yield the numbers in the trainer's log of the first step that are wrong."""
    record = evidence.taken[0]
    logged = next((log for log in evidence.logs if log["step"] == 1), {})
    if "grad_norm" in logged and not record.unkept and record.gradients:
        norm = math.sqrt(sum(float(value.double().square().sum()) for value in record.gradients.values()))
        if abs(logged["grad_norm"] - norm) > LOGGED_LIMIT * norm:
            yield f"the logged gradient norm of step 1 is {logged['grad_norm']:.5g}; the actual one is {norm:.5g}"
    explanation = explain_loss(evidence) if "loss" in logged else None
    if explanation is not None and not explanation.fault and evidence.step.objective.policy is None:
        loss = compute_loss(evidence, explanation.definition)
        if abs(logged["loss"] - loss) > LOGGED_LIMIT * abs(loss):
            yield f"the logged loss of step 1 is {logged['loss']:.5g}; the actual one is {loss:.5g}"
