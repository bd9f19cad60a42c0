"""Training is interrupted and resumed in forks of a launch's process: what is not as without a stop is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attncheck.core.job import Job
from attncheck.core.launch import NOWHERE, Setting
from attncheck.core.results.smoke import CheckResult, judge_result
from attncheck.rehearsal.continuing import find_crash, judge_continued, list_lost_files, list_questions
from attncheck.rehearsal.execution import read_continued
from tests.rehearsal.staging import SCRIPTS, ForkServer, nightly

FAULTS = {
    "not_loaded": r"starts from other weights than the saved ones: \d+ of \d+ parameters, model\.",
    "epoch_forgotten": r"after step 4, inside the second epoch, training gets other rows .* in [1-4] of 4 batches",
    "new_order": r"gets other rows than without an interruption in \d of 4 batches",
    "new_optimizer": r"has other learning rates|end with other weights: they differ by \d+%",
    "": r"other first weights in \d+ parameters, drawn before it is set: model",
    "other_rows": r"Curriculum.on_epoch_begin, .* gives the trainer another train_dataset, which is never read",
    "one_order": r"a second epoch has the rows in the order of the first, although they are shuffled",
}
QUESTIONS = {
    "": "start",
    "one_order": "epochs",
    "other_rows": "epochs",
    "thawed": "epochs",
    "held": "epochs",
    "epoch_forgotten": "saves epochs",
}
CRASHES = {
    "saving": r"^saving a checkpoint ends with AttributeError: .*_model' \(continuing.py:\d+\)$",
    "loading": r"^resuming from a checkpoint ends with RuntimeError: Error\(s\) in loading state_dict",
}


def make_job(**settings: str) -> Job:
    place: Any = NOWHERE
    return cast(
        Job, SimpleNamespace(settings=[Setting(name, value, place, NOWHERE) for name, value in settings.items()])
    )


def read(server: ForkServer, folder: Path, fault: str, questions: str = "saves epochs") -> dict[str, Any]:
    """Return what the watcher compares in a run of the script with a fault."""
    watch = folder / "watch"
    watch.mkdir()
    environ = {"PLANTED_FAULT": fault, "ATTNCHECK_CONTINUES": questions, "CONTINUED_IN": str(watch)}
    ended = server.run([str(SCRIPTS / "continuing.py")], environ, watch, 1)
    assert ended["statuses"] == [0], ended
    assert (watch / "continued.json").exists() is bool(questions)
    return {name: value for name, value in read_continued(str(folder)).items() if value and name != "asked"}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_an_interruption_or_an_epoch_changes_is_named(fault: str, server: ForkServer, tmp_path: Path) -> None:
    record = read(server, tmp_path, fault, QUESTIONS.get(fault, "saves"))
    assert not find_crash(record)
    result = judge_continued(record, make_job())
    assert result is not None and judge_result(result) == (
        "fail" if fault in ("not_loaded", "other_rows") else "warn"
    ), record
    assert re.search(FAULTS[fault], "\n".join((*result.violations, *result.warnings))), result


@pytest.mark.parametrize("fault", ["thawed", "held"])
def test_layers_that_are_thawed_must_be_in_the_optimiser(fault: str, server: ForkServer, tmp_path: Path) -> None:
    text = read(server, tmp_path, fault, "epochs")["epochs"].get("thawed", "")
    expected = r"1 of \d+ parameters that train in epoch 3, by Thawing.on_epoch_begin, .*, are in no group"
    assert bool(re.match(expected, text)) == (fault == "thawed"), text


@pytest.mark.parametrize("fault", CRASHES)
def test_a_checkpoint_that_ends_the_launch_is_an_error(fault: str, server: ForkServer, tmp_path: Path) -> None:
    result = judge_continued(read(server, tmp_path, fault, "saves"), make_job())
    assert result is not None and re.search(CRASHES[fault], "\n".join(result.violations)), result


@pytest.mark.parametrize("fault", ["dropout", nightly(""), nightly("equal_rows")])
def test_training_that_resumes_right_is_no_fault(fault: str, server: ForkServer, tmp_path: Path) -> None:
    record = read(server, tmp_path, fault)
    result = judge_continued(record, make_job(resume_from_checkpoint="last"))
    assert not find_crash(record) and result is not None and judge_result(result) == "pass", record
    assert len(result.notes) == 2, result
    assert (
        len(json.loads((tmp_path / "watch" / "steps-0.json").read_text())["steps"]) == 3
    )  # those of the launch itself


@pytest.mark.parametrize("fault", ["seed_first", "weights_after_the_seed"])
def test_weights_that_are_drawn_after_the_seed_are_no_fault(fault: str, server: ForkServer, tmp_path: Path) -> None:
    record = read(server, tmp_path, fault, "start")
    assert record.get("start", {}) == ({} if fault == "seed_first" else {"different": []})


def test_what_a_launch_does_not_do_is_not_asked(server: ForkServer, tmp_path: Path) -> None:
    assert list_questions(make_job(save_strategy="no", num_train_epochs="1")) == ""
    assert list_questions(make_job(num_train_epochs="2")) == "saves epochs"
    assert read(server, tmp_path, "saving", "") == {}


def test_a_state_that_is_not_to_be_restored_is_no_fault(server: ForkServer, tmp_path: Path) -> None:
    record = read(server, tmp_path, "new_optimizer", "saves")
    assert judge_result(judge_continued(record, make_job(save_only_model="true")) or CheckResult("")) == "pass"


SKIPPING = """\
import itertools, os, types
import torch
from torch.utils.data import DataLoader
from attncheck.rehearsal.watcher import continuing, recorder

class Seeded(torch.utils.data.RandomSampler):
    epoch = 1
    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(len(self.data_source), generator=generator).tolist())

def skip_first_batches(loader, count=0):
    if HOW == "epoch_lost":
        loader.batch_sampler.sampler.epoch = 0
    return itertools.islice(loader, count, None)

rows = [torch.tensor([n]) for n in range(24)]
loader = DataLoader(rows, 2, sampler=Seeded(rows)) if HOW != "drawn" else DataLoader(rows, 2, shuffle=True)
module = types.SimpleNamespace(skip_first_batches=skip_first_batches)
continuing.watch_skipping(recorder.Recorder(os.environ["CONTINUED_IN"]), module)
assert len(list(module.skip_first_batches(loader, 4))) == 8
"""


@pytest.mark.parametrize(
    ("how", "more", "text"),
    [
        ("seeded", "", ""),
        ("epoch_lost", "", "the epoch that skip.py:22 continues gets other rows than the rest of it"),
        nightly("drawn", "", "the rest of it, because nothing restores the state of random numbers"),
        ("drawn", "# accelerator.load_state(folder)", ""),
    ],
)
def test_an_epoch_that_a_script_continues_has_the_rest_of_its_rows(
    how: str, more: str, text: str, server: ForkServer, tmp_path: Path
) -> None:
    script, watch = tmp_path / "skip.py", tmp_path / "watch"
    script.write_text(f"HOW = {how!r}\n{SKIPPING}{more}\n")
    watch.mkdir()
    environ = {"ATTNCHECK_CONTINUES": "saves", "CONTINUED_IN": str(watch)}
    ended = server.run([str(script)], environ, watch, 1)
    assert ended["statuses"] == [0] and (watch / "skipped.json").exists(), ended
    result = judge_continued(read_continued(str(tmp_path)), make_job())
    warnings = result.warnings if result is not None else ()
    assert len(warnings) == bool(text) and all(warning.endswith(text) for warning in warnings), warnings


@pytest.mark.parametrize(("best", "count"), [("/mnt/other/checkpoint-6", 1), (str(Path(__file__)), 0), (None, 0)])
@pytest.mark.parametrize("words", ["--resume old", "--resume=old"])
def test_a_resumed_checkpoint_names_what_is_here(words: str, best: str | None, count: int, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": best, "epoch": 1.0}))
    launch = SimpleNamespace(words=[SimpleNamespace(text=text) for text in words.split()], folder=str(tmp_path))
    lines = [*list_lost_files(cast(Any, SimpleNamespace(recognised=SimpleNamespace(launch=launch))))]
    assert len(lines) == count and all("best_model_checkpoint=/mnt/other" in line for line in lines)
