"""Compares the gradients of the first step, before clipping, with those of its loss on each document in isolation."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.core.rehearsal import NORMALISATION_TEXTS, NORMALISATIONS
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.rehearsal.worker.changes import compare, judge_change
from attncheck.rehearsal.worker.changes import name as name_first
from attncheck.rehearsal.worker.definitions import (
    SCALE_LIMIT,
    Definition,
    Explanation,
    Fit,
    compute_gradients,
    compute_loss,
    fit_gradients,
    fit_weights,
    gradient_limit,
    is_near,
    list_shares,
)
from attncheck.rehearsal.worker.evidence import Evidence
from attncheck.rehearsal.worker.explanations import (
    documented,
    explain_loss,
    find_own_regulariser,
    iter_moved_targets,
    iter_slice_faults,
    loss_limit,
)
from attncheck.rehearsal.worker.norms import read_stepped
from attncheck.rehearsal.worker.records import RankRecord
from attncheck.smoke.worker.testbed import gradient_error, gradient_norm, worst_parameter

MAX_RANK_DIFFERENCE = 0.01  # relative, between ranks that should step equally
OWN_SHARE = 0.5  # share of the worst parameter's error: parameters above it are named
NEARER = 0.7  # rounding is equal for all targets: of two losses the actual one is nearer by this
NAMED = 3  # the most parameters in a message
BEGUN = 10  # multiple of the limit above which a gradient is wrong
LAYER = re.compile(r"\.(\d+)\.")
# Share of the whole gradient: parameters with a gradient that rounds to zero, such as a bias of keys, are not named.
NEGLIGIBLE = 1e-4
LEAST_WEIGHT = 0.05  # of a document, as a share of the largest one
OWN_WEIGHTS = "the gradients are those of a mean in which each document has its own weight, as its author may intend"
AS_STREAM = "the reference isolates documents, which in this launch attend to each other"
MASKED = "a hook of the script zeroes the gradients of some rows of {}: the others are compared"
NO_GRADIENTS = "the gradients were not recorded, because they are sharded across ranks"

Gradients = Mapping[str, Tensor]


def run(evidence: Evidence) -> CheckResult:
    """Compare the gradients of the step with the reference's, direction and length separately."""
    if not evidence.observed_gradients and not evidence.step.ranks[0].trainable:
        return CheckResult("gradients", "skipped", NO_GRADIENTS)
    explanation = explain_loss(evidence) or Explanation(documented(evidence)[0], 1.0, "unexplained")
    if explanation.reading is not None and not evidence.step.objective.is_documented:  # its author chooses the targets
        evidence = explanation.reading
    definition = explanation.definition
    expected = compute_gradients(evidence, definition)
    evidence, masked = _fill_masked_rows(evidence, expected)
    missing = _list_missing(evidence, expected)
    actual = {name: evidence.observed_gradients[name] for name in expected if name in evidence.observed_gradients}
    shared = {name: expected[name] for name in actual}
    fit = fit_gradients(evidence, definition)
    if fit is None and missing:
        return CheckResult("gradients", violations=_add_code(evidence, tuple(_tell_missing(evidence, missing))))
    if fit is None:
        return CheckResult("gradients", "skipped", "only parameters outside the base model are trained")
    objective = evidence.step.objective
    if explanation.fault == "unexplained" and (evidence.is_own_script or not objective.is_documented):
        regularised = find_own_regulariser(evidence) if not missing else None
        if regularised is not None:
            limit = gradient_limit(evidence, documented(evidence)[0])
            measure = Measure("gradients of the first step", regularised.error, limit, f"of {regularised.text}")
            return CheckResult("gradients", measures=(measure,), violations=tuple(_compare_ranks(evidence)))
        reason = "unknown: the tokens that the loss covers"
        violations = _add_code(evidence, (*_compare_ranks(evidence), *_tell_missing(evidence, missing)))
        return CheckResult("gradients", "ok" if violations else "skipped", reason, violations=violations)
    scaled = {name: gradient * fit.scale for name, gradient in shared.items()}
    limit = gradient_limit(evidence, documented(evidence)[0])
    where = f"worst in {worst_parameter(actual, scaled)}"
    measures = [Measure("gradients of the first step, direction", gradient_error(actual, scaled), limit, where)]
    if not explanation.fault:
        measures.append(
            Measure("gradients of the first step, factor minus 1", abs(fit.scale - 1.0), max(SCALE_LIMIT, limit))
        )
    violations = (*_compare_ranks(evidence), *_tell_missing(evidence, missing), *_find_masked_tokens(evidence, masked))
    is_wrong = not violations and any(measure.beyond for measure in measures)
    if is_wrong and evidence.differs:  # in half precision the losses may still be equal
        return CheckResult("gradients", "skipped", AS_STREAM)
    if is_wrong and not objective.is_documented and measures[0].beyond and _has_weights(evidence, definition, limit):
        return CheckResult("gradients", "skipped", OWN_WEIGHTS)
    if is_wrong:
        violations = tuple(_explain(evidence, definition, actual, shared, limit, fit.scale))
    elif not violations:
        violations = tuple(_find_nearer(evidence, fit))
    violations = _add_code(evidence, violations)
    if any(measure.beyond for measure in measures) and _are_changed_on_purpose(evidence, definition, limit, fit):
        reason = (
            "the gradients are right after the last backward, but other code then changes them, for an unknown reason"
        )
        return CheckResult("gradients", "skipped", reason)
    unkept = evidence.step.ranks[0].unkept
    left_out = f"; {unkept} others are too large to record" if unkept else ""
    notes = (
        f"norm {gradient_norm(actual):.4g}, {len(shared)} parameters compared{left_out}",
        *map(MASKED.format, masked),
    )
    return CheckResult("gradients", measures=tuple(measures), violations=violations, notes=notes)


def _fill_masked_rows(evidence: Evidence, expected: Gradients) -> tuple[Evidence, dict[str, Tensor]]:
    """Return the evidence with the reference's gradients in rows that a script's hook zeroes, and these rows.

    Which rows are trained, such as those of new tokens alone, is for its author to choose.
    """
    record, rows = evidence.step.ranks[0], {}
    for name in {name for names in record.gradient_hooks.values() for name in names} & expected.keys():
        own, right = record.gradients.get(name), expected[name]
        if own is None or own.shape != right.shape or own.dim() != 2 or record.world_size > 1:
            continue
        zeroed = ~own.flatten(1).any(1) & right.flatten(1).any(1)
        if bool(zeroed.any()) and bool(own.any()):
            rows[name] = zeroed
    filled = {
        name: record.gradients[name].where(
            ~zeroed[:, None], expected[name] * _fit_factor(record.gradients[name][~zeroed], expected[name][~zeroed])
        )
        for name, zeroed in rows.items()
    }
    if not rows:
        return evidence, rows
    ranks = (replace(record, gradients={**record.gradients, **filled}), *evidence.step.ranks[1:])
    return replace(evidence, step=replace(evidence.step, ranks=ranks)), rows


def _find_masked_tokens(evidence: Evidence, masked: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the embeddings in which a hook zeroes all rows of the tokens that the launch adds, and not all others."""
    first = evidence.tokens
    for name, zeroed in masked.items() if first else ():
        if len(zeroed) > first and bool(zeroed[first:].all()) and not bool(zeroed[:first].all()):
            yield f"a hook zeroes the gradients of all {len(zeroed) - first} rows of {name} that the launch adds"


def _has_weights(evidence: Evidence, definition: Definition, limit: float) -> bool:
    """Return whether the gradients are those of a sum that gives each document its own positive weight.

    It is not its author's choice if the loss is the mean without these weights.
    """
    fit, shares = fit_weights(evidence, definition), list_shares(evidence, definition)
    weights = [weight for weight, share in zip(fit.weights, shares) if share] if fit is not None else []
    if fit is None or fit.error > limit or min(weights) <= LEAST_WEIGHT * max(weights):
        return False
    means = [compute_loss(evidence, item) for item in (replace(definition, weights=fit.weights), definition)]
    is_own, is_plain = [is_near(mean, evidence.observed_loss, loss_limit(evidence)) for mean in means]
    return is_own or not is_plain


def _list_missing(evidence: Evidence, expected: Gradients) -> list[str]:
    """Return the trainable parameters that the loss depends on and that got no gradient."""
    trainable = set(evidence.step.ranks[0].trainable)
    least = NEGLIGIBLE * gradient_norm(expected)  # a bias of keys has no gradient but rounding, which bf16 loses
    missing = []
    for name, gradient in expected.items():
        actual = evidence.observed_gradients.get(name)
        if name in trainable and float(gradient.norm()) > (0 if actual is None else least):
            if actual is not None and bool(actual.any()):
                continue
            missing.append(name)
    return missing


def _tell_missing(evidence: Evidence, missing: list[str]) -> Iterator[str]:
    if missing:
        names = f"{', '.join(missing[:NAMED])}{' and others' if len(missing) > NAMED else ''}"
        yield f"no gradient reaches {len(missing)} of {len(evidence.step.ranks[0].trainable)} parameters: {names}"


def _explain(
    evidence: Evidence, definition: Definition, actual: Gradients, expected: Gradients, limit: float, scale: float
) -> Iterator[str]:
    """Yield the faults: another mean, a single batch, only some parameters, a factor on all."""
    for batch in range(evidence.batches if evidence.batches > 1 else 0):
        fit = fit_gradients(evidence, replace(definition, batch=batch))
        if fit is not None and fit.error <= limit:
            lines = evidence.taken[0].code.get("zeroed", ())
            yield (
                f"the gradients come only from batch {batch + 1} of {evidence.batches}: the gradients of the others "
                f"are lost{f', because {lines[0]} zeroes them' if lines else ''}"
            )
            return
    if gradient_error(actual, {name: gradient * scale for name, gradient in expected.items()}) <= limit:
        yield f"the gradients are {scale:.4g} times those of the loss{_name_scale(evidence, scale)}"
        return
    # if batches have about equally many targets, the two losses are too close to distinguish
    for name in NORMALISATIONS:
        fit = fit_gradients(evidence, replace(definition, normalisation=name, shift=1, every=False))
        if name != definition.normalisation and fit is not None and fit.error <= limit:
            yield f"the gradients are those of {NORMALISATION_TEXTS[name]}, not of {definition.text}"
            return
    fault, error = _find_nearest_slice_fault(evidence)
    if error <= limit:
        yield f"the gradients belong to a different loss: {fault}"
        return
    for reading, fault in iter_moved_targets(evidence):
        fit = fit_gradients(reading, definition)
        if fit is not None and fit.error <= limit:
            yield f"the gradients belong to a different loss: {fault}"
            return
    yield from list(_find_own_factors(evidence)) or _name_parameters(actual, expected, limit)


def _find_own_factors(evidence: Evidence) -> Iterator[str]:
    """Yield the fault that each rank multiplies its part of all gradients by its own number.

    FSDP 2 gives each rank a part of the first dimension, as `torch.chunk` does.
    """
    record, count = evidence.step.ranks[0], len(evidence.step.ranks)
    names = [n for n, value in record.backward.items() if value.dim() and len(value.chunk(count)) == count]
    parts = [
        [{n: gradients[n].chunk(count)[rank] for n in names} for gradients in (record.backward, record.gradients)]
        for rank in range(count if record.gradients.keys() >= {*names} else 0)
    ]
    changes = [compare(before, after, names) for before, after in parts]
    factors = [change.usual for change in changes if change.factors and not change.others]
    if len(factors) == count and max(factors) - min(factors) > MAX_RANK_DIFFERENCE:
        yield (
            "after the last backward the ranks multiply their parts of the gradients by "
            f"{', '.join(f'{factor:.3g}' for factor in factors)}: each clips by its part's norm; squares of norms "
            "must first be added up across ranks"
        )


def _add_code(evidence: Evidence, violations: tuple[str, ...]) -> tuple[str, ...]:
    """Return the faults, the first one with the script's hooks on gradients, or else its code in the model."""
    record = evidence.step.ranks[0]
    hooks = [f"{hook} (on {name_first(names)})" for hook, names in record.gradient_hooks.items()]
    texts, kind = (hooks, "hooks on gradients") if hooks else (record.patches, "code in the model")
    if not texts or not violations:
        return violations
    return (f"{violations[0]}; the script has {kind}: {', '.join(texts[:NAMED])}", *violations[1:])


def _are_changed_on_purpose(evidence: Evidence, definition: Definition, limit: float, fit: Fit) -> bool:
    """Return whether other code changed gradients, right after the last backward, as an author may intend.

    It does not if a number of ranks or batches is the factor on all. With several ranks the last backward leaves each
    with its own, unless they are already right, or some are reduced manually.
    """
    ranks = _reduce_again(evidence.step.ranks)
    if not all(record.backward for record in ranks) or _name_scale(evidence, fit.scale):
        return False
    for record in ranks:
        change = compare(record.backward, record.gradients, record.gradients)
        if judge_change(change, "")[0] or not (change.others or change.is_smaller):
            return False
        if change.others and len(ranks) > 1:  # they are reduced manually
            return False
    records = tuple(replace(record, gradients={**record.gradients, **record.backward}) for record in ranks)
    before = fit_gradients(replace(evidence, step=replace(evidence.step, ranks=records)), definition)
    return before is not None and before.error <= limit and abs(before.scale - 1.0) <= max(SCALE_LIMIT, limit)


def _reduce_again(ranks: Sequence[RankRecord]) -> list[RankRecord]:
    """Return the ranks with the gradients after the last backward, except that those reduced manually are reduced.

    Their sum or mean over the ranks is taken, times the factor that is on most gradients of the step.
    """
    reduced: dict[str, Tensor] = {}
    factors = [compare(record.backward, record.gradients, record.gradients).usual for record in ranks]
    for name, value in ranks[0].backward.items():
        values = [record.backward[name] for record in ranks if name in record.backward]
        total = torch.stack(values).sum(0) if all(own.shape == value.shape for own in values) else value
        pairs = [(record.gradients.get(name), factor) for record, factor in zip(ranks, factors, strict=True)]
        for own in (total, total / len(ranks)):
            if all(
                after is not None and after.shape == own.shape and _remainder(after, own, factor) < MAX_RANK_DIFFERENCE
                for after, factor in pairs
            ):
                reduced[name] = own
    return [replace(record, backward={**record.backward, **reduced}) for record in ranks]


def _find_nearer(evidence: Evidence, fit: Fit) -> Iterator[str]:
    """Yield a line if labels shifted within slices match the gradients better; rounding may hide a few targets."""
    fault, error = _find_nearest_slice_fault(evidence)
    if error < NEARER * fit.error:
        yield (
            f"{fault}: the gradients of the step are off by {error:.2g} from those of that loss, by {fit.error:.2g} "
            "from those of the documented one"
        )


def _find_nearest_slice_fault(evidence: Evidence) -> tuple[str, float]:
    """Return the fault of labels and means of slices that matches best, and the distance of its gradients."""
    fits = [(fault.fault, fit_gradients(evidence, fault.definition)) for fault in iter_slice_faults(evidence)]
    errors = [(text, fit.error) for text, fit in fits if fit is not None]
    return min(errors, key=lambda item: item[1], default=("", math.inf))


def _name_scale(evidence: Evidence, scale: float) -> str:
    """Return the possible meanings of a factor on all gradients: several if several numbers equal it.

    Ranks are named before batches, because a right differentiated loss is already the mean over batches.
    """
    sharing = evidence.step.layout.size
    counts = {
        "the size of the sequence-parallel group": sharing,
        "the number of ranks": len(evidence.step.ranks) // sharing,
        "the number of batches per step": evidence.batches,
    }
    named = [
        f"{before}{text}"
        for before, power in (("", 1), ("one over ", -1))
        for text, count in counts.items()
        if count != 1 and abs(scale / count**power - 1) < 0.02
    ]
    preference = evidence.step.objective.preference
    if preference is not None and named and preference.has_beta_in_slopes_alone:
        named.append(f"beta is {preference.beta * scale:.4g}, not {preference.beta:g}")
    return f": {', or '.join(named)}" if named else ""


def _name_parameters(actual: Gradients, expected: Gradients, limit: float) -> Iterator[str]:
    """Yield the parameters with wrong gradients, if most are right."""
    errors = {
        name: float((actual[name].double() - gradient.double()).norm()) / max(float(gradient.double().norm()), 1e-12)
        for name, gradient in expected.items()
    }
    least = NEGLIGIBLE * gradient_norm(expected)
    errors = {name: error for name, error in errors.items() if float(expected[name].norm()) > least}
    if errors and all(error > BEGUN * limit for error in errors.values()):
        yield (
            "no parameter, not even the head, has the right gradients: the backward pass of the loss itself is wrong, "
            "or its tokens have other weights (a mask, ratios, a temperature)"
        )
        return
    wrong = [name for name, error in errors.items() if not error <= max(limit, OWN_SHARE * max(errors.values()))]
    if not wrong or len(wrong) > len(errors) / 2:
        yield from _name_last_layer(errors, limit)
        return
    factors = [_fit_factor(actual[name], expected[name]) for name in wrong]
    names = f"{', '.join(wrong[:NAMED])}{' and others' if len(wrong) > NAMED else ''}"
    if all(error <= limit for error in (_remainder(actual[n], expected[n], f) for n, f in zip(wrong, factors))):
        part = f"{len(wrong)} of {len(errors)} parameters"
        yield f"the gradients of {part} are {factors[0]:.4g} times the right ones: {names}"
    else:
        yield f"the gradients of {len(wrong)} of {len(errors)} parameters are wrong: {names}"
        yield from _name_last_layer(errors, limit)


def _name_last_layer(errors: Mapping[str, float], limit: float) -> Iterator[str]:
    """Yield the last layer with wrong gradients, because earlier parts of the model get theirs from it."""
    layers = {name: int(match[1]) for name in errors if (match := LAYER.search(name))}
    wrong = [name for name in layers if not errors[name] <= BEGUN * limit]
    last = max((layers[name] for name in wrong), default=-1)
    first = [name for name in wrong if layers[name] == last]
    right = [name for name, layer in layers.items() if layer >= last and errors[name] <= BEGUN * limit]
    if first and right:
        yield (
            f"gradients go wrong in {', '.join(first[:NAMED])}{' and others' if len(first) > NAMED else ''}, and in "
            f"all earlier modules of the model; those of {right[-1]} are right"
        )


def _fit_factor(actual: Tensor, expected: Tensor) -> float:
    square = float(expected.double().square().sum())
    return float((actual.double() * expected.double()).sum()) / square if square else 0.0


def _remainder(actual: Tensor, expected: Tensor, factor: float) -> float:
    return float((actual.double() - factor * expected.double()).norm()) / max(float(actual.double().norm()), 1e-12)


def _compare_ranks(evidence: Evidence) -> Iterator[str]:
    """Yield a line if ranks step with different gradients, which are then not averaged across ranks."""
    first, *others = evidence.step.ranks
    for record in others:
        for name, gradient in record.gradients.items():
            other = first.gradients.get(name)
            if other is None or other.shape != gradient.shape:
                continue
            if float((other - gradient).norm()) > MAX_RANK_DIFFERENCE * float(other.norm()):
                shares_row = any({first.rank, record.rank} <= set(group) for group in evidence.step.layout.groups)
                where = "reduced over the ranks that share a row" if shares_row else "averaged across ranks"
                own: list[Any] = [read_stepped(rank).get(name) for rank in (first, record)]
                is_known = all(map(torch.is_tensor, own)) and own[0].shape == own[1].shape
                yield (
                    f"rank {record.rank} clips other gradients than rank 0, by another norm: {name} differs; they "
                    f"must be {where} before they are clipped, not after that"
                    if record.clips and is_known and torch.allclose(*own)
                    else f"rank {record.rank} steps with different gradients from rank 0: {name} differs; they are "
                    f"not {where}"
                )
                return
