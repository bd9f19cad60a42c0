"""Reports the settings that a launch loses: through a broken line continuation, or in an array that nothing expands."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches

from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch

MAX_SHOWN = 6
CLOSE_NAME = 0.7
UNASSIGNED = "bash(1), Arrays: an array that was not assigned expands to nothing"
EXPANDED = re.compile(r"\$\{(\w+)\[[@*]\]\}")
ARRAY = re.compile(r"^[ \t]*(\w+)=\((.*?)^[ \t]*\)", re.MULTILINE | re.DOTALL)
EVIDENCE = "bash(1), QUOTING: only a backslash right before the end of the line continues it"


def add_lost_words(job: Job, launch: Launch) -> Job:
    """Return the job with the problem that words after a broken continuation, or of an array, are not passed to it."""
    job = replace(job, problems=(*job.problems, *_find_unused_arrays(launch)))
    if not launch.lost:
        return job
    program = launch.words[:1]  # also lost, if a launcher has none
    names = [word.text for word in launch.lost if word.text[:1] in "-+~" or "=" in word.text or word in program]
    location = launch.lost[0].location
    line = max((word.location.line for word in launch.whole if word.location.line < location.line), default=0)
    text = f"the command ends at line {line}, so the following words are not passed to it: {_shorten(names)}"
    advice = f"end line {line} with a backslash and nothing after it, and keep comments out of the command"
    problem = SettingProblem("ignores", text, (EVIDENCE,), location, advice=advice, universal=True)
    return replace(job, problems=(*job.problems, problem))


def _find_unused_arrays(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of a command that expands a misspelled array: never assigned, while a similar one is unused.

    Neither name may occur elsewhere in the script, and it may source no file that was not read.
    """
    text = re.sub(r"^[ \t]*#.*$", "", launch.source.text, flags=re.MULTILINE)
    expanded = {match[1]: word for word in launch.whole if (match := EXPANDED.fullmatch(word.text)) and not word.known}
    missing = [name for name in expanded if len(re.findall(rf"\b{name}\b", text)) == text.count(f"${{{name}[")]
    is_whole = not launch.is_nested and not any("not followed" in note for note in launch.notes)
    for match in ARRAY.finditer(text) if missing and is_whole else ():
        options = re.findall(r"(?<!\S)--[\w-]+", match[2])
        near = get_close_matches(match[1], missing, 1, CLOSE_NAME)
        if options and near and len(re.findall(rf"\b{match[1]}\b", text)) == 1:
            message = f"{near[0]} is never assigned, and {match[1]} is never used, so these are not passed: "
            yield SettingProblem(
                "ignores",
                message + _shorten(options),
                (UNASSIGNED,),
                expanded[near[0]].location,
                advice=f"use the same name for {near[0]} and {match[1]}",
                universal=True,
            )


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")
