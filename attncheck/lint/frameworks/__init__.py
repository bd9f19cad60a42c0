"""Training frameworks: each reads launches in the names of any release and writes settings for one release.

They process text only and import nothing of the frameworks. Names, defaults and constraints were read in released
wheels, and each says in which. The tables of names by version are `attncheck/lint/names/*.json`. A plugin's framework
(an entry point in the group "attncheck.frameworks", whose value is the module) needs one import:

    from attncheck.lint.frameworks import Edit, Framework, Job, Launch, Plan, SettingProblem, Snapshot
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from attncheck.core import registry
from attncheck.core.program import Style
from attncheck.core.registry import defer
from attncheck.lint.fields import Edit, Job, Launch, Plan, SettingProblem, Snapshot, VersionCheck

if TYPE_CHECKING:
    from attncheck.core.rehearsal import JobCut, Materials

__all__ = ["Edit", "Framework", "Job", "Launch", "Plan", "SettingProblem", "Snapshot", "VersionCheck", "defer"]


@dataclass(frozen=True)
class Framework:
    """One training framework.

    `trainer(launch)` returns the framework's trainer that a launch starts ("sft"), or "" if it starts none of them; a
    bare configuration file is recognised by its keys. `model(launch)` returns the model that the launch names, or "".
    `read(launch, version, snapshot)` returns the job as that version reads it, on the machine and with the model of the
    snapshot (`snapshot.model` is this launch's). `write(launch, job, sets)` returns the edits that rename the settings
    unknown to `job.version` and that set the `Key`s (or the framework's own names) in `sets`. They change nothing else
    and never overlap. `plan(plan, is_at_least)` returns the lines that a user writes for a plan without a launch;
    `is_at_least(version)` says whether the release is at least that one. Settings that the framework cannot express
    become comment lines. None of these functions raises, for any launch.

    `entries(launch)` lists the functions and classes that parse the names in the framework's commands or in a bare
    configuration file. The first one that is found next to the launch, or installed, is read.

    A `general` framework is tried last, because launches of other frameworks have its names too. A framework that is
    not `is_linted` is only rehearsed: nothing is known of its settings.
    """

    name: str  # "openrlhf"
    distribution: str  # the package that decides the names by its version; "": only a source tree exists
    newest: str  # newest release whose names are known
    trainer: Callable[[Launch], str]
    model: Callable[[Launch], str]
    read: Callable[[Launch, str, Snapshot], Job]
    write: Callable[[Launch, Job, Mapping[str, str]], tuple[Edit, ...]]
    plan: Callable[[Plan, VersionCheck], list[str]]
    general: bool = False
    is_linted: bool = True
    style: Style | Literal[""] = ""  # how its scripts parse options, if all do so in the same way
    entries: Callable[[Launch], Sequence[str]] = lambda launch: ()  # parsers of its commands: "pkg.mod:name"
    releases: Callable[[], Sequence[str]] = tuple  # the releases with known names, oldest first
    requires: Callable[[str], Sequence[str]] = lambda version: ()  # what a release requires: "transformers>=4.55"
    # Returns how to scale down a launch so that it runs here, or the reason why it cannot; None: not implemented.
    cut: "Callable[[Launch, Job, Materials], JobCut | str] | None" = None
    own_programs: tuple[str, ...] = ()  # its commands, and its modules with a final dot: ("trl", "trl.")


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
