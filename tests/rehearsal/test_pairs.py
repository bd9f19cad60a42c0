"""Faults planted in the user's own script that trains on pairs of answers: each is caught and named.

A fault is a line of `scripts/train_pairs.py` that PLANTED_FAULT makes wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.preferences import FREE_LOSSES, PREFERENCE_LOSSES, Preference, PreferenceLoss
from attncheck.core.rehearsal import UNDOCUMENTED, Objective
from attncheck.core.results.smoke import CheckResult, deciding_reason, judge_result
from attncheck.rehearsal.worker import preferences
from tests.rehearsal.staging import SCRIPT, ForkServer, list_failures, make_materials, nightly, rehearse

PAIRS_SCRIPT = SCRIPT.parent / "train_pairs.py"
SAME_LOSS = r".*as the gradients of the first step show; its loss, 0.69315, is the same either way"


@dataclass(frozen=True)
class Fault:
    """A fault in the script: what it is started with, and what must be said of it."""

    code: str
    pattern: str
    options: str = ""
    ranks: int = 1
    also: frozenset[str] = frozenset()  # that is found on top


FAULTS: dict[str, Fault] = {
    # The batches.
    "rejected_of_another_prompt": Fault(
        "ATN431",
        r"2 answers follow another pair's prompt, the first the rejected answer of pair 1 below .* of pair 0",
        also=frozenset({"ATN432"}),
    ),
    "rejected_left_out": Fault(
        "ATN431", r"4 of 4 pairs are used without their rejected answer, the first pair 0", also=frozenset({"ATN436"})
    ),
    "answers_with_prompt": Fault("ATN431", r"\d+ of \d+ rows have their prompt twice"),
    "prompt_labelled": Fault("ATN431", r"\d+ labels are on the user's words", "--labels"),
    "end_labelled_nowhere": Fault(
        "ATN431", r"ends a chosen answer has a label in none of 4: the model does not learn to stop", "--labels"
    ),
    "truncated": Fault("ATN431", r"\d+ of \d+ documents are truncated: \d+ words"),
    # What tokens see.
    "padding_seen": Fault("ATN432", r"tokens attend to padding"),
    "documents_leak": Fault("ATN432", r"attend to earlier documents in the row", "--padding_free"),
    # The loss.
    "swapped": Fault("ATN433", rf"chosen and rejected answers are swapped{SAME_LOSS}"),
    "swapped_data": Fault("ATN433", rf"chosen and rejected answers are swapped{SAME_LOSS}"),
    "another_beta": Fault("ATN433", rf"beta is 0.25, not 0.1{SAME_LOSS}"),
    "averaged_over_length": Fault(
        "ATN433", r"log-probabilities are averaged over an answer's tokens, but the documentation says sum"
    ),
    "prompt_averaged": Fault("ATN433", r"log-probabilities are averaged over the prompt's tokens too", "--loss ipo"),
    "end_unlabelled": Fault("ATN433", r"the token that ends an answer is not in the loss"),
    "not_shifted": Fault("ATN433", r"each token is trained to predict itself: labels are not shifted"),
    "shifted_twice": Fault("ATN433", r"each token is trained to predict the one after the next"),
    "accumulation_twice": Fault(
        "ATN433", r"loss is 0.34657: divided twice by the number of accumulation steps; it should be 0.69315"
    ),
    "accumulation_forgotten": Fault("ATN433", r"loss is 1.3863: the sum over the step's batches, not their mean"),
    "another_reference": Fault(
        "ATN433",
        r"the reference is not the model that training starts from: the pairs' weights are 0.\d* to 1.\d* times",
    ),
    "no_reference": Fault("ATN433", r"the reference's log-probabilities are not subtracted from the policy's"),
    "rejected_detached": Fault("ATN433", r"no gradient comes from the rejected answers", also=frozenset({"ATN436"})),
    # The gradients, and learning.
    "layer_detached": Fault("ATN434", r"no gradient reaches 10 of 21 parameters"),
    "gradients_zeroed_between_batches": Fault(
        "ATN434", r"only from batch 2 of 2: the gradients of the others are lost"
    ),
    # Two ranks and three batches to a step: of the numbers that the factor may be, one is 2. At the first step another
    # beta has the same gradients, and the same loss.
    "summed_over_ranks": Fault(
        "ATN434",
        r"2 times those of the loss: the number of ranks, or beta is 0.2, not 0.1\n",
        "--gradient_accumulation_steps 3",
        ranks=2,
    ),
    "labels_alternate": Fault(
        "ATN433", r"4 of 8 answers are trained with the other label", "--loss bco", also=frozenset({"ATN436"})
    ),
    "reference_subtracted": Fault("ATN433", r"a reference is subtracted", "--loss cpo"),
    "chosen_left_out": Fault("ATN433", r"the chosen answers' own loss is not added", "--loss simpo"),
    "chosen_left_out, a reference": Fault("ATN433", r"the chosen answers' own loss is not added", "--own_loss 0.5"),
    "swapped_data, the chosen answers' own loss": Fault(
        "ATN433", r"chosen and rejected answers are swapped", "--loss orpo --own_loss 1"
    ),
    "reference_shared": Fault("ATN436", r"each step has the same loss, 0.6931, as if the reference"),
    "learning_rate_zero": Fault("ATN436", r"the margin between chosen and rejected answers does not grow"),
}
EVERY_TIME = ("swapped", "chosen_left_out, a reference")
CLEAN: dict[str, tuple[str, int]] = {
    "padded": ("", 1),
    "padded, labels seen": ("--labels", 1),
    "padding-free": ("--padding_free", 1),
    "autocast": ("--bf16", 1),
    "a reference made before": ("--precompute", 1),
    "two ranks": ("", 2),
    "two ranks, padding-free, autocast": ("--padding_free --bf16", 2),
    "another beta": ("--beta 0.5", 1),
    "ipo": ("--loss ipo", 1),
    "hinge": ("--loss hinge --labels", 1),
    "cpo": ("--loss cpo", 1),
    "cpo, two ranks, autocast": ("--loss cpo --bf16", 2),
    "simpo": ("--loss simpo --beta 2.0", 1),
    "orpo": ("--loss orpo --own_loss 1", 1),
    "the chosen answers' own loss": ("--own_loss 0.2", 1),
    "the chosen answers' own loss, two ranks, autocast": ("--own_loss 1 --bf16", 2),
}
SEEDS = range(5)
CLEAN_EVERY_TIME = (("padded, labels seen", 0),)


Stages = dict[int, Path]


def rehearse_pairs(
    server: ForkServer,
    stages: Stages,
    factory: pytest.TempPathFactory,
    seed: int,
    options: str = "",
    fault: str = "",
    ranks: int = 1,
) -> dict[str, CheckResult]:
    """Return the results of the script's rehearsal; its materials are made once for a seed."""
    if seed not in stages:
        stages[seed] = make_materials(factory.mktemp(f"pairs-{seed}"), seed, form="preference_text")
    losses: tuple[PreferenceLoss, ...] = ("ipo", "hinge", "simpo", "orpo", "bco", "sigmoid")
    loss = next(loss for loss in losses if f"--loss {loss}" in f"{options} --loss sigmoid")
    beta = re.search(r"--beta ([\d.]+)", options)
    preference = Preference(loss, float(beta[1]) if beta else 0.1)
    if "--loss cpo" in options or loss == "simpo":
        gamma = 0.5 if loss == "simpo" else 0.0
        preference = replace(preference, has_reference=False, gamma=gamma, chosen_weight=1.0)
    own = re.search(r"--own_loss ([\d.]+)", options)
    if own:
        has_reference = loss != "orpo"
        preference = replace(preference, has_reference=has_reference, chosen_weight=float(own[1]), averages_chosen=True)
    objective = Objective("assistant", source="the test", preference=preference)
    objective = UNDOCUMENTED if "--loss scores" in options else objective
    watch = factory.mktemp("run") / "watch"
    return rehearse(server, stages[seed], watch, options, fault, ranks, objective, script=PAIRS_SCRIPT)


NAMES = [name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.nightly) for name in FAULTS]


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_caught_and_named(
    name: str, server: ForkServer, stages: Stages, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fault = FAULTS[name]
    results = rehearse_pairs(server, stages, tmp_path_factory, 0, fault.options, name.partition(",")[0], fault.ranks)
    failures = list_failures(results)
    assert fault.code in failures, {check: deciding_reason(result) for check, result in results.items()}
    assert re.search(fault.pattern, failures[fault.code]), failures[fault.code]
    assert set(failures) - {fault.code} <= fault.also


CLEAN_RUNS = [
    pytest.param(name, seed, marks=[pytest.mark.nightly] * ((name, seed) not in CLEAN_EVERY_TIME))
    for name in CLEAN
    for seed in SEEDS
]


@pytest.mark.parametrize(("name", "seed"), CLEAN_RUNS)
def test_a_script_that_is_right_gives_no_finding(
    name: str, seed: int, server: ForkServer, stages: Stages, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options, ranks = CLEAN[name]
    results = rehearse_pairs(server, stages, tmp_path_factory, seed, options, "", ranks)
    answers = {check: (judge_result(result), deciding_reason(result)) for check, result in results.items()}
    assert {answer for answer, _ in answers.values()} == {"pass"}, answers


@pytest.mark.parametrize(("fault", "count"), [nightly("", 0), ("costs", 8), nightly("scores_interleaved", 4)])
def test_scores_that_rise_for_rejected_answers_are_a_warning(
    fault: str, count: int, server: ForkServer, stages: Stages, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The loss of a reward model is not known: it may train costs, or scores near a number."""
    results = rehearse_pairs(server, stages, tmp_path_factory, 0, "--loss scores", fault)
    assert list_failures(results) == {}
    assert judge_result(results["loss"]) == ("warn" if count else "skipped")
    assert not count or f"{count} of 8 answers" in results["loss"].warnings[0]


@pytest.mark.nightly
def test_a_prompt_that_counts_in_sums_changes_nothing(
    server: ForkServer, stages: Stages, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its tokens add to the chosen answer what they take from the rejected one: what is measured is right."""
    assert list_failures(rehearse_pairs(server, stages, tmp_path_factory, 0, "", "prompt_labelled")) == {}


@pytest.mark.parametrize("loss", PREFERENCE_LOSSES)
def test_slopes_are_those_of_the_loss(loss: PreferenceLoss) -> None:
    """The table against autograd, on the losses as trl 1.16.0 dpo_trainer.py and kto_trainer.py write them."""
    import torch
    from torch.nn.functional import logsigmoid

    beta, smoothing = 0.3, 0.1 if loss in ("sigmoid", "robust", "exo_pair", "aot", "aot_unpaired") else 0.0
    chosen, rejected = (torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in range(2))
    margin = chosen - rejected
    log_p, log_q = logsigmoid(beta * margin), logsigmoid(-beta * margin)
    smoothed = -(1 - smoothing) * log_p - smoothing * log_q
    preferred = torch.tensor(smoothing, dtype=torch.float64)
    value = {
        "sigmoid": smoothed,
        "sigmoid_norm": -log_p,
        "hinge": torch.relu(1 - beta * margin),
        "ipo": (margin - 1 / (2 * beta)) ** 2,
        "ipo_of_sums": (margin - 1 / (2 * beta)) ** 2,
        "robust": (-(1 - smoothing) * log_p + smoothing * log_q) / (1 - 2 * smoothing),
        "exo_pair": log_p.exp() * (log_p - torch.log1p(-preferred)) + log_q.exp() * (log_q - preferred.log()),
        "nca_pair": -logsigmoid(beta * chosen) - 0.5 * logsigmoid(-beta * chosen) - 0.5 * logsigmoid(-beta * rejected),
        "bco_pair": -logsigmoid(beta * chosen) - logsigmoid(-beta * rejected),
        "sppo_hard": (chosen - 0.5 / beta) ** 2 + (rejected + 0.5 / beta) ** 2,
        "aot": smoothed,
        "aot_unpaired": smoothed,
        "apo_zero": 1 - torch.sigmoid(beta * chosen) + torch.sigmoid(beta * rejected),
        "kto": (1 - torch.sigmoid(beta * chosen)) / 2 + (1 - torch.sigmoid(-beta * rejected)) / 2,
        "apo_zero_unpaired": (1 - torch.sigmoid(beta * chosen) + torch.sigmoid(beta * rejected)) / 2,
        "bco": -(logsigmoid(beta * chosen) + logsigmoid(-beta * rejected)) / 2,
        "simpo": -log_p,
        "orpo": -beta * logsigmoid(chosen - rejected),  # of the odds
        "apo_down": torch.sigmoid(beta * chosen) + 1 - torch.sigmoid(beta * margin),
    }[loss]
    value.backward()
    slopes = Preference(loss, beta, smoothing).slopes
    gradients = [0.0 if answer.grad is None else -float(answer.grad) for answer in (chosen, rejected)]
    assert [value.item(), *gradients] == pytest.approx([slopes.value, slopes.chosen, slopes.rejected])


@pytest.mark.parametrize("loss", FREE_LOSSES)
@pytest.mark.parametrize("margin", [-2.0, 0.3, 9.0])
def test_slopes_without_a_reference_are_those_of_the_loss(loss: PreferenceLoss, margin: float) -> None:
    """Against autograd, on the losses as trl 1.16.0 experimental/cpo/cpo_trainer.py writes them."""
    import torch
    from torch.nn.functional import logsigmoid

    beta, gamma, smoothing = 0.3, 0.5 if loss == "simpo" else 0.0, 0.1 if loss in ("sigmoid", "simpo") else 0.0
    chosen, rejected = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (margin - 9.5, -9.5))
    logits = chosen - rejected - gamma / beta
    smoothed = -logsigmoid(beta * logits) * (1 - smoothing) - logsigmoid(-beta * logits) * smoothing
    odds = logits - torch.log1p(-chosen.exp()) + torch.log1p(-rejected.exp())  # llamafactory 0.9.5 `odds_ratio_loss`
    value = {
        "hinge": torch.relu(1 - beta * logits),
        "ipo": (logits - 1 / (2 * beta)) ** 2,
        "orpo": -beta * logsigmoid(odds),
    }.get(loss, smoothed)
    value.backward()
    slopes = Preference(loss, beta, smoothing, False, gamma).measure(margin - 9.5, -9.5)
    gradients = [-float(answer.grad) for answer in (chosen, rejected) if answer.grad is not None]
    assert [value.item(), *gradients] == pytest.approx([slopes.value, slopes.chosen, slopes.rejected])


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1.0, -1e-6, 1.0, 1e-6], ""),  # the rejected answers' losses are detached: their weights are rounding errors
        ([1.0, -1.0, 1.0, 1.0], "1 of 4 answers are trained with the other label"),
    ],
)
def test_a_weight_of_nearly_zero_is_no_other_label(
    weights: list[float], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [SimpleNamespace(segment=SimpleNamespace(document=document)) for document in range(4)]
    monkeypatch.setattr(preferences, "fit_weights", lambda *_: SimpleNamespace(error=0.0, weights=weights))
    evidence: Any = SimpleNamespace(observed_loss=0.5, step=SimpleNamespace(pieces=pieces))
    definition: Any = SimpleNamespace(value=0.5, weights=[1.0] * 4)
    explanation = preferences._explain_weights(evidence, definition, 0.001)
    assert explanation is not None and explanation.fault.partition("times what they should be")[2].lstrip(": ") == text
