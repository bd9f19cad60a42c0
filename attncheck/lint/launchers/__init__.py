"""Launchers that precede a training program: each module parses one launcher at the beginning of a command.

They include torchrun, deepspeed, accelerate, ray, srun, python, uv, docker and the shell's own `env`, `nohup`, `exec`
and `time`. A module holds one `LAUNCHER`. A plugin's launcher (an entry point in the group "attncheck.launchers", whose
value is the module) needs one import:

    from attncheck.lint.launchers import Known, Launcher, ParsedLauncher, Word
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attncheck.core.facts import Absent, Fact, Known, Unreadable
from attncheck.core.launch import NOWHERE, Setting, Word

__all__ = [
    "NOWHERE",
    "Absent",
    "Fact",
    "Known",
    "Launcher",
    "ParsedLauncher",
    "Unreadable",
    "Word",
]


@dataclass(frozen=True)
class ParsedLauncher:
    """The options of one launcher at the beginning of a command, and the command that it starts."""

    words: tuple[Word, ...]  # the rest: the next launcher, a module, a script or a program
    environ: Mapping[str, str] = field(default_factory=dict)
    nodes: Fact[int] = Absent()
    processes: Fact[int] = Absent()  # processes on each node
    config_file: str = ""  # the launcher's own configuration file
    file_variables: Mapping[str, Setting] = field(default_factory=dict)  # the part of `environ` from that file
    notes: tuple[str, ...] = ()
    entries: tuple[Setting, ...] = ()  # entries of that file
    isolates: bool = False  # the command gets only those variables of the outer environment that `passes` names
    passes: tuple[str, ...] = ()
    folder: str = ""  # the folder in which the command starts, if the launcher states one


class Launcher(NamedTuple):
    """One launcher. `parse(words)` returns its options; None if the words do not begin with this launcher."""

    name: str
    parse: Callable[[Sequence[Word]], ParsedLauncher | None]
