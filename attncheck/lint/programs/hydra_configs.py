"""The keys that Hydra composes for a program, read in its YAML files; nothing is run.

Hydra 1.3 (_internal/defaults_list.py, core/default_element.py, _internal/config_loader_impl.py): the primary file's
`defaults` name other files, `- group: option`, `- group@package: option`, `- file`, `- override group: option`,
`- optional group: option`; a file's keys stand under its package, by default the group's path; `_self_` says when the
file's own keys are laid over the others. Keys of structured configurations that Python registers are not read: a gap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attncheck.core.errors import AttncheckError
from attncheck.core.launch import Setting, Word
from attncheck.core.program import Program, ProgramOption
from attncheck.lint.files.configuration import parse_configuration
from attncheck.lint.programs.modules import SourceModule, SourceTree
from attncheck.lint.sources import read_source

CONFIG_OPTIONS = {  # hydra-core 1.3.2 _internal/utils.py `get_args_parser`
    **dict.fromkeys(("--config-path", "-cp"), "path"),
    **dict.fromkeys(("--config-name", "-cn"), "name"),
}
MAX_FILES, MAX_DEPTH = 200, 12
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
REFERENCE = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class DefaultsItem:
    """One line of a defaults list."""

    group: str  # "actor", "/reward@reward_model"; "" for a file beside this one
    option: str
    package: str = ""  # "" for the group's own
    optional: bool = False
    overrides: bool = False


@dataclass
class Composition:
    """A composition in the making: the leaves so far, the groups, and what could not be read."""

    folders: tuple[Path, ...]
    tree: SourceTree
    choices: dict[str, str] = field(default_factory=dict)  # group -> option of an `override` line
    leaves: dict[str, ProgramOption] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)
    files: int = 0


def read_config_options(words: Sequence[Word]) -> tuple[str, str]:
    """Return the directory and the name of the configuration that a command gives, "" for those of the source."""
    given = {"path": "", "name": ""}
    for index, word in enumerate(words):
        option, equals, value = word.text.partition("=")
        if option in CONFIG_OPTIONS:
            following = words[index + 1].text if index + 1 < len(words) else ""
            given[CONFIG_OPTIONS[option]] = value if equals else following
    return given["path"], given["name"]


def read_hydra_program(
    entry: SourceModule, source: tuple[SourceModule, str | None, str | None], tree: SourceTree, config: Sequence[str]
) -> Program | None:
    """Return the keys of the configuration that a program composes; None where its file is not found.

    `source` is the module of `@hydra.main` with its config_path and config_name, `config` the command's own ("", "").
    """
    module, path, name = source
    given_path, given_name = (*config, "", "")[:2]
    name = given_name or name or ""
    if not name:
        return None
    folder = (module.path.parent / (given_path or path or ".")).resolve()
    if given_path and not folder.is_dir():
        folder = (tree.base / given_path).resolve()
    file = folder / (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not file.is_file():
        return None
    composition = Composition((folder, *_search_path(file, tree)), tree)
    _compose_file(composition, file, "", 0)
    return Program(
        module.shown_path if module.shown_path else entry.shown_path,
        "hydra",
        composition.leaves,
        tuple(dict.fromkeys((*composition.gaps, *tree.unread))),
        composition.groups,
    )


def _search_path(file: Path, tree: SourceTree) -> Iterator[Path]:
    """Yield the folders of `hydra.searchpath`: "file://…" from the folder the job starts in, "pkg://…" of a package."""
    for entry in _read_entries(file, []):
        if entry.name != "hydra.searchpath":
            continue
        for item in _load_list(entry.value):
            scheme, _, place = str(item).partition("://")
            if scheme == "file":
                yield (tree.base / place).resolve()
            elif scheme == "pkg":
                module = tree.find_module(place)
                folders = [folder.joinpath(*place.split(".")) for folder in tree.folders]
                folder = module.path.parent if module else next((f for f in folders if f.is_dir()), None)
                if folder is not None:
                    yield folder


def _compose_file(composition: Composition, file: Path, package: str, depth: int) -> None:
    composition.files += 1
    shown = composition.tree.show_path(file)
    if depth > MAX_DEPTH or composition.files > MAX_FILES:
        composition.gaps.append(f"{shown}: more files than are read")
        return
    entries = _read_entries(file, composition.gaps)
    text_package = _package_of(file)
    if text_package is not None:
        package = "" if text_package == "_global_" else text_package
    items = list(_parse_defaults(entries))
    for item in items:
        if item is not None and item.overrides:
            composition.choices.setdefault(item.group.lstrip("/"), item.option)
    is_laid = False
    for item in items:
        if item is None:
            _lay_keys(composition, entries, package, shown)
            is_laid = True
        elif not item.overrides:
            _compose_item(composition, item, file.parent, package, depth, shown)
    if not is_laid:
        _lay_keys(composition, entries, package, shown)


def _compose_item(
    composition: Composition, item: DefaultsItem, folder: Path, package: str, depth: int, shown: str
) -> None:
    option = _resolve_references(composition, composition.choices.get(_group_key(item), item.option))
    group = item.group.lstrip("/")
    if option in ("null", "~", "", "None"):
        _note_group(composition, item, folder)
        return
    bases = list(composition.folders) if item.group.startswith("/") else [folder, *composition.folders]
    name = option if option.endswith((".yaml", ".yml")) else f"{option}.yaml"
    file = next((path for base in bases if (path := base / group / name.lstrip("/")).is_file()), None)
    if item.group:
        _note_group(composition, item, folder)
    if file is None:
        if not item.optional:
            composition.gaps.append(f"{'/'.join(filter(None, (group, option)))} of {shown} was not found")
        return
    own = item.package or group.replace("/", ".")
    inner = own.removeprefix("_global_.") if own.startswith("_global_") else ".".join(filter(None, (package, own)))
    if own == "_global_":
        inner = ""
    if own in ("_here_",):
        inner = package
    _compose_file(composition, file, inner, depth + 1)


def _note_group(composition: Composition, item: DefaultsItem, folder: Path) -> None:
    """Keep the options of a group, which an override of the command may choose."""
    group = item.group.lstrip("/")
    bases = (folder, *composition.folders)
    options = {path.stem for base in bases for path in sorted((base / group).glob("*.y*ml"))[:100]}
    composition.groups[_group_key(item)] = tuple(sorted(options))


def _group_key(item: DefaultsItem) -> str:
    group = item.group.lstrip("/")
    return f"{group}@{item.package}" if item.package else group


def _lay_keys(composition: Composition, entries: Sequence[Setting], package: str, shown: str) -> None:
    for entry in entries:
        if entry.name.partition(".")[0] in ("defaults", "hydra"):
            continue
        name = f"{package}.{entry.name}" if package else entry.name
        default = None if entry.value in ("null", "~", "") else entry.value
        composition.leaves[name] = ProgramOption(default=default, place=f"{shown}:{entry.location.line}")


def _parse_defaults(entries: Sequence[Setting]) -> Iterator[DefaultsItem | None]:
    """Yield the lines of a defaults list, None for `_self_`."""
    for entry in entries:
        if entry.name != "defaults":
            continue
        for item in _load_list(entry.value):
            if item == "_self_":
                yield None
            elif isinstance(item, str):
                option, _, package = item.partition("@")
                yield DefaultsItem("", option, package)
            elif isinstance(item, dict):
                for key, option in item.items():
                    words = str(key).split()
                    group, _, package = words[-1].partition("@")
                    flags = words[:-1]
                    yield DefaultsItem(group, str(option), package, "optional" in flags, "override" in flags)


def _load_list(text: str) -> list[object]:
    try:
        items = json.loads(text)
    except ValueError:
        return []
    return items if isinstance(items, list) else []


def _resolve_references(composition: Composition, text: str) -> str:
    """Return an option with `${group}` replaced by what is chosen in that group."""
    return REFERENCE.sub(lambda match: composition.choices.get(match[1], match[0]), text)


def _read_entries(file: Path, gaps: list[str]) -> Sequence[Setting]:
    try:
        configuration = parse_configuration(read_source(str(file), pipes=False))
    except AttncheckError as error:
        gaps.append(str(error))
        return ()
    return configuration.entries


def _package_of(file: Path) -> str | None:
    try:
        match = PACKAGE.search(read_source(str(file), pipes=False).text[:4096])
    except AttncheckError:
        return None
    return match[1] if match else None
