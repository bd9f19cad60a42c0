"""Reads the programs that launches start, each only once."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from attncheck.core.launch import Launch
from attncheck.core.program import Program
from attncheck.core.snapshot import Snapshot
from attncheck.lint.programs.hydra_configs import read_config_options, read_named_configuration
from attncheck.lint.programs.known_classes import make_class_finder
from attncheck.lint.programs.places import find_program, find_tree
from attncheck.lint.programs.program import Entry, ReachedProgram, find_entry, reach_program, read_program
from attncheck.lint.programs.records import Origin, find_nothing

MODULES = {"ms-swift": "swift", "megatron-core": "megatron"}  # distributions whose module has another name


@dataclass
class ProgramReader:
    """Reads programs next to launches and among the packages of one environment."""

    site_folders: tuple[Path, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()  # modules of the packages whose files here are not those of the job
    followed: dict[tuple[object, ...], ReachedProgram | None] = field(default_factory=dict)
    programs: dict[tuple[object, ...], Program | None] = field(default_factory=dict)

    def read(
        self, launch: Launch, entries: Sequence[str], distribution: str, version: str, is_known: bool = True
    ) -> Program | None:
        """Return the names that the program of a launch takes; None if its source is not found.

        `entries` are the parsers of the framework's own command ("pkg.mod:name"), which decide; `version` is the
        release in which the launch is read, and `is_known` whether it is the one that will run.
        """
        if launch.starts_written_script:
            return None
        name = launch.words[0].text if launch.words else ""
        targets = [Entry(*text.split(":")) for text in entries]
        targets += [Entry(name)] if "." in name else []
        is_other = self.versions.get(distribution, version) != version
        closed = self.closed | ({_module_of(distribution)} if is_other else set())
        config = read_config_options(launch.words)
        for target in targets:
            place = find_program(launch, target, self.site_folders, closed)
            if place is None:
                continue
            entry, tree = place
            place_of_program = (entry, tree.folders, tree.base, tree.closed)
            if place_of_program not in self.followed:
                self.followed[place_of_program] = reach_program(entry, tree)
            key = (*place_of_program, config, distribution, version, is_known)
            if key not in self.programs:
                own = self.versions.get(distribution, "")
                stated = version if is_known else "" if own[:1].isdigit() else own  # the latter is a range, or none
                find_class = make_class_finder({**self.versions, distribution: stated})
                self.programs[key] = read_program(self.followed[place_of_program], find_class, config)
            if self.programs[key] is not None:
                return self.programs[key]
        place_of_config = (find_tree(launch), config)
        if place_of_config not in self.programs:
            self.programs[place_of_config] = read_named_configuration(*place_of_config) if config[1] else None
        return self.programs[place_of_config]

    def read_script(self, launch: Launch, distribution: str, version: str) -> Origin | None:
        """Return the source of a script without a parser, which sets everything itself; None if it is not found."""
        name = launch.words[0].text if launch.words else ""
        is_other = self.versions.get(distribution, version) != version
        closed = self.closed | ({_module_of(distribution)} if is_other else set())
        place = find_program(launch, Entry(name), self.site_folders, closed) if name.endswith(".py") else None
        module = find_entry(*place) if place is not None else None
        return Origin(place[1], module, "", (), find_nothing) if place is not None and module is not None else None

    def find_package_without(self, launch: Launch) -> Path | None:
        """Return the package that proves that a launch's module (`-m pkg.mod`) does not exist; None without proof."""
        name = launch.words[0].text if launch.words and launch.words[0].known else ""
        is_module = any(word.text in ("-m", "--module") for word in launch.launcher_words)
        # another folder may have the module
        is_open = launch.directories or "$" in launch.environ.get("PYTHONPATH", "")
        if not is_module or is_open or find_program(launch, Entry(name), self.site_folders, self.closed) is not None:
            return None
        top, *parts = name.split(".")
        place = find_program(launch, Entry(top), self.site_folders, self.closed) if parts else None
        package = place[1].find_module(top) if place is not None else None
        if package is None or not package.is_package or "__path__" in ast.unparse(package.body):
            return None
        folder = package.path.parent
        # a compiled module, or a folder without __init__.py
        names = {path.name.partition(".")[0] for path in folder.joinpath(*parts[:-1]).glob(f"{parts[-1]}*")}
        return None if parts[-1] in names else folder


def make_program_reader(snapshot: Snapshot) -> ProgramReader:
    """Return a reader for the environment of a snapshot."""
    versions = {item.name: item.version or item.allowed for item in snapshot.distributions}
    named = [distribution.name for distribution in snapshot.distributions if not distribution.location]
    closed = frozenset(map(_module_of, (*named, *snapshot.gaps.not_installed)))
    return ProgramReader(tuple(dict.fromkeys(_iter_site_folders(snapshot))), versions, closed)


def _module_of(distribution: str) -> str:
    return MODULES.get(distribution, distribution.replace("-", "_"))


def _iter_site_folders(snapshot: Snapshot) -> Iterator[Path]:
    """Yield the existing folders with installed packages, editable ones first."""
    for distribution in snapshot.distributions:
        url = urlsplit(distribution.direct_url)
        if distribution.editable and url.scheme == "file":
            folder = Path(unquote(url.path))
            yield from (place for place in (folder / "src", folder) if place.is_dir())
    for text in dict.fromkeys(item.location for item in snapshot.distributions if item.location):
        folder = Path(text).expanduser()
        if folder.is_dir():
            yield folder
