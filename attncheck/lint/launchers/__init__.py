"""The room of launchers: each file takes one launcher off the front of a command and says what it tells.

torchrun, deepspeed, accelerate, ray, srun, python, uv and the shell's own `env`, `nohup`, `exec`, `time`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from attncheck.core.facts import Absent, Fact
from attncheck.core.launch import Word


@dataclass(frozen=True)
class Taken:
    """What a launcher told, and the command it starts."""

    words: tuple[Word, ...]  # what remains: the next launcher, a module, a script or a program
    environ: Mapping[str, str] = field(default_factory=dict)
    nodes: Fact[int] = Absent()
    processes: Fact[int] = Absent()  # on each node
    file: str = ""  # a configuration file of the launcher itself
    module: bool = False  # the first of `words` is a module's name (`-m`, `--module`)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launcher:
    """One launcher. `take(words)` returns what it told, None where the words do not begin with this launcher."""

    name: str
    take: Callable[[Sequence[Word]], Taken | None]
