"""Proves that a launch itself ends with the error of its rehearsal: nothing that the rehearsal replaced decides it.

Either the code takes a name that is not defined there, or it refuses settings that the launch writes.
"""

import ast
import builtins
import itertools
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attncheck.core.rehearsal import JobCut
from attncheck.core.results.rehearsal import CLASS, RehearsedLaunch
from attncheck.lint.fields.rehearsing import get_option, get_setting
from attncheck.lint.programs.syntax import list_nodes
from attncheck.lint.rewriting import ReadLaunch

FRAME = re.compile(r'File "([^"]+)", line (\d+)')
UNDEFINED = re.compile(r"^NameError: name '(\w+)' is not defined")
SETTINGS = re.compile(r"args|arguments|config|cfg|params?|options?", re.IGNORECASE)  # ends of the names of settings
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    **dict.fromkeys((ast.Eq, ast.Is), operator.eq),
    **dict.fromkeys((ast.NotEq, ast.IsNot), operator.ne),
}
SIMPLE = (ast.BoolOp, ast.boolop, ast.UnaryOp, ast.Not, ast.Compare, *COMPARISONS, ast.Constant, ast.expr_context)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
STARRED = "*"  # imported: any name may be


def prove(read: ReadLaunch, cut: JobCut, launch: RehearsedLaunch) -> str:
    """Return why the launch itself ends with the error of its rehearsal, "" if that is not proven."""
    end = launch.results[0]
    frames = [match for line in end.notes if (match := FRAME.search(line))]
    path = Path(frames[-1][1]) if frames else Path()
    is_own = path.is_file() and path.resolve().is_relative_to(Path.cwd().resolve())
    if launch.steps or not end.violations or not is_own or {"site-packages", "dist-packages"} & {*path.parts}:
        return ""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ""
    place = f"{os.path.relpath(path)}:{frames[-1][2]}"
    undefined = UNDEFINED.search(end.violations[0])
    if undefined is not None:
        depends = any(own.dimension == CLASS for own in launch.differences)
        is_defined = bool({undefined[1], STARRED} & {*_iter_defined(tree)}) or hasattr(builtins, undefined[1])
        return "" if is_defined or depends else f"{place} takes {undefined[1]}, which its file does not define there"
    values = _read_refused(read, cut, tree, int(frames[-1][2]))
    texts = ", ".join(f"{name} {value}" for name, value in values.items())
    return f"{place} refuses the launch's own settings: {texts}" if texts else ""


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


def _read_refused(read: ReadLaunch, cut: JobCut, tree: ast.Module, line: int) -> dict[str, object]:
    """Return the settings of the launch that alone decide a statement's refusal; {} if anything else does."""
    tests = list(_iter_tests(tree.body, line))
    nodes = [node for test, _ in tests for node in ast.walk(test)]
    settings = [node for node in nodes if isinstance(node, ast.Attribute)]
    bases = {id(node.value) for node in settings if isinstance(node.value, ast.Name) and SETTINGS.search(node.value.id)}
    known = (*SIMPLE, ast.Attribute)
    if not tests or any(not isinstance(node, known) and id(node) not in bases for node in nodes):
        return {}
    changed = {name.replace("-", "_") for name in (*cut.sets, *cut.options)}
    values: dict[str, object] = {}
    for name in dict.fromkeys(node.attr for node in settings):
        written = get_option(read.recognised.launch, name) or get_setting(read.job, name)
        value = _parse(written) if written else None
        if value is None or name in changed:
            return {}
        values[name] = value
    refuses = all(bool(_evaluate(test, values)) == expected for test, expected in tests)
    return values if refuses else {}


def _iter_tests(body: list[ast.stmt], line: int) -> Iterator[tuple[ast.expr, bool]]:
    """Yield each condition that led to the statement of a line which refuses, and whether it holds."""
    for node in body:
        if not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if isinstance(node, ast.Assert):
            yield node.test, False
        elif isinstance(node, FUNCTIONS):
            yield from _iter_tests(node.body, line)
        elif isinstance(node, ast.If):
            is_in_body = node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
            yield node.test, is_in_body
            yield from _iter_tests(node.body if is_in_body else node.orelse, line)
        elif not isinstance(node, ast.Raise):
            parts = (getattr(node, name, []) for name in ("body", "orelse", "finalbody"))
            yield from (test for part in parts for test in _iter_tests(part, line))


def _parse(text: str) -> object:
    """Return a setting's value, its text if it is no number and no truth; None for a shell's variable."""
    if "$" in text:
        return None
    named: dict[str, object] = {"true": True, "false": False}
    if text.lower() in named:
        return named[text.lower()]
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", text) else text


def _evaluate(test: ast.expr, values: dict[str, object]) -> object:
    """Return the value of a condition of settings."""
    if isinstance(test, ast.BoolOp):
        parts = [_evaluate(part, values) for part in test.values]
        return all(parts) if isinstance(test.op, ast.And) else any(parts)
    if isinstance(test, ast.UnaryOp):
        return not _evaluate(test.operand, values)
    if isinstance(test, ast.Compare):
        sides = [_evaluate(side, values) for side in (test.left, *test.comparators)]
        return all(COMPARISONS[type(op)](*pair) for op, pair in zip(test.ops, itertools.pairwise(sides)))
    return values[test.attr] if isinstance(test, ast.Attribute) else getattr(test, "value", None)
