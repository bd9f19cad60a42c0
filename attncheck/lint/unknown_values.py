"""Judges a launch under several values of its settings that are known only at run time (`--max_len $1`, `args.loss`).

Frameworks read such a setting as if it were not given, so a default may decide. Therefore the launch is also read with
typical values in its place. A finding counts only if each of these readings has it too, and a part of the plan that
differs between them is not known.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from attncheck.core.findings import Finding
from attncheck.core.job import Job
from attncheck.core.launch import Launch, Setting, Word
from attncheck.core.plan import Plan
from attncheck.core.records import replace
from attncheck.lint.open_ends import MANY_WORDS, lacks_configuration
from attncheck.lint.programs.trainers import OWN_ATTENTION

AnySetting = TypeVar("AnySetting", bound=Setting)
# Switches, numbers, a word that no framework has, and those on which conclusions about attention, precision and
# sharding depend.
VALUES = (
    *("true", "false", "1", "4097", "unknown", "bf16", "fp32", "fsdp2"),
    *("flash_attention_2", "flash_attn", "fa2", "eager", "disabled"),
)
MAX_NUMBERS = 8
# Parts of the plan that any configuration file sets, with values that differ in what is right: if the file was not
# read, they are known only from the command.
IN_FILES: Mapping[str, tuple[str, ...]] = {
    "attn_implementation": ("flash_attention_2", "sdpa", "eager"),
    "packing": ("padding", "position_ids"),
    "precision": ("fp32", "bf16", "fp16", "autocast"),
}
# Fields of a job.
INDEPENDENT = ("variables", "gpus", "stated_by", "requires", "remarks", "warnings", "unknown", "unknown_settings")
# Expansions without another one in them; a `/` there is a division, an operator or another command's path.
EXPANSION = re.compile(r"\$\{[^${}()`]*\}|\$?\([^${}()`]*\)|`[^`]*`|\$\w+")
EXPANDED = "_"
PLACES = re.compile(r"(?:(?:experiment|project|run|exp)[_-]?name|dir|path|files?|folder|url|proxy|addr|port)$", re.I)
LIBRARIES = ("transformers", "trl")  # they read no Hydra configuration themselves
UNPACKED = "**"  # `TrainingArguments(**options) could not be read`


def list_alternatives(launch: Launch) -> tuple[Launch, ...]:
    """Return the launch with each of `VALUES`, then each number in it, for all its unknown values; () without any.

    So is each value that branches of its script give a variable: `$SETUP` of three options.
    """
    count = max((len(word.choices) for word in launch.words), default=0)
    chosen = tuple(replace(launch, words=tuple(_choose(launch.words, index))) for index in range(count))
    if _fill(launch, "") == launch:
        return chosen
    texts = (*(word.text.rpartition("=")[2] for word in launch.words), *(entry.value for entry in launch.entries))
    numbers = dict.fromkeys(text for text in texts if text.isdecimal())  # rules compare settings with each other
    return (*chosen, *(_fill(launch, value) for value in (*VALUES, *list(numbers)[:MAX_NUMBERS])))


def _choose(words: Sequence[Word], index: int) -> Iterator[Word]:
    for word in words:
        texts = word.choices[index % len(word.choices)] if word.choices else ()
        yield from (replace(word, text=text, known=True, choices=()) for text in texts) if word.choices else (word,)


def _fill(launch: Launch, value: str) -> Launch:
    return replace(
        launch,
        words=tuple(_fill_words(launch.words, value)),
        whole=tuple(_fill_words(launch.whole, value)),
        entries=tuple(_fill_setting(entry, value) for entry in launch.entries),
        launcher_entries=tuple(_fill_setting(entry, value) for entry in launch.launcher_entries),
        environ={
            name: value if text[:1] == "$" and not _is_place(name, text) else text
            for name, text in launch.environ.items()
        },
        fixed=tuple(_fill_setting(entry, value) for entry in launch.fixed),
    )


def _is_place(name: str, text: str) -> bool:
    """Return whether a value is a path, or the setting's name says so, or that it is a label of the run.

    The `/` of `$((32 / $N))` divides, and `$(cat /tmp/n)` is any text.
    """
    if PLACES.search(name):
        return True
    while (shorter := EXPANSION.sub(EXPANDED, text)) != text:
        text = shorter
    return "/" in text


def _fill_setting(setting: AnySetting, value: str) -> AnySetting:
    """Return the setting with a value; paths name files and models, which are judged separately."""
    is_kept = setting.known or _is_place(setting.name, setting.value)
    return setting if is_kept else replace(setting, value=value, known=True)


def _fill_words(words: Sequence[Word], value: str) -> Iterator[Word]:
    before = ""
    for word in words:
        name, equals, _ = word.text.partition("=")
        is_value = before.startswith("-") and "=" not in before and not MANY_WORDS.fullmatch(word.text)
        option, before = name if equals else before, word.text
        if word.known or _is_place(option, word.text) or not (equals or is_value):
            yield word
        else:
            yield replace(word, text=f"{name}={value}" if equals else value, known=True)


def find_unknown_parts(job: Job, others: Sequence[Job], launch: Launch) -> tuple[str, ...]:
    """Return the fields of the job's plan that its reader or an unread file leaves open, or that unknown values set."""
    differing = [
        field.name
        for field in fields(Plan)
        if field.name != "environ"
        and any(getattr(other.plan, field.name) != getattr(job.plan, field.name) for other in others)
    ]
    is_unread = lacks_configuration(launch) or any(end.startswith(UNPACKED) for end in launch.open_ends)
    program = launch.program if job.framework in LIBRARIES and not launch.entries else None
    is_unread = is_unread or (program is not None and program.style in ("hydra", "omegaconf"))  # in any of its tables
    unread = [name for name in IN_FILES if is_unread and name not in job.locations]
    replaced = ["attn_implementation"] if OWN_ATTENTION in (launch.trainers or ()) else []
    return tuple(dict.fromkeys((*job.unknown, *differing, *unread, *replaced)))


def align(other: Job, collected: Job, job: Job) -> Job:
    """Return another reading of a launch with what does not depend on its values taken from `job`.

    `job` was made from `collected`; its problems that come from the settings are those that the other reading has too.
    """
    same: Mapping[str, Any] = {name: getattr(job, name) for name in INDEPENDENT}
    missing = {item.message for item in collected.problems} - {item.message for item in other.problems}
    problems = tuple(problem for problem in job.problems if problem.message not in missing)
    return replace(other, plan=replace(other.plan, environ=job.plan.environ), problems=problems, **same)


def vary_unknown_parts(job: Job) -> Iterator[Job]:
    """Yield the job with other values for the parts of its plan that are not known."""
    for name, values in IN_FILES.items():
        for value in values if name in job.unknown else ():
            changed: Mapping[str, Any] = {name: value}
            yield replace(job, plan=replace(job.plan, **changed))


def keep_certain(findings: Sequence[Finding], others: Sequence[Callable[[], Sequence[Finding]]]) -> list[Finding]:
    """Return the findings without those that another value would remove."""

    @cache
    def list_keys(index: int) -> set[tuple[str, str, str]]:
        return {make_key(finding) for finding in others[index]()}

    return [
        finding for finding in findings if all(make_key(finding) in list_keys(index) for index in range(len(others)))
    ]


def make_key(finding: Finding) -> tuple[str, str, str]:
    """Return what a finding has in common with the same one of another report, whose severity may differ."""
    return finding.code, finding.subject, finding.message


def drop_duplicates(job: Job, others: Sequence[Job]) -> list[Job]:
    """Return the jobs that differ from `job` and from each other in more than the settings as written."""
    seen = [_without_text(job)]
    distinct = []
    for other in others:
        if (bare := _without_text(other)) not in seen:
            seen.append(bare)
            distinct.append(other)
    return distinct


def _without_text(job: Job) -> Job:
    return replace(job, settings=(), remarks=(), variables=(), model="", locations={})
