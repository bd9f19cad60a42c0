"""Judges a trainer's interruption: saving, resuming as if it had not stopped, and the order of a second epoch.

The watcher's `continuing.py` takes the steps. Which of them are asked is what the launch does: a launch that saves
nothing cannot resume, and a launch of one epoch has no second.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.core.job import Job
from attncheck.core.results.smoke import CheckResult
from attncheck.doctor.rules.transformers.resume_changes_training import ONE_EPOCH
from attncheck.lint.fields.effects import find_effect
from attncheck.lint.fields.rehearsing import OFF_VALUES, get_setting, is_on
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal.ending import NETWORK_ERRORS, WRITE_ERRORS

NAMED, SEED = 3, "a second start with the seed of the launch"
RESUMED, EPOCHS = "resumed after step", "two epochs"  # begin the notes on what continues as it should
ADAPTER = re.compile(r"\.lora_|adapter")  # scripts draw theirs before a Trainer sets the seed, as PEFT's examples do
MAX_STATE_BYTES = 16 << 20
DRIFT = 0.05  # of the distance that the steps after the checkpoint move the weights
PARTS = {"save": "saving a checkpoint", "load": "resuming from a checkpoint"}
REFUSALS = (*NETWORK_ERRORS, *WRITE_ERRORS)  # of the rehearsal


def list_questions(job: Job) -> str:
    """Return the words of `ATTNCHECK_CONTINUES`: whether it saves, has a second epoch, and a seed."""
    saves = (get_setting(job, "save_strategy") or "steps").lower() != "no"
    repeats = get_setting(job, "num_train_epochs", "num_epochs") not in ONE_EPOCH
    is_seeded = get_setting(job, "seed") is not None
    return " ".join(["saves"] * saves + ["epochs"] * repeats + ["start"] * is_seeded)


def list_resumed(read: ReadLaunch) -> list[str]:
    """Return the checkpoints that options of a script name, which a rehearsal's small model cannot load."""
    words = [word.text for word in read.recognised.launch.words]
    pairs = [word.partition("=")[::2] if "=" in word else (word, other) for word, other in zip(words, [*words[1:], ""])]
    return [value for name, value in pairs if name[:1] == "-" and value[:1] not in "-" and _is_resume(name, value)]


def _is_resume(name: str, value: str) -> bool:
    return find_effect(name, "", value) == "resume" and value.lower() not in (*OFF_VALUES, "true", "auto")


def list_lost_files(read: ReadLaunch) -> Iterator[str]:
    """Yield a line for each file or folder that the state of a resumed checkpoint names, and that is not here.

    transformers 5.16.1 trainer.py ends with FileNotFoundError after the training if it is the best checkpoint and
    others are deleted (`save_total_limit`); 5.17.0 does not load it.
    """
    for path in list_resumed(read):
        with contextlib.suppress(CannotRead, ValueError, AttributeError):
            state = Path(read.recognised.launch.folder, path, "trainer_state.json")
            for name, value in json.loads(read_bounded(state, MAX_STATE_BYTES)).items():
                if isinstance(value, str) and os.path.isabs(value) and not os.path.exists(value):
                    yield f"{path}, which the launch resumes, names {name}={value}, which is not on this machine"


def find_crash(record: Mapping[str, Any]) -> str:
    """Return the error with which saving or loading ended, "" if neither did, or because of the rehearsal's limits."""
    for run in (record.get("whole", {}), record.get("resumed", {})):
        error = " ".join(run.get("error", "").split())
        if error and run.get("part") in PARTS and not any(word in error for word in REFUSALS):
            return f"{PARTS[run['part']]} ends with {error[:300]} ({run['place']})"
    return ""


def judge_continued(record: Mapping[str, Any], job: Job) -> CheckResult | None:
    """Return whether a resumed training continues as without an interruption, and epochs differ; None: not asked."""
    whole, resumed, epochs = (record.get(name, {}) for name in ("whole", "resumed", "epochs"))
    violations, warnings, notes = [*filter(None, (find_crash(record),))], list[str](), list[str]()
    if resumed.get("part") == "end" and whole["moved"]:
        skips_nothing = is_on(job, "ignore_data_skip")
        texts = [*_iter_differences(whole, resumed, skips_nothing or is_on(job, "save_only_model"))]
        resumes = (get_setting(job, "resume_from_checkpoint") or "").lower() not in ("", *OFF_VALUES)
        (violations if resumes or resumed["lost"] else warnings).extend(texts[:1])
        if not texts:
            notes.append(f"{_describe(whole)}: the same rows, losses, rates and weights as without a stop")
    for run in (whole, resumed, epochs):
        if "error" in run and run.get("part") not in PARTS:
            notes.append(
                f"an interruption, or a second epoch, could not be tried: {run['error'][:200]} ({run['place']})"
            )
    skipped = record.get("skipped", {})
    if skipped.get("differs") or (skipped.get("drawn") and not skipped["loads"]):
        because = "" if skipped["differs"] else ", because nothing restores the state of random numbers"
        warnings.append(f"the epoch that {skipped['line']} continues gets other rows than the rest of it{because}")
    different = record.get("start", {}).get("different")
    if different:
        names = ", ".join(different[:NAMED])
        text = f"{SEED} has other first weights in {len(different)} parameters, drawn before it is set: {names}"
        (notes if all(map(ADAPTER.search, different)) else warnings).append(text)
    elif different is not None:
        notes.append(f"{SEED} has the same first weights")
    if "unread" in epochs:
        violations.append(
            f"{epochs['unread']} gives the trainer another train_dataset, which is never read: the loader is made "
            "once, before the first epoch"
        )
    if epochs.get("same") and epochs["shuffles"]:
        warnings.append("a second epoch has the rows in the order of the first, although they are shuffled")
    if min(epochs.get("epochs", (0,))) < max(epochs.get("epochs", (0,))):
        warnings.append(f"the epochs have different numbers of batches: {epochs['epochs']}")
    if "same" in epochs and not violations + warnings:
        notes.append(f"{EPOCHS} have {epochs['epochs'][0]} batches each")
    if not violations + warnings + notes:
        return None
    return CheckResult("repeat", violations=tuple(violations), warnings=tuple(warnings), notes=tuple(notes))


def _iter_differences(whole: Mapping[str, Any], resumed: Mapping[str, Any], is_partial: bool) -> Iterator[str]:
    """Yield what differs after an interruption, the cause first; `is_partial`: not all is to be restored."""
    lost, ended = resumed["lost"], f"{_describe(whole)},"
    if lost:
        yield f"{ended} training starts from other weights than the saved ones: {lost[0]}, {', '.join(lost[1:])}"
    if is_partial:
        return
    saved, last = whole["steps"]
    count = len(whole["rows"]) * (last - saved) // last
    for name, text in (("rows", "gets other rows"), ("rates", "has other learning rates")):
        own, other = whole[name][-count:], resumed[name]
        if own != other:
            yield f"{ended} training {text} than without an interruption{_count(own, other)}"
    drift = resumed["drift"] / whole["moved"]
    if drift > DRIFT:
        yield (
            f"{ended} the same rows and rates end with other weights: they differ by {drift:.0%} of what the steps "
            "change, so the state of the optimiser, or of random numbers, is not restored"
        )


def _describe(whole: Mapping[str, Any]) -> str:
    """Return where training resumed."""
    return f"{RESUMED} {whole['steps'][0]}{', inside the second epoch' * whole['is_second_epoch']}"


def _count(own: Sequence[Any], other: Sequence[Any]) -> str:
    if len(own) != len(other):
        return f": {len(other)} batches instead of {len(own)}"
    return f" in {sum(a != b for a, b in zip(own, other))} of {len(own)} batches"
