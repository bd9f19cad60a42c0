"""The room of frameworks: each file or folder reads a launch in any version's names, and writes settings in one's.

It is data and arithmetic over text: it imports nothing of the framework. Names, defaults and constraints were
read in released wheels, and each says in which; the tables of names by version are `names/*.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attncheck.core.job import Job
from attncheck.core.launch import Edit, Launch
from attncheck.core.snapshot import Snapshot


@dataclass(frozen=True)
class Framework:
    """One training framework.

    `trainer(launch)` says which of the framework's trainers a launch starts ("sft"), "" where it is none of them;
    of a bare configuration file it judges by the keys. `model(launch)` is the model as written, "" where none is.
    `read(launch, version, snapshot)` returns the job as that version reads it, on the machine and with the model of
    the snapshot (`snapshot.model` is this launch's). `write(launch, job, sets)` returns the edits that rename what
    `job.version` does not know and set the `Key`s (or own names) of `sets`, and change nothing else; they never
    overlap. None of them raises, whatever is written in the launch.
    """

    name: str  # "openrlhf"
    distribution: str  # whose version decides the names
    newest: str  # newest release whose names are known
    trainer: Callable[[Launch], str]
    model: Callable[[Launch], str]
    read: Callable[[Launch, str, Snapshot], Job]
    write: Callable[[Launch, Job, Mapping[str, str]], tuple[Edit, ...]]
