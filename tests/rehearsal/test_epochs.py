"""The ledger of a first epoch: documents that are lost or taken again and again are named, and legal epochs pass."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.results.smoke import judge_result
from attncheck.rehearsal.worker.checks.update import _find_unscheduled
from tests.rehearsal.staging import LABELLED, SCRIPTS, ForkServer, judge, make_argv, make_materials, nightly

STEPS = 4  # of some 225 of an epoch
FAULTS = {
    "tails_dropped": r"\d+ of \d+ documents are only partly in the training data set: \d+ words are in no row",
    "packed_without_the_next": r"\d+ documents are in no row, each the one between .* packing loses the document",
    "few_documents": r"holds 8 of 900 documents, each up to 113 times, and none of the others",
    "first_half_twice": r"in one epoch the sampler draws 450 documents more than once and 450 of 900 never",
    "weights_of_three_sources": r"the sampler draws 3 documents more than once and 897 of 900 never",
    "same_on_ranks": r"16 documents were used more than once .* each of 2 ranks draws the same documents",
    "orders_of_ranks_differ": r"draws \d+ documents more than once .*: different ranks draw them, so their parts",
    "collator_loses_rows": r"8 of the 16 documents that the data loader drew never reached the model",
}
LEGAL = {
    "": r"900 rows with 900 of 900 documents, of which an epoch draws 900$",
    "orders_of_ranks": r"900 rows with 900 of 900 documents, of which an epoch draws 900$",
    "workers": r"900 rows with 900 of 900 documents, of which an epoch draws 900$",
    "drop_last": r"of which an epoch draws 900$",
    "another_order": r"900 rows with 900 of 900 documents",
    "tensors": r"900 rows with 900 of 900 documents",
    "stream": r"rows with 900 of 900 documents",
    "stream_without_end": r"rows with \d+ of 900 documents",
    "packed": r"rows with 900 of 900 documents, of which an epoch draws 900$",
    "mixture": r"3 data sets are loaded and have the same rows here",
    "split_by_sampler": r"of which an epoch draws 810",
    "as_long_as_the_steps": r"of which an epoch draws 16$",
    "only_a_few": r"12 rows with 12 of 900 documents",
    "held_out": r"810 rows with 810 of 900 documents, of which an epoch draws 810; 90 are in no row",
}
WARNED = {
    "replacement": r"in one epoch the sampler draws \d+ documents more than once and \d+ of 900 never",
    "first_half_alone": r"in one epoch the sampler draws 450 of the 900 documents in the data set.* document \d+$",
    "split_twice": r"draws 4\d\d of the 900 documents .* takes a part of that: they are split twice$",
}
EVERY_TIME = (
    "tails_dropped",
    "same_on_ranks",
    "replacement",
    "packed_without_the_next",
    "packed",
    "split_twice",
    "held_out",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_materials(tmp_path_factory.mktemp("materials") / "made")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name not in EVERY_TIME)) for name in (*FAULTS, *WARNED, *LEGAL)],
)
def test_an_epoch_is_judged_after_a_few_steps(name: str, server: ForkServer, folder: Path, tmp_path: Path) -> None:
    watch = tmp_path / "watch"
    watch.mkdir()
    argv = make_argv(folder, "", STEPS, SCRIPTS / "epochs.py")
    ended = server.run(argv, {"EPOCH": name}, watch, 1 + ("ranks" in name or name == "split_twice"))
    assert set(ended["statuses"]) == {0}, ended
    for number in range(3 * (name == "mixture")):  # as the watcher notes each data set that a script loads
        (watch / f"data-set-{number}").touch()
    result = judge(folder, watch, LABELLED, checks=["batch"])["batch"]
    violations, notes = "\n".join(result.violations), result.notes
    if name in FAULTS:
        assert re.search(FAULTS[name], violations), violations
    elif name in WARNED:
        assert judge_result(result) == "warn" and re.search(WARNED[name], result.warnings[0]), violations
    else:
        assert judge_result(result) in ("pass", "warn"), violations
        assert not any("sampler" in text for text in result.warnings), result.warnings
        assert any(re.search(LEGAL[name], note) for note in notes), notes


@pytest.mark.parametrize(("initial", "count"), [({}, 1), ({"initial_lr": 1e-4}, 0)])
def test_a_scheduler_may_be_a_critics(initial: dict[str, float], count: int) -> None:
    """The rate of the model may be constant: only a scheduler whose optimiser never steps is a fault."""
    own = {"weights": {"a": 1}, "groups": [{"options": {"lr": 1e-4}}]}
    critic = {"weights": {}, "groups": [{"options": {"lr": 1e-4, **initial}}]}
    steps = [SimpleNamespace(schedule=["train.py:3"], rate=1e-4, planned=0)] * 3
    evidence: Any = SimpleNamespace(
        taken=[SimpleNamespace(updates=[own, critic], code={})], steps=steps, batches=1, epochs=[]
    )
    assert len(list(_find_unscheduled(evidence))) == count


@pytest.mark.parametrize(
    ("name", "answer", "pattern"),
    [
        ("", "pass", ""),
        ("scheduled_for_steps", "fail", r"made for 112 steps, those of the optimiser in 1 epoch$"),
        nightly("scheduled_for_batches", "pass", ""),
        ("scheduled_for_a_number", "warn", r"2 times too early, unless it counts batches$"),  # 25 times 112
        nightly("repeated_and_scheduled_for_steps", "fail", r"repeats for each rank.* 112 steps, those of the"),
        nightly("repeated_and_scheduled_for_all", "pass", ""),
        nightly(
            "scheduled_for_another",
            "fail",
            r"stays 0.005: the scheduler that steps \(epochs.py:\d+\) is made for another",
        ),
        ("never_stepped", "fail", r"stays 0.005: its scheduler, which is made for 225 steps, has not stepped in \d+"),
        nightly("never_stepped, as after epochs", "pass", ""),
        nightly("rate_of_the_launch", "pass", ""),
        ("another_rate", "warn", r"a learning rate of 2e-05 \(in this run 0.005\), but the optimiser has 0.001"),
        nightly("rate_of_a_rate", "warn", r"a learning rate of 2e-05 .* but a scheduler makes it 2.5e-05"),
    ],
)
def test_the_rate_and_its_schedule_are_those_of_the_launch(
    name: str, answer: str, pattern: str, server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    watch = tmp_path / "watch"
    watch.mkdir()
    ended = server.run(make_argv(folder, "", STEPS, SCRIPTS / "epochs.py"), {"EPOCH": name}, watch, 1)
    assert ended["statuses"] == [0], ended
    result = judge(folder, watch, LABELLED, checks=["update"], rates=(2e-5, 5e-3))["update"]
    texts = [*result.violations, *result.warnings]
    assert judge_result(result) == answer and all(re.search(pattern, text) for text in texts), texts
