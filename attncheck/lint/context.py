"""The input of lint, and what linting a source needs besides the source itself: versions, readers and memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Literal

from attncheck.core.facts import Fact
from attncheck.core.launch import Launch, Source
from attncheck.core.model import Model
from attncheck.core.records import replace
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.memory import RuleMemory
from attncheck.doctor.target import forget_packages
from attncheck.lint.contradicted_pins import leave_contradicted_open
from attncheck.lint.programs.modules import locate_module
from attncheck.lint.programs.places import find_own_program
from attncheck.lint.programs.reader import ProgramReader, make_program_reader
from attncheck.lint.release import may_be_met
from attncheck.lint.script_links import ScriptLinks
from attncheck.lint.stated_versions import StatedVersions, find_stated_versions

NOT_STATED = "neither --target nor --python names it, and the source tree does not state it"
ReadModel = Callable[[str], Fact[Model]]


@dataclass(frozen=True)
class Request:
    """The input of a lint run, with the framework and version whose option names are used, and the model."""

    sources: tuple[Source, ...]
    framework: str = ""  # "": detected
    version: str = ""  # the framework's version; "": the installed one, or else the newest known one
    model: str = ""  # "": the launch's model
    skip_unknown: bool = False  # do not report sources that start no training
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    below_folders: tuple[Source, ...] = ()  # from folders: only counted if they start no training or cannot be read
    stated: Literal["", "missing", "all"] = ""  # which stated versions are used; "missing": only if the target has none
    named: frozenset[str] = frozenset()  # packages that the target names; their version may equal the installed one
    left_out: tuple[str, ...] = ()  # files in folders that are not read, with the reason: "data.json: larger than …"


@dataclass(frozen=True)
class LintContext:
    """Everything that linting a source needs besides the source itself."""

    snapshot: Snapshot
    request: Request
    read_model: ReadModel
    memory: RuleMemory[engine.RuleAnswer] = field(default_factory=RuleMemory)
    stated: StatedVersions = StatedVersions()

    @cached_property
    def programs(self) -> ProgramReader:
        """Return the reader of programs in the examined environment."""
        return make_program_reader(self.snapshot)

    @cached_property
    def may_be_met(self) -> Callable[[str], bool]:
        """Return whether the examined environment may meet a requirement; releases and launches repeat them."""
        return cache(partial(may_be_met, self.snapshot))

    @cached_property
    def scripts(self) -> ScriptLinks:
        """Return the linker of the launches' own scripts."""
        return ScriptLinks(self.snapshot, self.programs.site_folders)

    @cached_property
    def by_stated(self) -> "dict[tuple[tuple[str, str, str, str], ...], LintContext]":
        """Return the contexts of trees that state versions, by these versions."""
        return {}

    def at_tree(self, source: Source, launch: Launch | None = None) -> "LintContext":
        """Return the context with the versions stated by the tree of a source and of the program that it launches."""
        stated = _find_versions(source, launch) if self.request.stated else StatedVersions()
        stated = stated if self.request.stated == "all" else stated.without_named(self.snapshot)
        key = tuple(
            (name, stated.versions.get(name, ""), stated.allowed.get(name, ""), file)
            for name, file in stated.files.items()
        )
        if not key:
            return self
        if key not in self.by_stated:
            snapshot = stated.apply(_keep_named(self.snapshot, self.request))
            self.by_stated[key] = replace(self, snapshot=snapshot, memory=RuleMemory(), stated=stated)
        return self.by_stated[key]


def _find_versions(source: Source, launch: Launch | None) -> StatedVersions:
    if launch is None or not launch.words:
        return find_stated_versions(source)
    place = find_own_program(launch)
    if place is None:
        return leave_contradicted_open(find_stated_versions(source), launch)
    folder = place[1].folders[0]
    program = locate_module(folder, place[0].name) or folder / "program"  # a package may contain another one's copy
    return leave_contradicted_open(find_stated_versions(source, program), launch)


def _keep_named(snapshot: Snapshot, request: Request) -> Snapshot:
    """Return the snapshot with only the packages that a target names, for a tree that states versions."""
    forgotten = forget_packages(snapshot, NOT_STATED)
    if request.stated == "all":
        return forgotten
    named = tuple(item for item in snapshot.distributions if not item.location or item.name in request.named)
    torch = snapshot.torch if any(item.name == "torch" for item in named) else forgotten.torch
    return replace(forgotten, distributions=named, torch=torch, gaps=snapshot.gaps)
