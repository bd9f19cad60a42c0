"""Mutated launches: the corrected one differs only in renamed and changed tokens, and is the same job otherwise.

The corpus' launches are changed as users change them: other values, names of another release, unknown names, settings
written twice, words known only at run time. A correction only renames and changes: a setting that is
gone afterwards must be one that a fix of the report names, and a name that nobody knows stays where it is.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from attncheck.core.io.errors import AttncheckError
from attncheck.core.job import Job, LintedLaunch
from attncheck.core.launch import Source
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.core.snapshot import Snapshot
from attncheck.lint import frameworks, run
from attncheck.lint.context import Request
from attncheck.lint.files import editing
from tests.lint import launches

CORPUS = [launches.read_launch(path) for path in launches.iter_corpus()]
ENVIRONMENTS = list(launches.make_environments().values())
TOKEN = re.compile(r"(?<![\w.$/-])(\+{0,2}[a-z][\w.]*=|--[a-z][\w.-]*[ =])(\"?[\w./-]+\"?)")
FOREIGN_NAMES = ("--my_own_option 3", "--use-super-kernel", "my.own.key=3", "+my.own.key=3")
# Words in the settings that a fix of each `Key` may take out in one framework or another: a switch goes off so.
WORDS_OF_KEYS = {
    "packing": "pack padding",
    "precision": "fp16 bf16 float16 dtype precision",
    "ring_size": "ring parallel ulysses cp_size sp_size",
    "attn_implementation": "attn flash attention",
    "liger": "liger plugins",
    "gradient_checkpointing": "checkpointing",
    "batch": "batch",
    "global_batch": "batch accumulation",
}
QUICK, ALL = 50, 5_000


def mutate(source: Source, chance: random.Random) -> Source:
    """Return a launch with one to four of its settings changed as a user may change them."""
    text = source.text
    for _ in range(chance.randint(1, 4)):
        tokens = list(TOKEN.finditer(text))
        if not tokens or source.kind != "shell":
            return replace(source, text=_mutate_keys(text, chance))
        token = chance.choice(tokens)
        change = chance.randrange(6)
        if change == 0:
            text = (
                text[: token.start(2)] + chance.choice(["0", "7", "true", "fp16", "$N", "null"]) + text[token.end(2) :]
            )
        elif change == 1:
            other = chance.choice(tokens)
            text = text[: token.start(1)] + other[1] + text[token.end(1) :]
        elif change == 2:
            text = text[: token.start()] + f"{token[0]} " + text[token.start() :]
        elif change == 3:
            text = text[: token.start()] + chance.choice(FOREIGN_NAMES) + " " + text[token.start() :]
        elif change == 4:
            text = text[: token.start()] + '"$@" ' + text[token.start() :]
        else:
            text = text[: token.start(1)] + token[1].replace("_", "-", 1) + text[token.end(1) :]
    return replace(source, text=text)


def _mutate_keys(text: str, chance: random.Random) -> str:
    """Return a configuration file with another value, another name or one more key at its top level."""
    lines = text.split("\n")
    keys = [index for index, line in enumerate(lines) if re.match(r"[a-z]\w*: \S", line)]
    if keys:
        index = chance.choice(keys)
        name, _, value = lines[index].partition(": ")
        changed = [f"{name}: {chance.choice(['0', 'true', 'fp16', 'null'])}", f"my_own_{name}: {value}"]
        lines[index] = chance.choice([*changed, f"{lines[index]}\nmy_own_key: 3"])
    return "\n".join(lines)


def lint(source: Source, snapshot: Snapshot, version: str) -> Report | None:
    request = Request((source,), version=version, framework="")
    try:
        return run.run(snapshot, request, launches.read_model, launches.read_no_file)
    except AttncheckError:
        return None


def is_named(report: Report, name: str) -> bool:
    """Say whether a fix of the report names a setting, or the `Key` that it belongs to."""
    fixes = [fix for finding in report.findings for fix in finding.fixes]
    keys = {key for fix in fixes for key in fix.sets}
    words = " ".join(WORDS_OF_KEYS.get(key, key) for key in keys).split()
    return any(word.rpartition(".")[2] in name for word in words) or any(name in fix.text for fix in fixes)


def list_vanished(before: Job, after: Job) -> Counter[str]:
    """Return the settings that a correction took out and gave no new name."""
    renamed = {name.name: name.now[0] for name in before.unknown_settings if name.now and name.proof}
    expected = Counter(renamed.get(setting.name, setting.name).partition("=")[0] for setting in before.settings)
    written = Counter(_bare_name(setting.name) for setting in after.settings)
    return Counter(_bare_name(name) for name in expected.elements()) - written


def _bare_name(text: str) -> str:
    return re.split(r"[ =:]", text)[0].lstrip("-+~")


def check_correction(source: Source, report: Report, linted: LintedLaunch, snapshot: Snapshot, version: str) -> int:
    """Fail if the corrected launch lost or invented something; return how many edits it has."""
    edits = [edit for edit in linted.edits if edit.source == source.name]
    corrected = replace(source, text=editing.apply_edits(source, edits))
    again = lint(corrected, snapshot, version)
    assert again is not None and len(launches_of(again)) == len(launches_of(report))
    number = [launch.job for launch in launches_of(report)].index(linted.job)
    job, new_job = linted.job, launches_of(again)[number].job
    for name in list_vanished(job, new_job):
        assert is_named(report, name), f"{name} vanished, and no fix says so"
    unproven = {unknown.name for unknown in job.unknown_settings if not unknown.proof}
    left = {*(setting.name for setting in new_job.settings), *(name.name for name in new_job.unknown_settings)}
    for name in unproven - left:
        assert is_named(report, name), f"{name}, which nobody knows, no longer exists"
    assert new_job.model == job.model
    if not any(fix.sets for finding in report.findings for fix in finding.fixes):
        assert (new_job.trainer, new_job.world_size, new_job.scheme) == (job.trainer, job.world_size, job.scheme)
        # A length that is not written is the release's default, which went with the names: openrlhf before 0.9.8.
        length = new_job.plan.max_length if "max_length" in job.locations else job.plan.max_length
        new_plan = replace(new_job.plan, environ=(), max_length=length)
        assert new_plan == replace(job.plan, environ=()), "the same job, under new names"
    return len(edits)


def try_launches(count: int, seed: int) -> tuple[int, int]:
    """Return how many mutated launches were read, and how many were corrected."""
    chance = random.Random(seed)
    read = corrected = 0
    for _ in range(count):
        original = chance.choice(CORPUS)
        source = mutate(original, chance)
        snapshot = chance.choice(ENVIRONMENTS)
        framework = next(f for f in frameworks.load() if f.name.replace("-", "_") == _folder_of(original))
        version = chance.choice(["", *framework.releases()])
        report = lint(source, snapshot, version)
        for linted in launches_of(report) if report is not None else ():
            read += 1
            corrected += check_correction(source, report, linted, snapshot, version) > 0 if report else 0
    return read, corrected


FOLDERS = {launches.read_launch(path).text: path.parent.name for path in launches.iter_corpus()}


def _folder_of(source: Source) -> str:
    return FOLDERS[source.text]


def test_a_mutated_launch_is_corrected_by_new_names_and_values_alone() -> None:
    read, corrected = try_launches(QUICK, 14)
    assert read > QUICK * 0.8 and corrected > QUICK * 0.1


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_thousands_of_mutated_launches(seed: int) -> None:
    read, corrected = try_launches(ALL // 10, seed)
    print(f"{ALL // 10} launches, {read} read, {corrected} corrected")
    assert read > ALL // 10 * 0.8 and corrected > ALL // 10 * 0.1


def test_a_correction_that_deletes_would_be_seen() -> None:
    source = next(source for source in CORPUS if "max_len" in source.text and source.kind == "shell")
    report = lint(source, ENVIRONMENTS[0], "")
    assert report is not None
    [linted, *_] = launches_of(report)
    setting = next(setting for setting in linted.job.settings if setting.span[0] >= 0 and "max_len" in setting.name)
    broken = replace(linted, edits=(editing.remove_setting(source, setting.span),))
    with pytest.raises(AssertionError, match="vanished"):
        check_correction(source, replace(report, findings=()), broken, ENVIRONMENTS[0], "")
