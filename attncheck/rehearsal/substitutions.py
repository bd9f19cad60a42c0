"""The parts of a launch that only its script knows: commands in its options and exports, unset variables.

`$(pwd)`, `$(dirname X)`, `$(cd X && pwd)` and similar are computed here without a shell. Options, exports and folders
with other commands are left out, because the scaled-down launch already sets what a rehearsal needs. The program and
its configuration file are required; if they contain a command, the user must provide the value.
"""

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from attncheck.core.launch import Assignment, Launch, Word
from attncheck.core.program import Program
from attncheck.lint.arguments import is_option
from attncheck.lint.fields.effect_cuts import is_override, split_options
from attncheck.lint.shell.quoting import PLAIN_PATH

Compute = Callable[[str], str]
INNERMOST = re.compile(r"\$\(([^()`$]*)\)|`([^`$()]*)`")
SINGLE_QUOTED = re.compile(r"\\.|\"(?:[^\"\\]|\\.)*\"|\$?'[^']*'", re.DOTALL)
# `$(`, a backquote, `<(`, `>(`, and `${X@P}`, which runs the contents of X. Arithmetic runs commands in array indices.
RUNS = re.compile(r"`|\$\((?!\()|[<>]\(|@P\}")
LOOKUP = re.compile(
    r"\$\((?:which|command -v) [\w.-]+\)|`(?:which|command -v) [\w.-]+`"
)  # of a program; changes nothing
ARITHMETIC = re.compile(r"\$\(\(|\$\[")
# Expressions that expand a variable's value again: arithmetic, `${!X}`, and the numbers of `${X:Y}` and `${X[Y]}`.
EXPANDS_AGAIN = re.compile(rf"{ARITHMETIC.pattern}|\$\{{!|\$\{{\w+(?:\[|:(?![-=?+]))")
TERMS = r"[\w\s+*/%<>=!&|^~?:,${}.-]"
# with unbalanced parentheses it is a command
PLAIN_ARITHMETIC = re.compile(rf"\$\(\((?:{TERMS}|\({TERMS}*\))*\)\)|\$\[{TERMS}*\]")
REFERENCE = re.compile(r"\$(?:\{[#!]?)?(\w+)(?!\w*:?[-=+])")  # not `${X:-1}`, which has a default
# Variables of every shell.
HELD = frozenset(("HOME", "PWD", "USER", "PATH", "HOSTNAME", "RANDOM", "SHELL", "UID", "OLDPWD", "LANG", "0"))
NEEDED = ("config", "config_file", "config_path", "config_name")  # a program's options that decide what it trains
# A file of an installed package, `$(python -c "import swift; print(swift.__path__[0])")/cli/sft.py`.
INSTALLED_FILE = re.compile(r"\bimport\s+(\w+).*?((?:/\w+)+)\.py\b", re.DOTALL)
# whole arguments, not an option's value
ARGUMENTS = re.compile(r"\$\{?\w*(ARG|OPT|FLAG|EXTRA)\w*(\[@\])?\}?", re.IGNORECASE)
# Exports that programs search, with any value.
WANTED = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|(?<!IF)NAME|PROJECT|ENTITY|USER")  # not of a network interface


@dataclass(frozen=True)
class PlainLaunch:
    """A launch with only known text, the parts that were left out, and those that cannot be left out."""

    launch: Launch
    left_out: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The report's text about the parts that were left out."""
        names = ", ".join(dict.fromkeys(self.left_out))
        return (f"left out, because the value is unknown: {names}",) if names else ()


class _Unknown:
    """Decides whether a shell's text cannot be expanded here."""

    def __init__(self, held: Collection[str], runs_commands: bool) -> None:
        self.held, self.runs_commands = {*held, *HELD}, runs_commands

    def __call__(self, shell: str) -> bool:
        if not self.runs_commands and runs_command(shell):
            return True
        return any(match[1] not in self.held for match in REFERENCE.finditer(_drop_literals(shell)))


def leave_out(launch: Launch, held: Collection[str] = (), runs_commands: bool = False) -> PlainLaunch:
    """Return a launch without unknown parts; `held` are the variables of the shell that runs the launch."""
    known = (lambda shell: shell) if runs_commands else compute
    first = len(launch.launcher_words)
    whole = (*launch.whole[:first], *_start_module(launch.whole[first:]))
    whole = tuple(replace(word, shell=known(word.shell)) if word.shell else word for word in whole)
    inherited = launch.environ.keys() - {export.name for export in launch.exports}
    is_unknown = _Unknown((*held, *inherited), runs_commands)
    exports, left_out = _keep_exports(launch, known, is_unknown)
    launcher = tuple(_keep_known(whole[:first], None, is_unknown, left_out))
    words = tuple(_keep_known(whole[first:], launch.program, is_unknown, left_out, NEEDED))
    directories = tuple(_iter_folders(map(known, launch.directories), is_unknown, left_out))
    texts = [*directories, *(export.shell for export in exports), *(word.shell for word in (*launcher, *words))]
    needed = [word.shell for word in (*launcher, *words) if is_unknown(word.shell)]
    if not runs_commands:
        needed += [text for text in texts if runs_command(text)]
        values = (*(export.shell for export in launch.exports), *launch.environ.values())
        if any(map(RUNS.search, values)):  # also in single quotes
            needed += [text for text in texts if EXPANDS_AGAIN.search(text)]
    environ = {name: value for name, value in launch.environ.items() if name in is_unknown.held}
    changed = replace(launch, whole=(*launcher, *words), words=words if launch.words else ())
    changed = replace(changed, exports=exports, directories=directories, environ=environ)
    return PlainLaunch(changed, tuple(left_out), tuple(dict.fromkeys(needed)))


def _start_module(words: Sequence[Word]) -> Sequence[Word]:
    """Return a program's words; an installed package's file, whose path Python prints, becomes its module."""
    match = INSTALLED_FILE.search(words[0].text) if words and not words[0].known else None
    if match is None:
        return words
    texts = ("-m", f"{match[1]}{match[2].replace('/', '.')}")
    return (*(replace(words[0], text=text, shell="", known=True) for text in texts), *words[1:])


def _keep_exports(launch: Launch, known: Compute, is_unknown: _Unknown) -> tuple[tuple[Assignment, ...], list[str]]:
    """Return the exports with known values, and the names of the others, which the shell then lacks."""
    kept: list[Assignment] = []
    left_out: list[str] = []
    for export in launch.exports:
        shell = known(export.shell)
        was_held = export.name in is_unknown.held
        is_unknown.held.add(export.name)  # `PYTHONPATH=$PYTHONPATH:x` works without an earlier value
        if not is_unknown(shell) and (was_held or shell.strip('"{}$') != export.name):
            kept.append(export._replace(shell=shell))
            continue
        left_out.append(export.name)
        if WANTED.search(export.name):
            kept.append(export._replace(shell="unknown"))
        elif not was_held:
            is_unknown.held.discard(export.name)
    return tuple(kept), left_out


def _keep_known(
    words: Sequence[Word],
    program: Program | None,
    is_unknown: _Unknown,
    left_out: list[str],
    keeps: Collection[str] = (),
) -> Iterator[Word]:
    """Yield the words of a command without unknown options and words, except for the named ones."""
    for group in split_options(words, program):
        name = group[0].text.partition("=")[0]
        unknown = [word for word in group if is_unknown(word.shell)]
        is_setting = is_option(name) or is_override(group[0].text)
        if not unknown or group[0] is words[0] or name.lstrip("-+").replace("-", "_") in keeps:
            yield from group
        elif is_setting and all(ARGUMENTS.fullmatch(word.shell) for word in unknown):
            yield from (word for word in group if word not in unknown)
            left_out += (word.shell for word in unknown)
        else:
            left_out.append(name if is_setting else group[0].shell)


def _iter_folders(folders: Iterable[str], is_unknown: _Unknown, left_out: list[str]) -> Iterator[str]:
    """Yield the folders that the script enters and that exist here."""
    place = os.getcwd()
    for folder in folders:
        path = os.path.expanduser(os.path.expandvars(folder.strip("'\"")))
        if is_unknown(folder) or not ("$" in path or os.path.isdir(os.path.join(place, path))):
            left_out.append(f"cd {folder}")
        else:
            place = os.path.join(place, path)
            yield folder


def runs_command(shell: str) -> bool:
    """Return whether a shell that expands this text runs a command."""
    text = _drop_literals(shell)
    arithmetic = PLAIN_ARITHMETIC.sub(" ", text)
    return bool(RUNS.search(text) or ARITHMETIC.search(arithmetic))


def _drop_literals(shell: str) -> str:
    """Return a shell's text without unexpanded parts: single quotes, and characters after a backslash; and look-ups."""
    text = LOOKUP.sub(" ", shell)
    text = SINGLE_QUOTED.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    return re.sub(r"\\.", " ", text)


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
    return value if value and PLAIN_PATH.fullmatch(value) else match[0]


def _run(words: list[str]) -> str:
    """Return the output of a command that only computes a path, "" for any other."""
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
