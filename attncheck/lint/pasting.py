"""Writes a launch as one command for a shell: its environment, its folder, its launcher and its program.

Values that the script resolves are resolved. Values known only at run time are left as written (`$DATA`, `$(nproc)`),
and the variables that the shell must then have are listed.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from attncheck.core.io.secrets.values import is_secret_value
from attncheck.core.launch import Assignment, Launch
from attncheck.lint.shell.quoting import quote_on_one_line

# `\$` and text in single quotes do not expand; names that every shell has are not listed.
REFERENCE = re.compile(r"\\.|'[^']*'|\$\{?[#!]?([A-Za-z_]\w*|\d+|[@*])")
DOUBLE_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
HELD_BY_EVERY_SHELL = frozenset({"HOME", "PWD", "USER", "PATH", "HOSTNAME", "RANDOM", "SHELL", "UID", "OLDPWD", "LANG"})


class PastedCommand(NamedTuple):
    """A command to paste, and the variables that the shell must have for it."""

    text: str
    variables: tuple[str, ...] = ()


def format_command(launch: Launch) -> PastedCommand:
    """Return a launch as one command; "" for a configuration file, and for shells elsewhere or in containers."""
    if not launch.whole or launch.is_remote:
        return PastedCommand("")
    exports = [assignment for assignment in _last_of_each(launch.exports) if not _is_itself(assignment)]
    assignments = [f"{assignment.name}={_format_value(assignment)}" for assignment in exports if assignment.certain]
    command = " ".join(word.shell or quote_on_one_line(word.text) for word in launch.whole)
    directories = "".join(f"cd {directory} && " for directory in launch.directories)
    if directories and any(re.search(r"\$\(|`|\bPWD\b", value) for value in assignments):
        # set where the script sets them: before it changes the directory
        text = f"(export {' '.join(assignments)}; {directories}{command})"
    else:
        text = directories + " ".join((*assignments, command))
    undecided = [assignment.name for assignment in launch.exports if not assignment.certain or _is_itself(assignment)]
    return PastedCommand(text, tuple(dict.fromkeys((*_iter_references(launch, exports), *undecided))))


def _last_of_each(exports: tuple[Assignment, ...]) -> Iterator[Assignment]:
    """Yield the effective assignment of each name: the one nearest to the command."""
    yield from {assignment.name: assignment for assignment in exports}.values()


def _is_itself(assignment: Assignment) -> bool:
    return assignment.shell.strip('"') in (f"${assignment.name}", f"${{{assignment.name}}}")


def _format_value(assignment: Assignment) -> str:
    """Return the value quoted for a shell; for a secret, a reference to the shell's variable."""
    if is_secret_value(assignment.name, assignment.shell.strip("\"'")):
        return f'"${assignment.name}"'
    return assignment.shell


def _iter_references(launch: Launch, exports: list[Assignment]) -> Iterator[str]:
    """Yield the script's variables and arguments that are left to the shell: "DATA", "$1"."""
    for assignment in exports:
        if assignment.certain and is_secret_value(assignment.name, assignment.shell.strip("\"'")):
            yield assignment.name
    texts = [assignment.shell for assignment in exports if assignment.certain]
    texts += [*launch.directories, *(word.shell for word in launch.whole)]
    for text in texts:
        # inside double quotes, a single quote is an ordinary character
        for match in REFERENCE.finditer(DOUBLE_QUOTED.sub(lambda quoted: quoted[0].replace("'", " "), text)):
            name = match[1]
            if name and name not in HELD_BY_EVERY_SHELL:
                yield f"${name}" if not name[0].isalpha() and name[0] != "_" else name
