"""Is the loss that is differentiated the mean that the framework documents? Against each document's own."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attncheck.core.rehearsal import NORMALISATION_TEXTS, NORMALISATIONS, Normalisation
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker.rehearsal.evidence import FP32_LIMIT, ROUNDING_MULTIPLE, Evidence

MIN_LIMIT = 1e-4  # relative; losses are summed in float32


def run(evidence: Evidence) -> CheckResult:
    """Compare the step's loss with the documented mean; name the one that it is where it is another."""
    limit = loss_limit(evidence)
    observed = evidence.observed_loss
    documented = [(evidence.expected_loss(name), name) for name in evidence.step.objective.normalisations]
    expected, name = min(documented, key=lambda item: abs(item[0] - observed))
    error = abs(observed - expected) / max(abs(expected), 1e-12)
    measure = Measure(
        f"loss of the first step, {observed:.5g}, against {NORMALISATION_TEXTS[name]}, {expected:.5g}", error, limit
    )
    if not measure.beyond:
        return CheckResult("loss", measures=(measure,), notes=(f"the loss is {NORMALISATION_TEXTS[name]}",))
    explanations = [text for value, text in _hypotheses(evidence) if abs(value - observed) <= limit * abs(observed)]
    violations = [f"the loss is {observed:.5g}: {text}; it should be {expected:.5g}" for text in explanations[:1]]
    return CheckResult("loss", measures=(measure,), violations=tuple(violations))


def loss_limit(evidence: Evidence) -> float:
    """Return the largest relative error allowed of the loss: several times what rounding costs eager attention."""
    if evidence.rounded is None:
        return max(MIN_LIMIT, FP32_LIMIT)
    differences = torch.cat(
        [
            (evidence.rounded.describe(piece.tokens).nll - evidence.describe(piece).nll).abs()
            for piece in evidence.judged_pieces[:8]
        ]
    )
    mean = abs(evidence.expected_loss("step_tokens"))
    return max(MIN_LIMIT, ROUNDING_MULTIPLE * float(differences.mean()) / max(mean, 1e-12))


def matching_normalisation(evidence: Evidence) -> Normalisation | None:
    """Return the mean that the observed loss is, the documented ones first; None where it is none."""
    limit = loss_limit(evidence)
    names = dict.fromkeys((*evidence.step.objective.normalisations, *NORMALISATIONS))
    errors = {name: abs(evidence.expected_loss(name) - evidence.observed_loss) for name in names}
    return next((name for name in names if errors[name] <= limit * abs(evidence.observed_loss)), None)


def _hypotheses(evidence: Evidence) -> Iterator[tuple[float, str]]:
    """Yield what the loss would be under other definitions, the simplest first."""
    for name in NORMALISATIONS:
        yield evidence.expected_loss(name), f"{NORMALISATION_TEXTS[name]}"
    batches, ranks = evidence.batches, len(evidence.step.ranks)
    factors = {
        "the sum over the step's batches, not their mean: too large by the accumulation": float(batches),
        "divided by the accumulation twice": 1.0 / batches,
        "too large by the number of ranks": float(ranks),
        "divided by the number of ranks once too often": 1.0 / ranks,
        "too large by the accumulation and the number of ranks": float(batches * ranks),
    }
    for name in ("step_tokens", "batch_tokens", "row_tokens"):
        for text, factor in factors.items():
            if factor != 1.0:
                yield evidence.expected_loss(name) * factor, f"{text} ({NORMALISATION_TEXTS[name]})"
    for name in ("step_tokens", "batch_tokens"):
        yield _shifted_loss(evidence, name, 2), "each token is to predict the one after the next: labels shifted twice"
        yield _shifted_loss(evidence, name, 0), "each token is to predict itself: labels are not shifted"
    yield _every_token(evidence), "every token is a target, prompts and markup too"
    targets = sum(float(weight.sum()) > 0 for weight in evidence.weights("step_tokens"))
    if targets:
        total = sum(int(piece.is_target.sum()) for piece in evidence.step.pieces)
        yield evidence.expected_loss("step_tokens") * total, "the sum over target tokens, not their mean"


def _shifted_loss(evidence: Evidence, name: Normalisation, shift: int) -> float:
    """Return the loss with targets `shift` tokens ahead instead of one."""
    total = weight_sum = 0.0
    for piece, weight in zip(evidence.step.pieces, evidence.weights(name), strict=True):
        tokens, logits = torch.tensor(piece.tokens), evidence.describe(piece).logits
        log_probabilities = logits.log_softmax(-1)
        count = len(tokens) - shift
        if count < 1:
            continue
        nll = -log_probabilities[:count].gather(1, tokens[shift : shift + count, None])[:, 0].double()
        shares = weight[:count] if shift else torch.cat([weight, weight[-1:]])[:count]
        total += float((nll[: len(shares)] * shares[: len(nll)]).sum())
        weight_sum += float(shares.sum())
    return total / weight_sum if weight_sum else 0.0


def _every_token(evidence: Evidence) -> float:
    nll = torch.cat([evidence.describe(piece).nll for piece in evidence.step.pieces if len(piece.tokens) > 1])
    return float(nll.double().mean())
