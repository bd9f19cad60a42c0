"""Finds pins that the program itself contradicts: it uses a library's class, or a field, that the pinned release lacks.

`def main(model_args: ModelConfig)` with `model_args.dtype` was written for TRL 0.24 or newer, whatever setup.py says.
`from trl import ScriptArguments` was written for 0.12 or newer.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from attncheck.core.launch import Launch
from attncheck.lint.fields.names import build_parser_options, find_minor_release, read_lifetimes
from attncheck.lint.fields.releases import list_releases
from attncheck.lint.programs.modules import External, SourceModule, SourceTree
from attncheck.lint.programs.places import find_own_program, open_tree
from attncheck.lint.programs.program import Entry, find_entry
from attncheck.lint.programs.syntax import list_nodes
from attncheck.lint.stated_versions import StatedVersions

LIBRARIES = ("trl", "transformers")
LIBRARY_MODULES = ("trl.", "transformers.")
MAX_MODULES = 40


def leave_contradicted_open(stated: StatedVersions, launch: Launch) -> StatedVersions:
    """Return the stated versions without pins of TRL and transformers that the launch's program contradicts."""
    pinned = tuple((name, version) for name, version in stated.versions.items() if name in LIBRARIES)
    place = find_own_program(launch) if pinned else None
    for package, reason in _list_contradictions(place[0], place[1].folders, place[1].base, pinned) if place else ():
        if package in stated.versions:
            stated = stated.leave_open(package, reason)
    return stated


@lru_cache(maxsize=512)
def _list_contradictions(
    entry: Entry, folders: tuple[Path, ...], base: Path, pins: tuple[tuple[str, str], ...]
) -> list[tuple[str, str]]:
    """Return each package with the reason why its pinned version does not run the modules of a program."""
    tree, pinned = open_tree(folders, base), dict(pins)
    main = find_entry(entry, tree)
    modules = [] if main is None else [main, *tree.list_imported(main, MAX_MODULES)]
    return [contradiction for module in modules for contradiction in _find_contradictions(module, tree, pinned)]


def _find_contradictions(
    module: SourceModule, tree: SourceTree, pinned: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield each package with the reason why its pinned version does not run a module."""
    nodes = [node for node in module.body.body if isinstance(node, ast.ImportFrom) and not node.level]
    imports = [(node, (node.module or "").partition(".")[0]) for node in nodes]
    for statement, package in imports:
        for name in (item.name for item in statement.names if package in pinned):
            if _lacks_class(package, pinned[package], name):
                yield package, f"{module.locate(statement)} imports {name}, which that release lacks"
    for function in list_nodes(module.body) if {package for _, package in imports} & pinned.keys() else ():
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for package, class_name, node in _iter_reads(function, module, tree):
                if package in pinned and _is_of_another_release(package, class_name, node.attr, pinned):
                    yield package, f"{module.locate(node)} reads {class_name}.{node.attr}, which that release lacks"


def _lacks_class(package: str, version: str, name: str) -> bool:
    """Return whether only older or newer releases have a class; the table may have gaps between these."""
    releases = list_releases(package)
    spans = (span for rows in read_lifetimes(package, name).values() for span in rows)
    ends = [releases.index(release) for first, last, _ in spans for release in (first, last)]
    return bool(ends) and not min(ends) <= releases.index(find_minor_release(package, version)) <= max(ends)


def _iter_reads(
    function: ast.FunctionDef | ast.AsyncFunctionDef, module: SourceModule, tree: SourceTree
) -> Iterator[tuple[str, str, ast.Attribute]]:
    """Yield the fields that a function reads of parameters of a library's class: the package, the class, the place."""
    classes = {}
    for parameter in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        resolved = tree.resolve(module, parameter.annotation) if parameter.annotation is not None else None
        if isinstance(resolved, External) and resolved.name.startswith(LIBRARY_MODULES):
            classes[parameter.arg] = (resolved.name.partition(".")[0], resolved.name.rpartition(".")[2])
    if not classes:
        return
    guarded = {node for part in ast.walk(function) if isinstance(part, ast.Try) for node in ast.walk(part)}
    tested = {node.value for node in ast.walk(function) if isinstance(node, ast.Constant)}  # hasattr(args, "dtype")
    for node in ast.walk(function):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load) or node in guarded:
            continue
        if isinstance(node.value, ast.Name) and node.value.id in classes and node.attr not in tested:
            yield (*classes[node.value.id], node)


def _is_of_another_release(package: str, class_name: str, name: str, pinned: Mapping[str, str]) -> bool:
    """Return whether a class has a field in some release and not in the pinned one."""
    options = build_parser_options((package, pinned[package], (class_name,)))
    is_of_base = package == "trl" and name in read_lifetimes("transformers", "TrainingArguments")
    return bool(options.current) and name in options.any_release.keys() - options.current.keys() and not is_of_base
