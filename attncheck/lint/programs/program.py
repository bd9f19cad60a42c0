"""Reads one program: finds its file, follows it, and joins the names that its parsers take."""

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from attncheck.core.program import Program, ProgramOption
from attncheck.lint.programs import hydra_configs
from attncheck.lint.programs.dataclass_fields import FieldRow, FindExternal, read_fields
from attncheck.lint.programs.modules import Definition, External, SourceModule, SourceTree
from attncheck.lint.programs.reached import Follower, Reached
from attncheck.lint.programs.records import Origin

MAX_NESTING = 8


class Entry(NamedTuple):
    """The entry of a launch: a script's path, or a dotted module, with a function or an options class in it."""

    name: str
    member: str = ""
    text: str = ""  # of a script that the launch writes, so that it is no file


class ReachedProgram(NamedTuple):
    """A program that was followed: its tree, the module that is run, and what it reaches, or its options class."""

    tree: SourceTree
    module: SourceModule
    member: str
    reached: Reached | Definition


def reach_program(entry: Entry, tree: SourceTree) -> ReachedProgram | None:
    """Return the program of an entry, which many launches may start; None if its source is not found."""
    module = find_entry(entry, tree)
    if module is None:
        return None
    follower = Follower(tree, module)
    if not entry.member:
        return ReachedProgram(tree, module, "", follower.follow_entry())
    resolved = tree.resolve_name(module, entry.member)
    if not isinstance(resolved, Definition):
        return None
    is_class = isinstance(resolved.node, ast.ClassDef)
    return ReachedProgram(tree, module, entry.member, resolved if is_class else follower.follow_function(resolved))


def read_program(
    followed: ReachedProgram | None, find_external: FindExternal, config: Sequence[str] = ()
) -> Program | None:
    """Return the names that a program takes; None if a parser in it is not found.

    `config` is the command's choice of Hydra configuration: directory and name, "" for those of the source.
    """
    if followed is None:
        return None
    tree, module, member, reached = followed.tree, followed.module, followed.member, followed.reached
    if isinstance(reached, Definition):
        program = _read_class(module, reached, tree, find_external)
        return replace(program, origin=Origin(tree, module, member, (reached,), find_external))
    joined = _join(module, reached, tree, find_external, config)
    if joined is None or reached.parsers > 1:
        return joined
    items = [tree.find_definition(item.name) if isinstance(item, External) else item for item in reached.dataclasses]
    classes = tuple(item if isinstance(item, Definition) else None for item in items)
    is_one = reached.dataclass_parsers < 2
    return replace(joined, origin=Origin(tree, module, member, classes, find_external, is_one))


def _read_class(module: SourceModule, definition: Definition, tree: SourceTree, find_external: FindExternal) -> Program:
    """Return the fields of a dataclass, or of a pydantic model, as a program's names."""
    fields, gaps = read_fields(tree, definition, find_external)
    options = {name: row.option for name, row in fields.items() if row.is_taken}
    return Program(module.shown_path, "dataclasses", options, tuple(dict.fromkeys((*gaps, *tree.unread))))


def find_entry(entry: Entry, tree: SourceTree) -> SourceModule | None:
    """Return the module that is run; None if it is not found."""
    if entry.name.endswith(".py"):
        path = Path(entry.name)
        if entry.text:
            return tree.parse_text(path, entry.text)
        return tree.read_file(path, module_name(path, tree.folders)) if os.path.isfile(path) else None
    module = tree.find_module(entry.name)
    if module is not None and module.is_package and not entry.member:
        return tree.find_module(f"{entry.name}.__main__")
    return module


def module_name(path: Path, folders: Sequence[Path]) -> str:
    """Return the dotted name under which a file would be imported; "" if no folder of the path contains it."""
    for folder in folders:
        try:
            parts = path.with_suffix("").relative_to(folder).parts
        except ValueError:
            continue
        if all(part.isidentifier() for part in parts):
            return ".".join(parts)
    return ""


def _join(
    module: SourceModule, reached: Reached, tree: SourceTree, find_external: FindExternal, config: Sequence[str]
) -> Program | None:
    gaps = list(dict.fromkeys((*reached.gaps, *tree.unread)))
    if reached.hydra:
        return hydra_configs.read_hydra_program(module, reached.hydra[0], tree, config)
    if reached.reads_command_line and reached.structured:
        options, more_gaps = _read_nested(tree, reached.structured, find_external)
        options |= {name: ProgramOption() for name in reached.own_names}
        return Program(module.shown_path, "omegaconf", options, (*gaps, *more_gaps))
    if reached.dataclass_parsers:
        options, more_gaps = _read_dataclasses(tree, reached, find_external)
        if reached.dataclass_parsers > 1:
            more_gaps.append("several parsers")
        if reached.takes_config_file:
            options["config"] = ProgramOption("str")  # trl 1.16.0 scripts/utils.py, `TrlParser`
        return Program(module.shown_path, "dataclasses", {**options, **reached.options}, (*gaps, *more_gaps))
    if reached.parsers and reached.options:
        if reached.parsers > 1:
            gaps.append("several parsers")
        return Program(module.shown_path, "argparse", reached.options, tuple(gaps))
    return None


def _read_dataclasses(
    tree: SourceTree, reached: Reached, find_external: FindExternal
) -> tuple[dict[str, ProgramOption], list[str]]:
    options: dict[str, ProgramOption] = {}
    gaps: list[str] = []
    for entry in reached.dataclasses:
        resolved = tree.find_definition(entry.name) if isinstance(entry, External) else entry
        item = resolved if isinstance(resolved, Definition) else entry
        if isinstance(item, External):
            external = find_external(item.name)
            if external is None:
                gaps.append(f"{item.name} was not found")
            options.update(external or {})
            continue
        fields, more_gaps = read_fields(tree, item, find_external)
        options.update({name: row.option for name, row in fields.items() if row.is_taken})
        gaps += more_gaps
    return options, gaps


def _read_nested(
    tree: SourceTree, definitions: Sequence[Definition], find_external: FindExternal
) -> tuple[dict[str, ProgramOption], list[str]]:
    """Return the dotted names of a structured configuration."""
    options: dict[str, ProgramOption] = {}
    gaps: list[str] = []
    for definition in definitions:
        fields, more_gaps = read_fields(tree, definition, find_external)
        gaps += more_gaps
        options.update(_flatten(tree, fields, find_external, gaps, "", 0))
    return options, gaps


def _flatten(
    tree: SourceTree,
    fields: Mapping[str, FieldRow],
    find_external: FindExternal,
    gaps: list[str],
    prefix: str,
    depth: int,
) -> dict[str, ProgramOption]:
    def rows() -> Iterator[tuple[str, ProgramOption]]:
        for name, (option, nested, _) in fields.items():
            if nested is None or depth > MAX_NESTING:
                yield prefix + name, option
                continue
            inner, more_gaps = read_fields(tree, nested, find_external)
            gaps.extend(more_gaps)
            yield from _flatten(tree, inner, find_external, gaps, f"{prefix}{name}.", depth + 1).items()

    return dict(rows())
