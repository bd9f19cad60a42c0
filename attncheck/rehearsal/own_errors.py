"""Proves that a launch itself ends with the error of its rehearsal: nothing that the rehearsal replaced decides it.

Either the code takes a name that is not defined there, or imports it from its own file that does not define it, or a
file is not Python, or lint finds that the code refuses settings of the launch.
"""

import ast
import builtins
import os
import re
from collections.abc import Iterator
from pathlib import Path

from attncheck.core.results.rehearsal import CLASS, RehearsedLaunch
from attncheck.lint.decided_conditions import add_decided_conditions
from attncheck.lint.programs.syntax import list_nodes
from attncheck.lint.rewriting import ReadLaunch

FRAME = re.compile(r'File "([^"]+)", line (\d+)')
UNDEFINED = re.compile(r"^NameError: name '(\w+)' is not defined")
# Not of a module that is imported in a circle, whose message has more words.
NOT_IMPORTED = re.compile(r"^ImportError: cannot import name '(\w+)' from '[\w.]+' \((.+\.py)\)")
NOT_PYTHON = re.compile(r"^(?:Syntax|Indentation|Tab)Error: ")
STARRED = "*"  # imported: any name may be


def prove(read: ReadLaunch, launch: RehearsedLaunch) -> str:
    """Return why the launch itself ends with the error of its rehearsal, "" if that is not proven."""
    end = launch.results[0]
    if launch.steps or not end.violations:
        return ""
    error = end.violations[0].partition(" (ended with")[0]
    decided = add_decided_conditions(read.job, read.recognised.launch, None)
    refused = (own for own in decided.problems if own.consequence == "refuses" and error in own.message)
    if (problem := next(refused, None)) is not None:
        return "; ".join(("the launch as written ends so", *problem.evidence[:1]))
    undefined, imported = UNDEFINED.search(error), NOT_IMPORTED.search(error)
    depends = any(own.dimension == CLASS for own in launch.differences)
    frames = [match for line in end.notes if (match := FRAME.search(line))]
    own = Path(imported[2] if imported is not None else frames[-1][1]) if frames else Path()
    is_own = own.is_file() and own.resolve().is_relative_to(Path.cwd().resolve())
    if depends or not is_own or {"site-packages", "dist-packages"} & {*own.parts}:
        return ""
    place = f"{os.path.relpath(frames[-1][1])}:{frames[-1][2]}"
    try:
        defined = {*_iter_defined(ast.parse(own.read_bytes()))}
    except SyntaxError:
        return f"{place} is not Python" * (NOT_PYTHON.search(error) is not None)
    if imported is not None:
        is_defined = not defined.isdisjoint((imported[1], STARRED, "__getattr__"))
        return "" if is_defined else f"{place} imports {imported[1]}, which {os.path.relpath(own)} does not define"
    if undefined is None or hasattr(builtins, undefined[1]) or not defined.isdisjoint((undefined[1], STARRED)):
        return ""
    return f"{place} takes {undefined[1]}, which its file does not define there"


def _iter_defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines for all its functions; a name that is defined elsewhere is another one.

    Python's NameError shows that no function around the line has it as its own.
    """
    for node in list_nodes(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Name) and node.id in ("globals", "exec", "vars", "eval"):
            yield STARRED
    nodes: list[ast.AST] = [*tree.body]
    for node in nodes:  # which become more
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        nodes += ast.iter_child_nodes(node)
