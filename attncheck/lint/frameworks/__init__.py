"""The room of frameworks: each file or folder reads a launch in any version's names, and writes settings in one's.

It is data and arithmetic over text: it imports nothing of the framework. Names, defaults and constraints were
read in released wheels, and each says in which; the tables of names by version are `names/*.json`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from attncheck.core import registry
from attncheck.core.job import Job
from attncheck.core.launch import Edit, Launch
from attncheck.core.plan import Plan
from attncheck.core.snapshot import Snapshot
from attncheck.lint.fields.plan_writing import Since


@dataclass(frozen=True)
class Framework:
    """One training framework.

    `trainer(launch)` says which of the framework's trainers a launch starts ("sft"), "" where it is none of them;
    of a bare configuration file it judges by the keys. `model(launch)` is the model as written, "" where none is.
    `read(launch, version, snapshot)` returns the job as that version reads it, on the machine and with the model of
    the snapshot (`snapshot.model` is this launch's). `write(launch, job, sets)` returns the edits that rename what
    `job.version` does not know and set the `Key`s (or own names) of `sets`, and change nothing else; they never
    overlap. `plan(plan, since)` returns the lines in which a user writes a plan that no launch holds yet, where
    `since(version)` says whether the release is that one or newer; what the framework cannot express is a comment
    line, never invented. None of them raises, whatever is written in the launch.

    A `general` framework is asked last: its names are in the launches of others too.
    """

    name: str  # "openrlhf"
    distribution: str  # whose version decides the names
    newest: str  # newest release whose names are known
    trainer: Callable[[Launch], str]
    model: Callable[[Launch], str]
    read: Callable[[Launch, str, Snapshot], Job]
    write: Callable[[Launch, Job, Mapping[str, str]], tuple[Edit, ...]]
    plan: Callable[[Plan, Since], list[str]]
    general: bool = False


@cache
def load() -> tuple[Framework, ...]:
    """Return the frameworks that attncheck and its plugins bring, in the order in which they are asked."""
    extensions, _ = registry.load(sys.modules[__name__], "attncheck.frameworks")
    found = (getattr(extension.module, "FRAMEWORK", None) for extension in extensions)
    return tuple(sorted((one for one in found if isinstance(one, Framework)), key=lambda one: one.general))
