"""A policy's update that is right gives no finding; a fault planted in it is named."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.rehearsal import Objective, PolicyGradient
from attncheck.core.results.smoke import CheckResult, judge_result
from tests.rehearsal.staging import ForkServer, judge, list_failures, make_materials

SCRIPT = Path(__file__).parent / "scripts" / "policy.py"
POLICY = Objective("assistant", ("step_tokens",), "the test", PolicyGradient())
# fault: (the finding's code, what it says, ranks)
FAULTS: dict[str, tuple[str, str, int]] = {
    "prompts_counted": ("ATN433", r"every token is a target, including prompts and markup", 1),
    "one_token_early": (
        "ATN433",
        r"one token early: they include the last token of each prompt and miss the end of each response",
        1,
    ),
    "end_lost_by_rows": ("ATN433", r"the end of each response is not a target; the mean over .*rows", 1),
    "temperature_lost": ("ATN433", r"the logits are not divided by the temperature, 0.7", 1),
    "first_token_lost": ("ATN433", r"the first token of each response is not a target", 1),
    "mean_of_batches": ("ATN433", r"the mean over each batch's target tokens, averaged over batches \(3 times it\)", 1),
    "sign_lost": ("ATN433", r"the advantages have the wrong sign: rewarded responses become less likely", 1),
    "advantages_ignored": ("ATN433", r"advantages are ignored: every response has the same weight", 1),
    "advantage_of_another": ("ATN433", r"1 responses are not weighted by their advantages: document 0's weighs", 1),
    "too_large_by_ranks": ("ATN433", r"2 times the documented loss: too large by the number of ranks", 2),
    "log_probs_of_the_next": ("ATN433", r"one token off: each token has the value of the token after it", 1),
    "batches_lost": ("ATN434", r"only from batch 3 of 3: the gradients of the others are lost", 1),
    "rollout_doubled": ("ATN431", r"1 of 6 rollouts of the step were not passed to the model completely", 1),
}
EVERY_TIME = (
    "end_lost_by_rows",
    "temperature_lost",
    "prompts_counted",
    "first_token_lost",
    "advantage_of_another",
    "too_large_by_ranks",
    "rollout_doubled",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_materials(tmp_path_factory.mktemp("materials"))


def rehearse(
    server: ForkServer, folder: Path, watch: Path, fault: str = "", ranks: int = 1, steps: int = 1
) -> dict[str, CheckResult]:
    """Take a policy's steps, and return the result of each check."""
    watch.mkdir()
    environ = {
        "PLANTED_FAULT": fault,
        "ATTNCHECK_DOCUMENTS": str(folder / "documents.json"),
        "ATTNCHECK_STEPS": str(steps),
        "ATTNCHECK_WATCH": str(watch),
    }
    ended = server.run([str(SCRIPT), str(folder / "model")], environ, watch, ranks)
    assert set(ended["statuses"]) == {0}, ended
    policy = PolicyGradient(temperature=0.7 if fault == "temperature_lost" else 1.0)
    return judge(folder, watch, replace(POLICY, policy=policy))


def test_an_update_that_is_right_passes(server: ForkServer, folder: Path, tmp_path: Path) -> None:
    """Two ranks: every check passes, and the rewarded responses become likelier."""
    results = rehearse(server, folder, tmp_path / "watch", ranks=2, steps=24)
    assert {judge_result(result) for result in results.values()} == {"pass"}, results
    assert results["learning"].steps[-1].loss < results["learning"].steps[0].loss


NAMES = [name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.nightly) for name in FAULTS]


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_named(name: str, server: ForkServer, folder: Path, tmp_path: Path) -> None:
    """One step: the check that the fault belongs to says what it is, and no other complains."""
    code, pattern, ranks = FAULTS[name]
    failures = list_failures(rehearse(server, folder, tmp_path / "watch", name, ranks))
    assert set(failures) == {code} and re.search(pattern, failures[code]), failures
