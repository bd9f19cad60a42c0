"""Training frameworks: each file or folder reads a launch in any release's names, and writes settings in one release's.

It is data and arithmetic over text: it imports nothing of the framework. Names, defaults and constraints were
read in released wheels, and each says in which; the tables of names by version are `attncheck/lint/names/*.json`.
A framework of a plugin (an entry point in the group "attncheck.frameworks", whose value is the module) needs one
import:

    from attncheck.lint.frameworks import Edit, Framework, Job, Launch, Plan, SettingProblem, Snapshot
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from attncheck.core import registry
from attncheck.core.program import Style
from attncheck.lint.fields import Edit, Job, JobCut, Launch, Materials, Plan, SettingProblem, Snapshot, VersionCheck

__all__ = ["Edit", "Framework", "Job", "Launch", "Plan", "SettingProblem", "Snapshot", "VersionCheck"]


def _list_no_entries(launch: Launch) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Framework:
    """One training framework.

    `trainer(launch)` returns the framework's trainer that a launch starts ("sft"), "" if it is none of them; for
    a bare configuration file it goes by the keys. `model(launch)` is the model that the launch names, else "".
    `read(launch, version, snapshot)` returns the job as that version reads it, on the machine and with the model of
    the snapshot (`snapshot.model` is this launch's). `write(launch, job, sets)` returns the edits that rename what
    `job.version` does not know and set the `Key`s (or own names) of `sets`, and change nothing else; they never
    overlap. `plan(plan, is_at_least)` returns the lines in which a user writes a plan that no launch holds yet, where
    `is_at_least(version)` says whether the release is that one or newer; what the framework cannot express is a comment
    line, never invented. None of them raises, whatever the launch holds.

    `entries(launch)` are the functions and classes that read the names where one of the framework's commands is
    started, or a bare configuration file: the first that is found next to the launch or installed is read.

    A `general` framework is tried last: launches of other frameworks have its names too. One that is not `is_linted` is
    nothing but rehearsed: of its settings nothing is known.
    """

    name: str  # "openrlhf"
    distribution: str  # whose version decides the names; "": it comes as a source tree, and is no distribution
    newest: str  # newest release whose names are known
    trainer: Callable[[Launch], str]
    model: Callable[[Launch], str]
    read: Callable[[Launch, str, Snapshot], Job]
    write: Callable[[Launch, Job, Mapping[str, str]], tuple[Edit, ...]]
    plan: Callable[[Plan, VersionCheck], list[str]]
    general: bool = False
    is_linted: bool = True
    style: Style | Literal[""] = ""  # in which all of its scripts parse their options, if that is one
    entries: Callable[[Launch], Sequence[str]] = _list_no_entries  # what its own commands parse with: "pkg.mod:name"
    releases: Callable[[], Sequence[str]] = tuple  # those whose names are known, the oldest first
    # Returns how a launch is scaled down to run here, or why it cannot be; None: not implemented.
    cut: Callable[[Launch, Job, Materials], JobCut | str] | None = None
    own_programs: tuple[str, ...] = ()  # its commands and, with a dot at the end, its modules: ("trl", "trl.")


@cache
def load_all() -> tuple[Framework, ...]:
    """Return the frameworks of attncheck and its plugins, in the order in which they are tried."""
    extensions, _ = registry.load(sys.modules[__name__], "attncheck.frameworks")
    records = (getattr(extension.module, "FRAMEWORK", None) for extension in extensions)
    frameworks = (record for record in records if isinstance(record, Framework))
    return tuple(sorted(frameworks, key=lambda framework: (framework.general, not framework.is_linted)))


@cache
def load() -> tuple[Framework, ...]:
    """Return the frameworks whose launches are linted, in the order in which they are tried."""
    return tuple(framework for framework in load_all() if framework.is_linted)
