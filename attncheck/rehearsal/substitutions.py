"""Command substitutions of a launch, which a rehearsal does not run: a few are computed, the rest is left out.

`$(pwd)`, `$(dirname X)`, `$(cd X && pwd)` and their like are computed here without a shell. Exports that hold another
one are left out. A word that holds one, or refers to such an export, is needed: then the user is asked.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from attncheck.core.launch import Launch, Word

INNERMOST = re.compile(r"\$\(([^()`$]*)\)|`([^`$()]*)`")
PLAIN = re.compile(r"[\w@%+=:,./-]+")  # a path that needs no quotes
SINGLE_QUOTED = re.compile(r"\\.|\"(?:[^\"\\]|\\.)*\"|\$?'[^']*'", re.DOTALL)
# `$(`, a backquote, `<(`, `>(`, `${X@P}`, which runs what X holds. Arithmetic runs what a variable holds as an index.
RUNS = re.compile(r"`|\$\((?!\()|[<>]\(|@P\}")
ARITHMETIC = re.compile(r"\$\(\(|\$\[")
# What expands a variable's value again: arithmetic, `${!X}`, and the numbers of `${X:Y}` and `${X[Y]}`.
EXPANDS_AGAIN = re.compile(rf"{ARITHMETIC.pattern}|\$\{{!|\$\{{\w+(?:\[|:(?![-=?+]))")
TERMS = r"[\w\s+*/%<>=!&|^~?:,${}.-]"
PLAIN_ARITHMETIC = re.compile(rf"\$\(\((?:{TERMS}|\({TERMS}*\))*\)\)|\$\[{TERMS}*\]")  # unbalanced, it is a command


@dataclass(frozen=True)
class PlainLaunch:
    """A launch whose shell text runs no command: names of exports that were left out, and words that were needed."""

    launch: Launch
    left_out: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is reported of the exports that were left out."""
        names = ", ".join(self.left_out)
        return (f"{names}: set by a command, which was not run (--run-substitutions runs it)",) if names else ()


def leave_out(launch: Launch) -> PlainLaunch:
    """Return a launch without command substitutions, as far as it can be without."""
    whole = tuple(replace(word, shell=compute(word.shell)) if word.shell else word for word in launch.whole)
    exports = tuple(replace(assignment, shell=compute(assignment.shell)) for assignment in launch.exports)
    directories = tuple(map(compute, launch.directories))
    values = (*(assignment.shell for assignment in exports), *launch.environ.values())
    hides_command = any(map(RUNS.search, values))  # in single quotes too
    running = {assignment.name for assignment in exports if runs_command(assignment.shell)}
    kept = tuple(assignment for assignment in exports if assignment.name not in running)
    texts = [*directories, *(assignment.shell for assignment in kept), *(word.shell for word in whole)]
    needed = [*_iter_needed(whole), *(text for text in directories if runs_command(text))]
    needed += [f"${name}" for name in sorted(running) if any(re.search(rf"\$\{{?{name}\b", text) for text in texts)]
    if hides_command:
        needed += [text for text in texts if EXPANDS_AGAIN.search(text)]
    changed = replace(launch, whole=whole, exports=kept, directories=directories)
    return PlainLaunch(changed, tuple(sorted(running)), tuple(dict.fromkeys(needed)))


def _iter_needed(whole: tuple[Word, ...]) -> Iterator[str]:
    """Yield the words that run a command, each with the option before it."""
    for previous, word in zip((None, *whole), whole):
        if runs_command(word.shell):
            is_value = previous is not None and previous.text.startswith("-") and not word.text.startswith("-")
            yield f"{previous.text} {word.shell}" if is_value and previous is not None else word.shell


def runs_command(shell: str) -> bool:
    """Return whether a shell that expands this text runs a command."""
    text = SINGLE_QUOTED.sub(lambda match: match[0] if match[0].startswith('"') else " ", shell)
    text = re.sub(r"\\.", " ", text)
    arithmetic = PLAIN_ARITHMETIC.sub(" ", text)
    return bool(RUNS.search(text) or ARITHMETIC.search(arithmetic))


def compute(shell: str) -> str:
    """Return a shell's text with the substitutions that need no shell computed."""
    while runs_command(shell):
        computed = INNERMOST.sub(_compute_one, shell)
        if computed == shell:
            return shell
        shell = computed
    return shell


def _compute_one(match: re.Match[str]) -> str:
    try:
        words = shlex.split(match[1] or match[2] or "", comments=False)
    except ValueError:
        return match[0]
    value = _run(words)
    return value if value and PLAIN.fullmatch(value) else match[0]


def _run(words: list[str]) -> str:
    """Return what a command that only computes a path prints, "" for any other."""
    match [word for word in words if word not in ("2>/dev/null", ">/dev/null", "2>&1", "--")]:
        case ["pwd"] | ["pwd", "-P"]:
            return os.getcwd()
        case ["nproc"]:
            return str(os.cpu_count() or 1)
        case ["hostname"]:
            return "localhost"
        case ["dirname", path]:
            return os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
        case ["basename", path]:
            return os.path.basename(path.rstrip("/"))
        case ["realpath", path] | ["readlink", "-f", path]:
            return os.path.realpath(path)
        case ["cd", path, "&&", "pwd"] | ["cd", path, "&&", "pwd", "-P"]:
            return os.path.abspath(path)
    return ""
