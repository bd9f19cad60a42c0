"""The keys that Hydra composes for a program, read from its YAML files; nothing is run.

Hydra 1.3 (_internal/defaults_list.py, core/default_element.py, _internal/config_loader_impl.py): the primary file's
`defaults` name other files, as `- group: option`, `- group@package: option`, `- file`, `- override group: option` or `-
optional group: option`. A file's keys are under its package, by default the group's path. `_self_` marks when the
file's own keys override the others. Keys of structured configurations that Python registers are not read, which is a
gap."""

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from attncheck.core.io.errors import AttncheckError
from attncheck.core.io.files import read_text
from attncheck.core.launch import Setting, Word
from attncheck.core.program import Program, ProgramOption
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.files.configuration import parse_configuration
from attncheck.lint.programs.hydra_overrides import has_key
from attncheck.lint.programs.modules import SourceModule, SourceTree
from attncheck.lint.programs.paths import find_files, resolve_path
from attncheck.lint.sources import read_source

CONFIG_OPTIONS = {  # hydra-core 1.3.2 _internal/utils.py `get_args_parser`
    **dict.fromkeys(("--config-path", "-cp"), "path"),
    **dict.fromkeys(("--config-name", "-cn"), "name"),
    **dict.fromkeys(("--config-dir", "-cd"), "dir"),
}
MAX_FILES, MAX_DEPTH = 200, 12
FURTHER = "a further folder of configurations"
FOUND_BY_NAME = "it was found by its name only"
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
NAMED_FILE = re.compile(r"(?!hydra/)[\w.-]+(?:/[\w.-]+)+")  # not of a plugin of Hydra, and no sweep
REFERENCE = re.compile(r"\$\{([\w./@]+)\}")


class DefaultsItem(NamedTuple):
    """One line of a defaults list."""

    group: str  # "actor", "/reward" (relative to the configuration root); "" for a line that names a file
    option: str  # the file of the group, or the path of a file: "base", "trainer/base"
    package: str | None = None  # None for the group's own package
    optional: bool = False
    overrides: bool = False

    @property
    def written_group(self) -> str:
        """The group as written, or the folder of the file that the line names."""
        return self.group or self.option.rpartition("/")[0]

    def place_group(self, parent: str) -> str:
        """Return the group's path relative to the configuration root, for a file in the group `parent`."""
        is_absolute = (self.group or self.option).startswith("/")
        return "/".join(filter(None, ("" if is_absolute else parent, self.written_group.lstrip("/"))))

    def place_package(self, parent: str) -> str:
        """Return the package of the file's keys, for a parent file whose own keys are under `parent`."""
        own = self.written_group.lstrip("/").replace("/", ".") if self.package is None else self.package
        joined = ".".join(filter(None, (parent, "" if own == "_here_" else own)))
        return joined.rpartition("_global_")[2].lstrip(".")

    def override_key(self, parent_group: str, parent_package: str) -> str:
        """Return the group's name in a command: "actor", or "actor@trainer.actor" under another package."""
        group, package = self.place_group(parent_group), self.place_package(parent_package)
        return group if package == group.replace("/", ".") else f"{group}@{package or '_global_'}"


@dataclass
class Composition:
    """A composition under construction: the leaves and groups so far, and the unreadable parts."""

    folders: tuple[Path, ...]
    tree: SourceTree
    choices: dict[str, str] = field(default_factory=dict)  # group -> option from the command or an `override` line
    defaults: dict[str, str] = field(default_factory=dict)  # group -> option from a defaults list
    leaves: dict[str, ProgramOption] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)  # group's folder -> the files in it
    gaps: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    files: int = 0


def read_config_options(words: Sequence[Word]) -> tuple[str, ...]:
    """Return the directory and name of the configuration that a command gives; "" for those of the source.

    The command's overrides follow them, because they decide which files are composed.
    """
    given = {"path": "", "name": "", "dir": ""}
    for option, value in iter_option_values(words):
        if option in CONFIG_OPTIONS:
            given[CONFIG_OPTIONS[option]] = value.text
    overrides = [word.text for word in words[1:] if "=" in word.text and not word.text.startswith("-")]
    folders = [f"hydra.searchpath=[{given['dir']}]"] if given["dir"] else []
    return (given["path"], given["name"], *folders, *overrides)


def read_hydra_program(
    entry: SourceModule, source: tuple[SourceModule, str | None, str | None], tree: SourceTree, config: Sequence[str]
) -> Program | None:
    """Return the keys of the configuration that a program composes; None if its file is not found.

    `source` is the module of `@hydra.main` with its config_path and config_name. `config` holds the command's choices,
    as returned by `read_config_options`.
    """
    module, path, name = source
    given_path, given_name = (*config, "", "")[:2]
    name = given_name or name or ""
    if not name or (path is None and not given_path):
        return None
    folder = resolve_path(module.path.parent / (given_path or path or "."))
    if given_path and not os.path.isdir(folder):
        folder = resolve_path(tree.base / given_path)
    file = folder / (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not os.path.isfile(file):  # "/path/to/counselor_configs", and the file is elsewhere in the tree
        return None if given_path or given_name else read_named_configuration(tree.base, ("", name, *config[2:]))
    return _compose_program(module.shown_path or entry.shown_path, file, tree, config)


def read_named_configuration(base: Path, config: Sequence[str]) -> Program | None:
    """Return the keys of the only configuration of a tree that has the name in the command; None for several.

    That it is the one is a guess, which is a gap: its program decides in which folder Hydra looks.
    """
    name = f"{config[1].removesuffix('.yaml')}.yaml"
    paths = list(itertools.islice(find_files(base, name), 2)) if config[1] else []
    path = paths[0] if len(paths) == 1 else None
    if path is None:
        return None
    tree = SourceTree((base,), base)
    program = _compose_program(tree.show_path(path), path, tree, config)
    return replace(program, gaps=(FOUND_BY_NAME, *program.gaps), missing=())


def _compose_program(path: str, file: Path, tree: SourceTree, config: Sequence[str]) -> Program:
    """Return the keys that Hydra composes from a primary file, with the command's choices."""
    composition = _compose(file, tree, config[2:])
    gaps = tuple(dict.fromkeys((*composition.gaps, *tree.unread)))
    # Hydra looks in further folders if the primary file, the command or a plugin names them, and for registered classes
    is_open = not composition.missing or any(entry.name == "hydra.searchpath" for entry in _read_entries(file, []))
    missing = () if is_open or any(text.startswith(FURTHER) for text in gaps) else tuple(composition.missing)
    choices = _find_choices(composition, file, config[2:])
    return Program(path, "hydra", composition.leaves, gaps, composition.groups, choices, missing)


def _compose(file: Path, tree: SourceTree, overrides: Sequence[str]) -> Composition:
    composition = Composition((file.parent, *_search_path(file, tree)), tree)
    added = _read_choices(composition, overrides)
    key = (file, *composition.choices.items(), *added, *composition.gaps)  # other overrides change no composition
    kept: Composition = tree.composed.setdefault(key, composition)
    if kept is composition:
        _compose_file(composition, file, DefaultsItem("", file.stem), ("", ""), 0)
        for item in added:
            _compose_item(composition, item, ("", ""), 0, "the command")
    return kept


def _find_choices(composition: Composition, file: Path, overrides: Sequence[str]) -> dict[str, str]:
    """Return the choice of a group that adds each missing key: "actor.megatron.x" is there with "engine=megatron"."""
    missing = _list_missing(composition, [text.partition("=")[0] for text in overrides if text[:1] not in "+~"])
    written = {part for name in missing for part in name.split(".")[:-1]}
    choices: dict[str, str] = {}
    for group, options in composition.groups.items():
        for option in filter(written.__contains__, options):
            choice = f"{group}={option}"
            still = _list_missing(_compose(file, composition.tree, (*overrides, choice)), missing)
            choices |= {name: choice for name in missing if name not in still}
    return choices


def _list_missing(composition: Composition, names: Sequence[str]) -> list[str]:
    values = {name: option.default for name, option in composition.leaves.items()}
    return [name for name in names if name not in composition.groups and not has_key(values, name)]


def resolve_references(value: Any, values: Mapping[str, Any], depth: int = 0) -> str:
    """Return a value as text with its references to other keys resolved; those that remain are known at run time."""
    text = "null" if value is None else str(value)
    if depth > MAX_DEPTH:
        return text

    def resolve(match: re.Match[str]) -> str:
        return resolve_references(values[match[1]], values, depth + 1) if match[1] in values else match[0]

    return REFERENCE.sub(resolve, text)


def _search_path(file: Path, tree: SourceTree) -> Iterator[Path]:
    """Yield the folders of `hydra.searchpath`: "file://…" relative to the job's folder, "pkg://…" in a package."""
    for entry in _read_entries(file, []):
        if entry.name != "hydra.searchpath":
            continue
        for item in _load_list(entry.value):
            scheme, _, place = str(item).partition("://")
            if scheme == "file":
                yield resolve_path(tree.base / place)
            elif scheme == "pkg":
                module = tree.find_module(place)
                folders = [folder.joinpath(*place.split(".")) for folder in tree.folders]
                folder = module.path.parent if module else next((f for f in folders if os.path.isdir(f)), None)
                if folder is not None:
                    yield folder


def _read_choices(composition: Composition, overrides: Sequence[str]) -> list[DefaultsItem]:
    """Record the group options that a command chooses, and return its additions to the defaults list.

    `name=value` chooses a file if there is a group of that name; otherwise it sets a key (hydra-core 1.3.2
    _internal/config_loader_impl.py `_parse_overrides_and_create_caching_repo`).
    """
    added = []
    for text in overrides:
        key, _, option = text.partition("=")
        if key == "hydra.searchpath":
            composition.gaps.append(f"{FURTHER} (hydra.searchpath)")
        is_added = key.startswith("+")
        group, _, package = key.lstrip("+~").partition("@")
        if key.startswith("~") or not _is_group(composition, group):
            continue
        if is_added:
            added.append(DefaultsItem(group, option, package or None))
        else:
            composition.choices[key] = option
    return added


def _is_group(composition: Composition, group: str) -> bool:
    is_name = bool(re.fullmatch(r"\w[\w./-]*", group)) and ".." not in group
    return is_name and any(os.path.isdir(folder / group) for folder in composition.folders)


def _compose_file(
    composition: Composition, file: Path, item: DefaultsItem, parents: tuple[str, str], depth: int
) -> None:
    """Add a file's keys and those of its defaults; `parents` are the group and the package of the file that names it.

    Packages: hydra-core 1.3.2 core/default_element.py `set_package_header` (a header is absolute) and
    `_get_final_package` (a defaults list overrides a header).
    """
    composition.files += 1
    shown = composition.tree.show_path(file)
    if depth > MAX_DEPTH or composition.files > MAX_FILES:
        composition.gaps.append(f"{shown}: too many files to read")
        return
    entries = _read_entries(file, composition.gaps)
    header = _package_of(file)
    if item.package is None and header is not None:
        item = item._replace(package="_global_" if header in ("_global_", "") else f"_global_.{header}")
    base, package = item.place_group(parents[0]), item.place_package(parents[1])
    items = list(_parse_defaults(entries))
    for inner in items:
        if inner is not None and inner.group:
            kept = composition.choices if inner.overrides else composition.defaults
            kept.setdefault(inner.override_key(base, package), inner.option)
    is_laid = False
    for inner in items:
        if inner is None:
            _lay_keys(composition, entries, package, shown)
            is_laid = True
        elif not inner.overrides:
            _compose_item(composition, inner, (base, package), depth, shown)
    if not is_laid:
        _lay_keys(composition, entries, package, shown)


def _compose_item(
    composition: Composition, item: DefaultsItem, parents: tuple[str, str], depth: int, shown: str
) -> None:
    group = item.place_group(parents[0])
    key = item.override_key(*parents)
    if item.group:
        _note_group(composition, key, group)
    option = composition.choices.get(key, item.option) if item.group else item.option.rpartition("/")[2]
    option = _resolve_references(composition, option)
    if item.group and option in ("null", "~", "", "None"):
        return
    name = option if option.endswith((".yaml", ".yml")) else f"{option}.yaml"
    file = next((path for folder in composition.folders if os.path.isfile(path := folder / group / name)), None)
    if file is not None:
        _compose_file(composition, file, item, parents, depth + 1)
    elif not item.optional:
        named = "/".join(filter(None, (group, option)))
        composition.gaps.append(f"{named} of {shown} was not found")
        composition.missing += [named] if NAMED_FILE.fullmatch(named) else []


def _note_group(composition: Composition, key: str, group: str) -> None:
    """Record the options of a group, which an override in the command may choose."""
    if group not in composition.options and len(composition.options) < MAX_FILES:
        folders = [folder / group for folder in composition.folders if os.path.isdir(folder / group)]
        paths = (path for folder in folders for path in sorted(folder.glob("*.y*ml"))[:MAX_FILES])
        composition.options[group] = tuple(sorted({path.stem for path in paths}))
    composition.groups[key] = composition.options.get(group, ())


def _lay_keys(composition: Composition, entries: Sequence[Setting], package: str, shown: str) -> None:
    for entry in entries:
        if entry.name.partition(".")[0] in ("defaults", "hydra"):
            continue
        name = f"{package}.{entry.name}" if package else entry.name
        default = None if entry.value in ("null", "~", "") else entry.value
        composition.leaves[name] = ProgramOption(
            default=default, place=f"{shown}:{entry.location.line}", is_default_known=True
        )


def _parse_defaults(entries: Sequence[Setting]) -> Iterator[DefaultsItem | None]:
    """Yield the lines of a defaults list; None for `_self_`."""
    for entry in entries:
        if entry.name != "defaults":
            continue
        for item in _load_list(entry.value):
            if item == "_self_":
                yield None
            elif isinstance(item, str):
                option, at, package = item.partition("@")
                yield DefaultsItem("", option, package if at else None)
            elif isinstance(item, dict):
                for key, options in item.items():
                    words = str(key).split() or [""]
                    group, at, package = words[-1].partition("@")
                    flags = words[:-1]
                    for option in options if isinstance(options, list) else [options]:
                        chosen = "null" if option is None else str(option)
                        yield DefaultsItem(
                            group, chosen, package if at else None, "optional" in flags, "override" in flags
                        )


def _load_list(text: str) -> list[object]:
    try:
        items = json.loads(text)
    except ValueError:
        return []
    return items if isinstance(items, list) else []


def _resolve_references(composition: Composition, text: str) -> str:
    """Return an option with `${group}` replaced by the choice in that group."""
    chosen = {**composition.defaults, **composition.choices}
    return REFERENCE.sub(lambda match: chosen.get(match[1], match[0]), text)


def _read_entries(file: Path, gaps: list[str]) -> Sequence[Setting]:
    try:
        configuration = parse_configuration(read_source(str(file), pipes=False))
    except AttncheckError as error:
        gaps.append(str(error))
        return ()
    return configuration.entries


def _package_of(file: Path) -> str | None:
    match = PACKAGE.search(read_text(file)[:4096])
    return match[1] if match else None
