"""Reports what a launch loses: words after a broken line continuation, in an array that nothing expands, and values of
variables that only a comment assigns.
"""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import partial

from attncheck.core.job import Consequence, Job, SettingProblem
from attncheck.core.launch import NOWHERE, Launch, Source, SourceLocation, Word
from attncheck.core.records import replace
from attncheck.lint.arguments import is_option
from attncheck.lint.fields.values import NO_VALUE
from attncheck.lint.fields.written import FALSE_WORDS, TRUE_WORDS
from attncheck.lint.open_ends import is_script_arguments
from attncheck.lint.shell.extents import PLACEHOLDER
from attncheck.lint.sources import detect_kind
from attncheck.workers.bash_syntax import find_syntax_error

MAX_SHOWN = 6
CLOSE_NAME = 0.7
UNASSIGNED = "bash(1), Arrays: an array that was not assigned expands to nothing"
# Scripts of another shell, those for which an option decides what is valid, and templates.
OTHER_SHELL = re.compile(r"\A#!(?!.*\b(?:[bd]a)?sh\b)|\bextglob\b|\{%")
EXPANDED = re.compile(r"\$\{(\w+)\[[@*]\]\}")
ARRAY = re.compile(r"^[ \t]*(\w+)=\((.*?)^[ \t]*\)", re.MULTILINE | re.DOTALL)
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
NAME = re.compile(r"\w[\w.-]*\w")
VALUED = re.compile(r"(?:^--?|[_.-])(?:path|dir|file|name|size|steps|epochs|len|length|rate|dataset|template)$")
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'|\\.")
SETS_ANY = re.compile(
    r"\b(?:eval|declare|typeset|mapfile|readarray)\b|\bprintf\s+-v|\b(?:export|read|local)\b[^\n]*[$]"
)
NOUNSET = re.compile(r"^[ \t]*set[ \t](?:.*[ \t])?-(?:[a-z]*u|[a-z]*o[ \t]+nounset\b)", re.MULTILINE)
COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)
NO_WORD = "bash(1), Word Splitting: an unquoted variable that is not set becomes no word, not an empty one"
REFUSED = "bash refuses the script before it starts this command"
PROSE = (".md", ".rst", ".txt")  # whose commands are between sentences
JOINED = re.compile(r"^[ \t]*(\w+)=[^\s\\]+\\\n(\w+)=", re.MULTILINE)
JOINS = "bash(1), QUOTING: a backslash and a newline are removed, so that the words around them are one"
EVIDENCE = "bash(1), QUOTING: only a backslash right before the end of the line continues it"


def add_lost_words(job: Job, launch: Launch) -> Job:
    """Return the job with the problem that words after a broken continuation, or of an array, are not passed to it.

    A problem with one of these words being absent is left out.
    """
    checks = (_find_unused_arrays, _find_unset_values, find_script_faults, _find_blank_words, _find_joined_variables)
    losses = (problem for check in checks for problem in check(launch))
    job = replace(job, problems=(*job.problems, *losses), remarks=(*job.remarks, *_list_unbound(launch)))
    problems = tuple(find_lost_words(launch))
    lost = {name.partition("=")[0].lstrip("-+~") for name in _list_lost(launch)} - {""}
    kept = (item for item in job.problems if lost.isdisjoint(NAME.findall(item.message)))
    return replace(job, problems=(*kept, *problems)) if problems else job


def find_lost_words(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of a launch whose last words follow a broken continuation."""
    for first in launch.lost[:1]:
        line = max((word.location.line for word in launch.whole if word.location.line < first.location.line), default=0)
        text = f"the command ends at line {line}, so the following words are not passed to it: "
        text += _shorten(_list_lost(launch))
        advice = f"end line {line} with a backslash and nothing after it, and keep comments out of the command"
        yield SettingProblem("ignores", text, (EVIDENCE,), first.location, advice=advice, universal=True)


def _list_lost(launch: Launch) -> list[str]:
    program = launch.words[:1]  # also lost, if a launcher has none
    return [word.text for word in launch.lost if word.text[:1] in "-+~" or "=" in word.text or word in program]


def leave_out_missing_values(job: Job, launch: Launch) -> Job:
    """Return the job without options that have no value but may get one.

    If bash refuses their script, a value may be on that line. The script's arguments may be the value.
    """
    is_refused = any(problem.message.startswith(REFUSED) for problem in job.problems)
    open_options = {before.location for before, word in itertools.pairwise(launch.whole) if is_script_arguments(word)}
    kept = (
        problem
        for problem in job.problems
        if NO_VALUE not in problem.message or not (is_refused or problem.location in open_options)
    )
    return replace(job, problems=tuple(kept))


def is_escaped_blank(word: Word, source: Source) -> bool:
    """Return whether a word is a blank that a backslash escapes, as in `\\ \\` at the end of a line."""
    return word.text.isspace() and source.text[slice(*word.span)].startswith("\\")


def _find_blank_words(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of an escaped blank in a command: `image.sif \\ \\` starts it, unless the image drops it."""
    text = "a backslash before a blank makes the blank a word, which the command gets as an argument"
    make_problem = partial(SettingProblem, advice="leave out this backslash", mild=True, universal=True)
    blanks = (word for word in launch.whole[:-1] if is_escaped_blank(word, launch.source))
    yield from (make_problem("refuses", text, (EVIDENCE,), word.location) for word in blanks)


def _find_joined_variables(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of a variable right behind a continued line: it belongs to the value of the one before."""
    text, start = launch.source.text, launch.whole[0].span[0] if launch.whole and launch.source.kind == "shell" else 0
    for match in JOINED.finditer(text, 0, max(start, 0)):
        if "\n" not in text[match.end() : start].replace("\\\n", ""):
            line = text.count("\n", 0, match.end()) + 1
            message = f"{match[2]} is not set: the backslash before it makes it part of the value of {match[1]}"
            advice = f"put a blank before the backslash of line {line - 1}"
            location = SourceLocation(launch.source.name, line, 1)
            yield SettingProblem("ignores", message, (JOINS,), location, advice=advice, universal=True)


def _find_unused_arrays(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of a command that expands a misspelled array: never assigned, while a similar one is unused.

    Neither name may occur elsewhere in the script, and it may source no file that was not read.
    """
    expanded = {match[1]: word for word in launch.whole if (match := EXPANDED.fullmatch(word.text)) and not word.known}
    text = re.sub(r"^[ \t]*#.*$", "", launch.source.text, flags=re.MULTILINE) if expanded else ""
    missing = [name for name in expanded if len(re.findall(rf"\b{name}\b", text)) == text.count(f"${{{name}[")]
    for match in ARRAY.finditer(text) if missing and not _may_assign_elsewhere(launch) else ():
        options = re.findall(r"(?<!\S)--[\w-]+", match[2])
        near = get_close_matches(match[1], missing, 1, CLOSE_NAME)
        switched_off = re.search(rf"^[ \t]*#[ \t]*\"?\$\{{{match[1]}\[", launch.source.text, re.MULTILINE)
        if options and near and not switched_off and len(re.findall(rf"\b{match[1]}\b", text)) == 1:
            message = f"{near[0]} is never assigned, and {match[1]} is never used, so these are not passed: "
            yield SettingProblem(
                "ignores",
                message + _shorten(options),
                (UNASSIGNED,),
                expanded[near[0]].location,
                advice=f"use the same name for {near[0]} and {match[1]}",
                universal=True,
            )


def find_script_faults(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problems of a command that bash does not start as written, whatever program it starts."""
    yield from [*_find_syntax_error(launch)] or _find_placeholders(launch)
    yield from _find_carriage_returns(launch)


def _find_placeholders(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of the first `<name>` outside quotes: bash reads a file of that name, which does not exist."""
    for word in launch.whole if _is_script(launch) else ():
        written = launch.source.text[slice(*word.span)] if not word.known and word.span != NOWHERE else ""
        placeholder = PLACEHOLDER.search(QUOTED.sub("", f"{written} next"))
        name = placeholder[1].split()[0] if placeholder else ""
        if placeholder and not os.path.exists(os.path.join(launch.folder, name)):
            text = (
                f"bash takes {placeholder[0]} for redirections, and starts nothing: {name}: No such file or directory"
            )
            advice = f"replace {placeholder[0]}"
            evidence = ("bash(1), REDIRECTION",)
            yield SettingProblem("refuses", text, evidence, word.location, advice=advice, universal=True)
            return


def _find_syntax_error(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of a command that bash does not start, because its script has a syntax error before its end."""
    refused = launch.refused or _check_with_bash(launch)
    if refused and not launch.source.name.lower().endswith(PROSE):
        text = f"{REFUSED}: {refused}"
        evidence = ("bash(1), SHELL GRAMMAR: bash runs what it has read completely; bash -n reads without running",)
        location = launch.words[0].location if launch.words else SourceLocation(launch.source.name)
        advice = f"correct that line, until bash -n {launch.source.name} prints nothing"
        yield SettingProblem("refuses", text, evidence, location, advice=advice, universal=True)


def _check_with_bash(launch: Launch) -> str:
    """Return the syntax error that bash itself finds, if it does not start the command because of it."""
    text = launch.source.text
    error = find_syntax_error(text) if _is_script(launch) and not OTHER_SHELL.search(text) else None
    return f"line {error[0]}: {error[1]}" if error is not None and error[0] <= launch.last_line else ""


def _is_script(launch: Launch) -> bool:
    """Return whether a launch is in a shell script, not in a file that contains one."""
    return launch.source.kind == "shell" and detect_kind(launch.source.name, launch.source.text) == "shell"


def _find_carriage_returns(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of a script with Windows line ends: a backslash escapes "\\r", which continues no line.

    The program gets that "\\r" as an argument, which it refuses; a last word that ends with it is another value.
    """
    if launch.source.kind != "shell" or not launch.source.has_carriage_returns:
        return
    name, lines = launch.source.name, launch.source.lines
    own = [word for word in launch.whole if word.location.source == name and word.span != NOWHERE]
    first = min((word.location.line for word in own), default=0)
    lost = [word for word in own if word.location.line > first and lines[word.location.line - 2].endswith("\\")]
    if not own:
        return
    text = f"{name} has Windows line ends, and bash takes each \\r for a character: "
    names = [word.text for word in lost if word.text[:1] in "-+~" or "=" in word.text]
    is_split = f"the command ends at line {first}, and these words are not passed to it: {_shorten(names)}"
    text += is_split if lost else f"the last word of line {own[-1].location.line} ends with it"
    location = (lost or own[-1:])[0].location
    consequence: Consequence = "refuses" if lost else "ignores"
    yield SettingProblem(consequence, text, (EVIDENCE,), location, advice=f"dos2unix {name}", universal=True)


def _find_unset_values(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of an option whose value is a variable that no line assigns.

    Either a comment assigns it, or `NAME = value`: with blanks around "=", bash runs NAME as a command. Or its name is
    in lower case, unlike those that scripts take from the environment. Without it there, the option has no value.
    Nothing that the script sources may be unread.
    """
    text = launch.source.text
    if _may_assign_elsewhere(launch):
        return
    following = [*(word.text for word in launch.whole[1:]), "--"]
    for before, word, after in zip(launch.whole, launch.whole[1:], following[1:]):
        match = VARIABLE.fullmatch(word.text) if not word.known else None
        name = (match[1] or match[2]) if match else ""
        if not name or not is_option(before.text) or "=" in before.text or not is_option(after):
            continue
        pattern = re.compile(rf"^[ \t]*(#.*\b{name}=|{name}[ \t]+=(?=\s))[ \t]*(\w*)", re.MULTILINE)
        assignment = pattern.search(text)
        is_own = name.islower() and _is_script(launch)  # not in Python, whose f-string gives it a value
        if not (assignment or is_own) or not VARIABLE.fullmatch(text[slice(*word.span)]):  # "$A" is a word, ${A}_b too
            continue
        if _may_be_switch(launch, before.text, assignment[2] if assignment else None):
            continue
        code = COMMENT.sub("", pattern.sub("", text))
        if not _is_set(name, code) and (assignment or not SETS_ANY.search(code)):
            reason, place = "no line assigns it", ""
            if assignment:
                reason = "only a comment assigns it" if assignment[1][0] == "#" else f"bash runs {name} as a command"
                line = text.count("\n", 0, assignment.end()) + 1
                place = f"{launch.source.name}:{line}: {assignment[1].strip()}…"
            yield SettingProblem(
                "refuses",
                f"{before.text} has no value unless the environment sets {name}: {reason}",
                tuple(filter(None, (place, NO_WORD))),
                word.location,
                advice=f"assign {name} before the command",
                mild=True,
                universal=True,
            )


def _may_assign_elsewhere(launch: Launch) -> bool:
    """Return whether something that was not read, or the shell around the command, may assign variables."""
    return launch.is_nested or any("not followed" in note for note in launch.notes)


def _is_set(name: str, code: str) -> bool:
    """Return whether a script without its comments mentions a variable otherwise than to expand it."""
    return re.search(rf"(?<![\w$.-])(?<!\$\{{){name}\b|\$\{{{name}:?[=?]", code) is not None  # --name is an option


def _list_unbound(launch: Launch) -> tuple[str, ...]:
    """Return a remark if `set -u` ends the script at the command, unless the environment sets its variables."""
    is_strict = _is_script(launch) and not _may_assign_elsewhere(launch) and NOUNSET.search(launch.source.text)
    code = COMMENT.sub("", launch.source.text) if is_strict else ""
    written = [launch.source.text[slice(*word.span)] for word in launch.whole if is_strict and not word.known]
    names = dict.fromkeys(match[1] or match[2] for text in written for match in VARIABLE.finditer(text))
    unset = [name for name in names if not name.isdecimal() and not _is_set(name, code)]
    is_open = not unset or SETS_ANY.search(code)
    return () if is_open else (f"set -u ends the script unless the environment sets {', '.join(unset)}",)


def _may_be_switch(launch: Launch, option: str, value: str | None) -> bool:
    """Return whether an option may be without a value: by its parser, or if that was not read by its intended value.

    If no value is known either, its name decides.
    """
    options = launch.program.options if launch.program is not None else {}
    known = options.get(option.lstrip("-").replace("-", "_")) or options.get(option.lstrip("-"))
    if known is None:
        return VALUED.search(option) is None if value is None else value.casefold() in TRUE_WORDS | FALSE_WORDS
    return known.kind != "bool?" and known.nargs not in (1, "+")


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")
