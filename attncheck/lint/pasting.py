"""Writes a launch as one command that a shell can run: its environment, its folder, its launcher and its program.

What the script resolves is resolved; what only running tells is as the script writes it (`$DATA`, `$(nproc)`), and
the names that the shell must then hold are listed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from attncheck.core.io.secrets.values import is_secret_value
from attncheck.core.launch import Assignment, Launch
from attncheck.lint.shell.quoting import quote_on_one_line

# `\$` and what is in single quotes expand to nothing; names that every shell holds need no word.
REFERENCE = re.compile(r"\\.|'[^']*'|\$\{?[#!]?([A-Za-z_]\w*|\d+|[@*])")
DOUBLE_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
HELD_BY_EVERY_SHELL = frozenset({"HOME", "PWD", "USER", "PATH", "HOSTNAME", "RANDOM", "SHELL", "UID", "OLDPWD", "LANG"})


@dataclass(frozen=True)
class PastedCommand:
    """A command to paste, and the variables that the shell must hold for it."""

    text: str
    variables: tuple[str, ...] = ()


def format_command(launch: Launch) -> PastedCommand:
    """Return a launch as one command; "" for a configuration file, and in another machine's or container's shell."""
    if not launch.whole or launch.is_remote:
        return PastedCommand("")
    exports = [assignment for assignment in _last_of_each(launch.exports) if not _is_itself(assignment)]
    assignments = [f"{assignment.name}={_format_value(assignment)}" for assignment in exports if assignment.certain]
    command = " ".join(word.shell or quote_on_one_line(word.text) for word in launch.whole)
    directories = "".join(f"cd {directory} && " for directory in launch.directories)
    if directories and any(re.search(r"\$\(|`|\bPWD\b", value) for value in assignments):
        # set where the script sets them, before it changes the directory
        text = f"(export {' '.join(assignments)}; {directories}{command})"
    else:
        text = directories + " ".join((*assignments, command))
    undecided = [assignment.name for assignment in launch.exports if not assignment.certain or _is_itself(assignment)]
    return PastedCommand(text, tuple(dict.fromkeys((*_iter_references(launch, exports), *undecided))))


def _last_of_each(exports: tuple[Assignment, ...]) -> Iterator[Assignment]:
    """Yield the assignment of each name that counts: the one nearest to the command."""
    yield from {assignment.name: assignment for assignment in exports}.values()


def _is_itself(assignment: Assignment) -> bool:
    return assignment.shell.strip('"') in (f"${assignment.name}", f"${{{assignment.name}}}")


def _format_value(assignment: Assignment) -> str:
    """Return the value as a shell must read it; of a secret, the variable of the shell."""
    if is_secret_value(assignment.name, assignment.shell.strip("\"'")):
        return f'"${assignment.name}"'
    return assignment.shell


def _iter_references(launch: Launch, exports: list[Assignment]) -> Iterator[str]:
    """Yield the variables and arguments of the script that are left to the shell: "DATA", "$1"."""
    for assignment in exports:
        if assignment.certain and is_secret_value(assignment.name, assignment.shell.strip("\"'")):
            yield assignment.name
    texts = [assignment.shell for assignment in exports if assignment.certain]
    texts += [*launch.directories, *(word.shell for word in launch.whole)]
    for text in texts:
        # in double quotes a single quote is a character like any other
        for match in REFERENCE.finditer(DOUBLE_QUOTED.sub(lambda quoted: quoted[0].replace("'", " "), text)):
            name = match[1]
            if name and name not in HELD_BY_EVERY_SHELL:
                yield f"${name}" if not name[0].isalpha() and name[0] != "_" else name
