"""Finds parts of a launch that may set more than was read; because of them, what follows from a setting's absence is
only a warning.

`"$@"`, `$EXTRA_ARGS`, a configuration file that could not be read: they may set what the launch does not write. Then
absence is not evidence. A rule's conclusion from a default is at most a warning, and names the part that was not read.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from attncheck.core.findings import Finding
from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, Word
from attncheck.core.records import replace

COULD_NOT_BE_READ = "could not be read"
CONFIGURATION_FILE, SCRIPT = "the configuration file ", "the script "
OPTIONS = "the options that the program adds as "
SCRIPT_ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*]\}|\{[@*]:\d+\})")
EXPANSION = re.compile(r"\$(?:\w+|[@*]|\{.*\}|\(.*\))|`.*`", re.DOTALL)
UNNAMED_OPTION = re.compile(r"--[^=]*[$`]")  # `--"$style"`: any option
MANY_WORDS = re.compile(r"\$(?:[@*]|\{[@*][^}]*\}|\{\w+\[[@*]\][^}]*\})", re.DOTALL)
CHOOSING_FRAMEWORKS = ("trl", "transformers")  # their launches mostly start users' scripts
COMPLETING = ("verl",)  # whose commands set what a configuration file leaves open
# `llamafactory-cli train "$CONFIG"`, `--config $1`
CONFIGURATION = re.compile(
    r"\$\{?(?:\w*(?:config|cfg|yaml|recipe)\w*|\d)(?:[:-][^{}]*)?\}?|[^=]*\.ya?ml", re.IGNORECASE
)
NAMES_FILE = ("--config", "--config_file", "--config-name", "-cn")
UNNAMED = "no program, script or text of the tree names this file"
NO_PROGRAM = "not read: the program that reads this file, and may set it otherwise"
MAX_SHOWN = 3


def is_script_arguments(word: Word) -> bool:
    """Return whether a word represents all arguments of the script, of which there may be none."""
    return not word.known and SCRIPT_ARGUMENTS.fullmatch(word.text) is not None


def find_open_ends(launch: Launch) -> tuple[str, ...]:
    """Return the parts that may set more than was read: words that may contain whole options, and unread files."""
    unknown = [] if launch.file is not None else list(_find_unknown_files(launch.words))
    files = (f"{CONFIGURATION_FILE}{word.text} ({word.location})" for word in unknown)
    return tuple(dict.fromkeys((*_find_open_words(launch.whole, unknown), *files, *_find_unread_files(launch.notes))))


def _find_open_words(words: Sequence[Word], files: Sequence[Word]) -> Iterator[str]:
    for index, word in enumerate(words):
        if word.known or word in files:
            continue
        if UNNAMED_OPTION.match(word.text):
            yield f"{word.text} ({word.location})"
        if not EXPANSION.fullmatch(word.text):
            continue
        before = words[index - 1].text if index else ""
        is_value = before.startswith("-") and "=" not in before
        is_list = MANY_WORDS.fullmatch(word.text) is not None
        if index and (is_list or not is_value):
            yield f"{OPTIONS if is_list and word.location.source.endswith('.py') else ''}{word.text} ({word.location})"


def _find_unread_files(notes: Sequence[str]) -> Iterator[str]:
    return (note.removesuffix(COULD_NOT_BE_READ).strip() for note in notes if note.endswith(COULD_NOT_BE_READ))


def lacks_configuration(launch: Launch) -> bool:
    """Return whether the launch's own configuration file, script or options were not read: absence shows nothing.

    `"$@"` of a shell script is mostly empty, but a program adds options in a loop because it has some.
    """
    return any(end.startswith((CONFIGURATION_FILE, SCRIPT, OPTIONS)) for end in launch.open_ends)


def _shows_no_absence(job: Job, launch: Launch) -> bool:
    """Return whether the launch shows nothing by what it does not set: `"$@"` that sets everything is never empty."""
    return lacks_configuration(launch) or (not job.settings and any(map(is_script_arguments, launch.whole)))


def _find_unknown_files(words: Sequence[Word]) -> Iterator[Word]:
    """Yield the configuration files of a command whose paths are known only at run time."""
    for before, word in itertools.pairwise(words):
        is_named = not before.text.startswith("-") or before.text in NAMES_FILE
        if not word.known and is_named and CONFIGURATION.fullmatch(word.text.removeprefix("config=")):
            yield word


def soften_problems(job: Job, launch: Launch) -> Job:
    """Return the job with problems that depend on unread parts as warnings that say so."""
    is_completed = job.framework in COMPLETING and not launch.words
    problems = tuple(
        _soften_problem(problem, launch, is_completed)
        for problem in job.problems
        if problem.universal
        or not _shows_no_absence(job, launch)
        # else settings that were not read may solve it
        or (problem.location.source and not problem.assumes_absence and not _adds_all(problem.sets, job))
    )
    return replace(job, problems=tuple(problem for problem in problems if problem is not None))


def _adds_all(sets: Mapping[str, str], job: Job) -> bool:
    """Return whether a fix only adds settings that the launch, as far as it was read, does not set."""
    written = {setting.name.lstrip("-+") for setting in job.settings} | job.locations.keys()
    return bool(sets) and not any(name in written for name in sets)


def _soften_problem(problem: SettingProblem, launch: Launch, is_completed_by_command: bool) -> SettingProblem | None:
    """Return a problem as severe as its evidence allows; None if the command that reads the file may set it."""
    if problem.consequence == "refuses" and not problem.universal and is_completed_by_command:
        return None
    is_written = bool(problem.location.source) and not problem.assumes_absence
    if problem.universal or problem.mild or not launch.open_ends or is_written:
        return problem
    return replace(problem, mild=True, evidence=(*problem.evidence, describe_open_ends(launch)))


def describe_open_ends(launch: Launch) -> str:
    """Return a sentence about the unread parts that may set what a finding assumes to be absent."""
    shown = ", ".join(launch.open_ends[:MAX_SHOWN])
    more = f" and {len(launch.open_ends) - MAX_SHOWN} more" if len(launch.open_ends) > MAX_SHOWN else ""
    return f"not read, but may set it: {shown}{more}"


def soften_finding(finding: Finding, job: Job, launch: Launch, is_named: Callable[[], bool]) -> Finding | None:
    """Return a finding about a launch as a warning if it depends on unread parts; None if an unread file decides it.

    A file that no command names is read by a program that is not known, if its framework's programs are users' scripts.
    If it is not even `is_named` in a tree with programs, none of them may read it.
    """
    if _shows_no_absence(job, launch) and any(_adds_all(fix.sets, job) for fix in finding.fixes[:1]):
        return None
    is_read_alone = not launch.words and launch.source.kind != "python" and job.framework in CHOOSING_FRAMEWORKS
    is_open = bool(launch.open_ends) and {*finding.locations} == {job.location}
    if is_read_alone and finding.severity != "note" and not is_named():
        return replace(finding, severity="note", evidence=(*finding.evidence, UNNAMED))
    if finding.severity != "error" or not (is_open or is_read_alone):
        return finding
    reason = NO_PROGRAM if is_read_alone else describe_open_ends(launch)
    return replace(finding, severity="warning", evidence=(*finding.evidence, reason))
