"""Notes the exception that ends this process, and the values that decided it.

A rehearsed launch may die only because the rehearsal replaced its model, rows or sizes. To exclude that, the conditions
that lead to the exception are followed back through the functions of its traceback. Each must end in a constant of the
code, or in a setting that the launch or its script writes or leaves at its default. Anything else is noted as unknown,
as is any expression that is not understood.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from .absent import is_script
from .modules import INSTALLED

# Packages whose checks of settings end launches.
TRAINERS = ("transformers", "trl", "peft", "accelerate", "llamafactory", "swift", "axolotl")
SETTINGS = ("Args", "Arguments", "Config", "Options", "Settings", "Params")  # the ends of their classes' names
OF_A_MODEL = ("PretrainedConfig", "PreTrainedConfig", "GenerationConfig")
# Functions whose result depends on nothing but their arguments.
PURE = (
    *("len", "isinstance", "int", "float", "str", "bool", "set", "list", "tuple", "dict", "sorted", "min", "max"),
    *("any", "all", "abs", "sum", "round", "range", "enumerate", "zip", "repr", "type"),
)
PLAIN = (str, int, float, bool, type(None))
CONTAINERS = (*PLAIN, list, tuple, dict, set)
MAX_TEXT = 600
MAX_VALUES = 200
# A call that does not fit a function of the script fails with any arguments.
UNFIT = re.compile(r"\(\) (?:got an unexpected keyword argument|missing \d+ required)")
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def install(folder: str) -> None:
    """Note the exception that ends this process in `folder`, then let Python print it."""
    original = sys.excepthook

    @functools.wraps(original)
    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with contextlib.suppress(Exception):
            record = _describe(error, trace)
            with open(os.path.join(folder, f"last-error-{os.getpid()}"), "w") as stream:
                json.dump(record, stream)
        original(kind, error, trace)

    sys.excepthook = note


def _describe(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno, trace.tb_lasti))
        trace = trace.tb_next
    while frames and str(frames[-1][0].f_globals.get("__name__")).startswith("datasets.formatting"):  # row["field"]
        frames.pop()
    text = f"{type(error).__qualname__}: {error}".removesuffix(": ")
    record: dict[str, Any] = {"text": text[:MAX_TEXT], "time": time.time(), "rank": os.environ.get("RANK", "0")}
    record |= {"place": "", "reads": [], "unknown": ["no code of the launch"]}
    own = [number for number, (frame, *_) in enumerate(frames) if _is_judged(frame)]
    if own:
        frame, line, _ = frames[own[-1]]
        record["place"] = f"{_shorten(frame.f_code.co_filename)}:{line}"
        causes = _Causes(frames)
        if own[-1] != len(frames) - 1 or error.__context__ is not None:
            causes.unknown.add("it starts in code that the launch calls")
        else:
            causes.follow(error)
        record |= {"reads": sorted(causes.reads.values(), key=str), "unknown": sorted(causes.unknown)}
        record["reads_rows"] = causes.reads_rows
    return record


def _is_judged(frame: FrameType) -> bool:
    """Return whether a frame runs the user's code, or a trainer's."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return is_script(frame.f_globals) or package in TRAINERS


def _shorten(path: str) -> str:
    for home in INSTALLED:
        path = path.rpartition(f"{os.sep}{home}{os.sep}")[2]
    return os.path.relpath(path) if os.path.isabs(path) and path.startswith(os.getcwd()) else path


class _Causes:
    """The values that decide whether the last frame of a traceback is reached, and that it raises."""

    def __init__(self, frames: list[tuple[FrameType, int, int]]) -> None:
        self.frames = frames
        self.reads: dict[str, list[Any]] = {}  # name, value, origin
        self.unknown: set[str] = set()
        self.reads_rows = False
        self._visited: set[tuple[int, str, int]] = set()

    def follow(self, error: BaseException) -> None:
        """Collect the causes of the exception."""
        last = len(self.frames) - 1
        for depth, (frame, line, _) in enumerate(self.frames):
            if is_script(frame.f_globals) or depth == last:
                self._follow_conditions(depth, line)
        frame, line, place = self.frames[last]
        statement = next((node for node in _path(frame, line) if isinstance(node, (ast.Raise, ast.Assert))), None)
        if isinstance(statement, ast.Assert) and isinstance(error, AssertionError):
            self._follow(last, statement.test, line)
        elif not isinstance(statement, ast.Raise):
            if not is_script(frame.f_globals):
                self.unknown.add("an error in installed code")
            node = _find_expression(frame, place)
            is_unfit = isinstance(error, TypeError) and UNFIT.search(str(error)) is not None
            if node is None:
                self.unknown.add("an expression that was not found")
            elif not (is_unfit and isinstance(node, ast.Call) and self._calls_script(last, node)):
                self._follow(last, node, line)

    def _calls_script(self, depth: int, call: ast.Call) -> bool:
        """Return whether a call without spread arguments is one of the script's own functions."""
        is_spread = any(isinstance(part, ast.Starred) for part in call.args) or any(
            keyword.arg is None for keyword in call.keywords
        )
        code = getattr(self._read(depth, call.func), "__code__", None)
        return not is_spread and code is not None and is_script({"__file__": code.co_filename})

    def _follow_conditions(self, depth: int, line: int) -> None:
        """Add what decides whether a line of a frame's function is reached."""
        path = _path(self.frames[depth][0], line)
        if any(isinstance(node, ast.Match) for node in path):
            self.unknown.add("a match statement")
        for node, inner in itertools.pairwise(path):
            if isinstance(node, (ast.If, ast.While)) and inner is not node.test:
                self._follow(depth, node.test, line)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                self._follow(depth, node.iter, line)
            elif isinstance(node, ast.ExceptHandler):
                self.unknown.add("an error that was caught")
            for earlier in _list_earlier(node, inner):
                kinds = ast.Return if isinstance(earlier, LOOPS) else (ast.Return, ast.Break, ast.Continue)
                leaves = any(isinstance(part, kinds) for part in _walk_own(earlier))
                if isinstance(earlier, ast.If) and leaves:
                    self._follow(depth, earlier.test, line)
                elif leaves:
                    self.unknown.add("a function that may return earlier")

    def _follow(self, depth: int, node: ast.AST, line: int) -> None:
        """Add the values that an expression reads in a frame."""
        match node:
            case ast.Constant() | ast.operator() | ast.cmpop() | ast.boolop() | ast.unaryop() | ast.expr_context():
                return
            case ast.Name() | ast.Attribute():
                self._follow_name(depth, node, line)
            case ast.Call(func=ast.Name(id=name)) if name in PURE and not self._has(depth, name):
                self._follow_parts(depth, (*node.args, *node.keywords), line)
            case ast.Call(func=ast.Attribute(value=value)) if isinstance(self._read(depth, value), CONTAINERS):
                self._follow_parts(depth, (value, *node.args, *node.keywords), line)
            case ast.keyword(value=value) | ast.FormattedValue(value=value) | ast.Starred(value=value):
                self._follow(depth, value, line)
            case (
                ast.BoolOp() | ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.IfExp() | ast.Subscript() | ast.Slice()
            ) | (ast.Tuple() | ast.List() | ast.Set() | ast.Dict() | ast.JoinedStr()):
                self._follow_parts(depth, ast.iter_child_nodes(node), line)
            case _:
                self.unknown.add(ast.unparse(node)[:80])

    def _follow_parts(self, depth: int, nodes: Any, line: int) -> None:
        for node in nodes:
            self._follow(depth, node, line)

    def _has(self, depth: int, name: str) -> bool:
        frame = self.frames[depth][0]
        return name in frame.f_locals or name in frame.f_globals

    def _read(self, depth: int, node: ast.AST) -> Any:
        """Return the value of a name or of an attribute that an object stores; an exception class if it has none."""
        frame = self.frames[depth][0]
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return frame.f_locals.get(name, frame.f_globals.get(name, getattr(builtins, name, NameError)))
            case ast.Attribute(value=value, attr=name):
                holder = self._read(depth, value)
                return getattr(holder, "__dict__", {}).get(name, AttributeError)
        return LookupError

    def _follow_name(self, depth: int, node: ast.Name | ast.Attribute, line: int) -> None:
        frame, text = self.frames[depth][0], ast.unparse(node)
        if (depth, text, line) in self._visited:
            return
        self._visited.add((depth, text, line))
        if len(self._visited) > MAX_VALUES:
            self.unknown.add("too many values")
        elif isinstance(node, ast.Attribute) and _is_settings(holder := self._read(depth, node.value)):
            self._add_setting(holder, node.attr)
        elif _is_row(self._read(depth, node)):
            self.reads_rows = True
        elif isinstance(node, ast.Attribute):
            if not self._follow_assignments(depth, text, line):
                self.unknown.add(text)
        elif node.id not in (*frame.f_code.co_varnames, *frame.f_code.co_cellvars):  # not the function's own
            is_module = frame.f_code.co_name == "<module>" and self._follow_assignments(depth, text, line)
            if not (is_module or self._is_fixed(depth, node)):
                self.unknown.add(text)
        elif not self._follow_assignments(depth, text, line) and not self._follow_argument(depth, node.id):
            self.unknown.add(text)

    def _is_fixed(self, depth: int, node: ast.Name) -> bool:
        """Return whether a name is a class, is defined nowhere, or is assigned once by its module, to a literal."""
        frame, value = self.frames[depth][0], self._read(depth, node)
        if node.id in frame.f_code.co_freevars:
            return False
        if node.id == "__name__" or isinstance(value, type):  # also `NameError`, which represents a missing name
            return True
        tree = _parse(frame.f_code.co_filename) or ast.Module([], [])
        values = [given for target, given, _ in _iter_assignments(tree, True) if target == node.id]
        is_changed = any(isinstance(part, ast.Global) and node.id in part.names for part in ast.walk(tree))
        return len(values) == 1 and not is_changed and _is_literal(values[0], value)

    def _follow_assignments(self, depth: int, text: str, line: int) -> bool:
        """Follow the values that the function assigned to a name before a line; return whether there are any."""
        path = _path(self.frames[depth][0], line)
        is_repeated = any(isinstance(node, LOOPS) for node in path)
        is_changeable = not isinstance(self._read(depth, ast.parse(text, mode="eval").body), (*PLAIN, tuple))
        entries = _iter_assignments(path[0], is_changeable) if path else ()
        found = [entry for entry in entries if entry[0] == text and (is_repeated or entry[2] < line)]
        for _, value, place in found:
            self._follow(depth, value, place)
            self._follow_conditions(depth, place)
        return bool(found)

    def _follow_argument(self, depth: int, name: str) -> bool:
        """Follow a parameter into the call that passed it; return whether that was understood."""
        frame, caller = self.frames[depth][0], self.frames[depth - 1][0] if depth else None
        code, value = frame.f_code, frame.f_locals.get(name)
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if caller is None or frame.f_back is not caller or name not in parameters:
            return False
        line = self.frames[depth - 1][1]
        names = {code.co_name, type(frame.f_locals.get("self")).__name__}
        calls = [
            part
            for node in _path(caller, line)[-3:]
            for part in ast.walk(node)
            if isinstance(part, ast.Call) and ast.unparse(part.func).rpartition(".")[2] in names
        ]
        unique = {ast.unparse(call): call for call in calls}
        if len(unique) != 1:
            return False
        [call] = unique.values()
        is_spread = any(keyword.arg is None for keyword in call.keywords) or any(
            isinstance(part, ast.Starred) for part in call.args
        )
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        first = 1 if parameters[:1] in (("self",), ("cls",)) else 0
        named |= dict(zip(parameters[first:], call.args))
        if name in named:
            self._follow(depth - 1, named[name], line)
            return True
        return not is_spread and isinstance(value, PLAIN)  # its default

    def _add_setting(self, holder: Any, name: str) -> None:
        value = vars(holder).get(name, AttributeError)
        if not isinstance(value, CONTAINERS):
            self.unknown.add(f"{type(holder).__name__}.{name}")
            return
        texts = {frame.f_code.co_filename for frame, *_ in self.frames if is_script(frame.f_globals)}
        is_written = any(_writes(path, name, value) for path in texts)
        origin = "written" if is_written else "default" if _is_default(holder, name, value) else ""
        self.reads[name] = [name, str(value)[:MAX_TEXT], origin]


def _is_settings(value: Any) -> bool:
    """Return whether an object holds settings: of a parser, or of a trainer's or script's dataclass."""
    names = [kind.__name__ for kind in type(value).__mro__]
    if any(name in OF_A_MODEL for name in names):
        return False
    is_data = dataclasses.is_dataclass(value) and not isinstance(value, type) and names[0].endswith(SETTINGS)
    return is_data or isinstance(value, argparse.Namespace)


def _is_row(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "datasets"


def _is_default(holder: Any, name: str, value: Any) -> bool:
    field = getattr(type(holder), "__dataclass_fields__", {}).get(name)
    if field is None:
        return False
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return bool(default == value)


def _writes(path: str, name: str, value: Any) -> bool:
    """Return whether a script passes the value under this name, or gives it as the default of its own option."""
    tree = _parse(path)
    for call in ast.walk(tree) if tree is not None else ():
        if isinstance(call, ast.Call):
            words = [part.value for part in call.args if isinstance(part, ast.Constant)]
            is_option = f"--{name}" in words or f"--{name.replace('_', '-')}" in words
            for keyword in call.keywords:
                given = keyword.value.value if isinstance(keyword.value, ast.Constant) else LookupError
                if keyword.arg == ("default" if is_option else name) and given == value:
                    return True
                if is_option and keyword.arg == "action" and given == "store_true" and value is False:
                    return True
    return False


def _find_expression(frame: FrameType, place: int) -> ast.expr | None:
    """Return the expression that an instruction computes; Python 3.10 does not know it."""
    tree, positions = _parse(frame.f_code.co_filename), getattr(frame.f_code, "co_positions", None)
    if tree is None or positions is None:
        return None
    wanted = list(positions())[place // 2]
    found = (node for node in ast.walk(tree) if isinstance(node, ast.expr))
    return next((n for n in found if (n.lineno, n.end_lineno, n.col_offset, n.end_col_offset) == wanted), None)


@functools.cache
def _parse(path: str) -> ast.Module | None:
    try:
        with open(path, "rb") as stream:
            return ast.parse(stream.read())
    except (OSError, ValueError, SyntaxError):
        return None


def _path(frame: FrameType, line: int) -> list[ast.AST]:
    """Return the nodes around a line, from a frame's function to the statement."""
    node: ast.AST | None = _parse(frame.f_code.co_filename)
    path: list[ast.AST] = []
    while node is not None:
        is_start = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == frame.f_code.co_name
        path = [node] if is_start else [*path, node]
        inside = (part for part in ast.iter_child_nodes(node) if isinstance(part, (ast.stmt, ast.ExceptHandler)))
        node = next((part for part in inside if part.lineno <= line <= (part.end_lineno or part.lineno)), None)
    return path


def _list_earlier(node: ast.AST, inner: ast.AST) -> list[ast.stmt]:
    """Return the statements before one in the same block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, [])
        if isinstance(block, list) and inner in block:
            return block[: block.index(inner)]
    return []


def _walk_own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those in it, without other functions."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        yield node
        for part in ast.iter_child_nodes(node):
            yield from _walk_own(part)


def _iter_assignments(function: ast.AST, with_changes: bool) -> Iterator[tuple[str, ast.AST, int]]:
    """Yield the text of each target that a function assigns to, the value, and the line.

    With `with_changes` also calls that may change the object: its methods, and functions that it is passed to.
    """
    for statement in getattr(function, "body", []):
        for node in _walk_own(statement):
            targets: list[ast.expr] = []
            value: ast.AST = node
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
                targets, value = [node.target], node.value or ast.Constant(None)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                targets, value = [node.target], node.iter
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                targets = [node.optional_vars]
            elif isinstance(node, ast.Call) and with_changes:
                if isinstance(node.func, ast.Attribute):
                    targets, value = [node.func.value], ast.Tuple([*node.args, *(k.value for k in node.keywords)])
                if not (isinstance(node.func, ast.Name) and node.func.id in PURE):
                    for part in (*node.args, *(keyword.value for keyword in node.keywords)):
                        if isinstance(part, (ast.Name, ast.Attribute)):
                            yield ast.unparse(part), node, node.lineno
            for target in targets:
                while isinstance(target, ast.Subscript):
                    target = target.value
                is_one = isinstance(target, (ast.Name, ast.Attribute))
                for name in [target] if is_one else [part for part in ast.walk(target) if isinstance(part, ast.Name)]:
                    yield ast.unparse(name), value, getattr(target, "lineno", 0)


def _is_literal(node: ast.AST, value: Any) -> bool:
    """Return whether an expression is a literal of this value."""
    with contextlib.suppress(ValueError, TypeError, SyntaxError):
        return isinstance(node, ast.expr) and bool(ast.literal_eval(node) == value)
    return False
