"""Reports what a launch loses: words after a broken line continuation, in an array that nothing expands, and values of
variables that only a comment assigns.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches

from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, SourceLocation
from attncheck.lint.arguments import is_option

MAX_SHOWN = 6
CLOSE_NAME = 0.7
UNASSIGNED = "bash(1), Arrays: an array that was not assigned expands to nothing"
EXPANDED = re.compile(r"\$\{(\w+)\[[@*]\]\}")
ARRAY = re.compile(r"^[ \t]*(\w+)=\((.*?)^[ \t]*\)", re.MULTILINE | re.DOTALL)
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
NO_WORD = "bash(1), Word Splitting: an unquoted variable that is not set becomes no word, not an empty one"
EVIDENCE = "bash(1), QUOTING: only a backslash right before the end of the line continues it"


def add_lost_words(job: Job, launch: Launch) -> Job:
    """Return the job with the problem that words after a broken continuation, or of an array, are not passed to it."""
    own = (*_find_unused_arrays(launch), *_find_unset_values(launch), *_find_syntax_error(launch))
    job = replace(job, problems=(*job.problems, *own))
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


def _find_syntax_error(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of a command that bash does not start, because its script has a syntax error before its end."""
    if launch.refused:
        text = f"bash refuses the script before it starts this command: {launch.refused}"
        evidence = ("bash(1), SHELL GRAMMAR: bash runs what it has read completely; bash -n reads without running",)
        location = launch.words[0].location if launch.words else SourceLocation(launch.source.name)
        advice = f"correct that line, until bash -n {launch.source.name} prints nothing"
        yield SettingProblem("refuses", text, evidence, location, advice=advice, universal=True)


def _find_unset_values(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of an option whose value is a variable that no line assigns, while a comment does.

    Without it in the environment, the option has no value. Nothing that the script sources may be unread.
    """
    text = launch.source.text
    if launch.is_nested or any("not followed" in note for note in launch.notes):
        return
    following = [*(word.text for word in launch.whole[1:]), "--"]
    for before, word, after in zip(launch.whole, launch.whole[1:], following[1:]):
        match = VARIABLE.fullmatch(word.text) if not word.known else None
        name = (match[1] or match[2]) if match else ""
        is_only_value = is_option(before.text) and "=" not in before.text and is_option(after)
        commented = re.search(rf"^[ \t]*#.*\b{name}=", text, re.MULTILINE) if name and is_only_value else None
        if not commented or '"' in text[slice(*word.span)]:
            continue
        code = re.sub(r"(^|\s)#.*$", "", text, flags=re.MULTILINE)
        if len(re.findall(rf"\b{name}\b", code)) == len(re.findall(rf"\$\{{?{name}\b", code)):
            line = text.count("\n", 0, commented.end()) + 1
            yield SettingProblem(
                "refuses",
                f"{before.text} has no value unless the environment sets {name}: only a comment assigns it",
                (f"{launch.source.name}:{line}: {commented[0].strip()}…", NO_WORD),
                word.location,
                advice=f"assign {name} before the command",
                mild=True,
                universal=True,
            )


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")
