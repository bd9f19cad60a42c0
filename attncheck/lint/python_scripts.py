"""Finds the commands that a Python script starts with `subprocess` or `os`; literals are read with ast, never run.

A name is followed if its scope assigns it once: `cmd = ["torchrun"]`, extended by `cmd += […]` and `cmd.append(…)`.
Items added under a condition, and all other values, are known only at run time.
"""

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attncheck.core.launch import Source
from attncheck.lint.embedded import EmbeddedScript, quote_arguments
from attncheck.lint.shell.text import Segment, Segments

MODULES = {"subprocess", "os", "asyncio"}
COMMAND_CALLS = {
    *("run", "call", "check_call", "check_output", "Popen", "getoutput", "getstatusoutput"),
    *("system", "popen", "create_subprocess_shell"),
}
# slime 0.2.2 utils/external_utils/command_utils.py: starts train.py with these options after those of a model's script
SLIME_CALL = re.compile(r"execute_train\w*")
EXEC_CALLS = {"execv", "execvp", "execve", "execvpe"}  # these take the program, then its argument list
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
MAX_CHARACTERS = 1 << 18
MAX_NODES = 40_000
MAX_DEPTH = 30
MAX_ARGUMENTS = 2_000
MAX_WORK = 20_000  # expressions followed per command


class _Binding(NamedTuple):
    value: ast.expr | None  # None: from a loop, a parameter or an import
    line: int
    depth: int  # nesting depth of branches and loops around it


@dataclass
class _Scope:
    """The names of a module or a function, the calls in it, and its enclosing scope."""

    outer: "_Scope | None" = None
    bindings: dict[str, list[_Binding]] = field(default_factory=dict)
    additions: dict[str, list[_Binding]] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    inner: "list[_Scope]" = field(default_factory=list)

    def bind(self, name: str, value: ast.expr | None, line: int, depth: int) -> None:
        self.bindings.setdefault(name, []).append(_Binding(value, line, depth))

    def add(self, name: str, value: ast.expr | None, line: int, depth: int) -> None:
        self.additions.setdefault(name, []).append(_Binding(value, line, depth))


def find_scripts(source: Source) -> Iterator[EmbeddedScript]:
    """Yield the commands that a Python script starts, in order; none if it does not parse."""
    if len(source.text) > MAX_CHARACTERS:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the script's strings
            tree = ast.parse(source.text)
        for count, _ in enumerate(ast.walk(tree)):
            if count > MAX_NODES:
                return
        scope = _Scope()
        _collect_body(tree.body, scope, 0)
        scripts = list(_read_scope(scope))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    line_starts = [0, *(match.end() for match in re.finditer("\n", source.text))]
    for line, text in sorted(scripts, key=lambda script: script[0]):
        yield EmbeddedScript(text, line_starts[min(line, len(line_starts)) - 1])


def _collect_body(body: Sequence[ast.AST], scope: _Scope, depth: int) -> None:
    for node in body:
        _collect_statement(node, scope, depth)


def _collect_statement(node: ast.AST, scope: _Scope, depth: int) -> None:
    """Collect the names and calls of one statement and of the statements inside it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        inner = _Scope(scope)
        if not isinstance(node, ast.ClassDef):
            arguments = node.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                inner.bind(argument.arg, None, node.lineno, 0)
        scope.inner.append(inner)
        _collect_body(node.body, inner, 0)
        return
    _collect_names(node, scope, depth)
    blocks = [child for name in BLOCKS for child in getattr(node, name, ())]
    tested = ast.walk(node.test) if isinstance(node, ast.If) else ()
    is_main_test = any(isinstance(name, ast.Name) and name.id == "__name__" for name in tested)
    is_certain = isinstance(node, (ast.With, ast.AsyncWith, ast.Try)) or is_main_test
    _collect_body(blocks, scope, depth if is_certain else depth + 1)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) or type(child).__name__ == "withitem":
            scope.calls += [call for call in ast.walk(child) if isinstance(call, ast.Call)]


def _collect_names(node: ast.AST, scope: _Scope, depth: int) -> None:
    if isinstance(node, (ast.For, ast.AsyncFor)):
        for name in ast.walk(node.target):
            if isinstance(name, ast.Name):
                scope.bind(name.id, None, node.lineno, depth)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.bind(target.id, node.value, node.lineno, depth)
                continue
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    scope.bind(name.id, None, node.lineno, depth)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        scope.bind(node.target.id, node.value, node.lineno, depth)
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        scope.add(node.target.id, node.value if isinstance(node.op, ast.Add) else None, node.lineno, depth)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        _collect_method(node.value, scope, depth)


def _collect_method(call: ast.Call, scope: _Scope, depth: int) -> None:
    """Collect the effect of `name.append(x)`, `name.extend([…])` and other methods on a list."""
    function = call.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return
    value: ast.expr | None = None
    if function.attr == "append" and len(call.args) == 1:
        value = ast.List([call.args[0]], ast.Load())
    elif function.attr == "extend" and len(call.args) == 1:
        value = call.args[0]
    if value is not None or function.attr in ("insert", "pop", "remove", "clear"):
        scope.add(function.value.id, value, call.lineno, depth)


def _read_scope(scope: _Scope) -> Iterator[tuple[int, Segments]]:
    for call in scope.calls:
        text = _Reader(scope, call.lineno).read_call(call)
        if text:
            yield call.lineno, text
    for inner in scope.inner:
        yield from _read_scope(inner)


@dataclass
class _Reader:
    """Reads the command of one call, in its scope and at its line."""

    scope: _Scope
    line: int
    work: int = 0

    def read_call(self, call: ast.Call) -> Segments:
        """Return the command that a call starts, as shell text; () if it starts none."""
        module, _, name = _dotted_name(call.func).rpartition(".")
        arguments = call.args
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if SLIME_CALL.fullmatch(name) and "train_args" in given:
            script = self._read_text(given["train_script"], 0) if "train_script" in given else "train.py"
            text = self._read_text(given["train_args"], 0)
            return (Segment(f'python3 {script} "${{MODEL_ARGS[@]}}" {text}', -1),)
        if (module and module not in MODULES) or not arguments:
            return ()
        if name in COMMAND_CALLS and (module or name != "run"):
            return self._read_command(arguments[0])
        if module == "os" and name in EXEC_CALLS and len(arguments) > 1:
            return self._read_command(arguments[1])
        if name == "create_subprocess_exec":
            return quote_arguments((Segment(self._read_text(word, 0), -1),) for word in arguments)
        return ()

    def _read_command(self, node: ast.expr) -> Segments:
        """Return a list of arguments as the text of a command; a string is returned as is, because it needs a shell."""
        items = self._read_items(node, 0)
        if items is None:
            return (Segment(self._read_text(node, 0), -1),)
        return quote_arguments((Segment(text, -1),) for text in items[:MAX_ARGUMENTS])

    def _is_within_limits(self, depth: int) -> bool:
        self.work += 1
        return self.work <= MAX_WORK and depth <= MAX_DEPTH

    def _find_value(self, name: str) -> tuple[ast.expr | None, list[_Binding]]:
        """Return the value of a name and what is added to it before the call; None if that is unknown."""
        scope: _Scope | None = self.scope
        while scope is not None and name not in scope.bindings:
            scope = scope.outer
        bindings = scope.bindings[name] if scope is not None else []
        if scope is None or len(bindings) != 1:
            return None, []
        binding = bindings[0]
        added = scope.additions.get(name, [])
        is_seen = scope is not self.scope
        return binding.value, [
            item if item.depth <= binding.depth else _Binding(None, item.line, item.depth)
            for item in added
            if is_seen or item.line < self.line
        ]

    def _read_items(self, node: ast.expr, depth: int) -> list[str] | None:
        """Return the words of a list; None for another expression."""
        if not self._is_within_limits(depth):
            return None
        if isinstance(node, (ast.List, ast.Tuple)):
            words: list[str] = []
            for item in node.elts:
                if isinstance(item, ast.Starred):
                    words += self._read_items(item.value, depth + 1) or [_unknown(item.value)]
                else:
                    words.append(self._read_text(item, depth + 1))
            return words
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._read_items(node.left, depth + 1), self._read_items(node.right, depth + 1)
            return None if left is None and right is None else [
                *(left if left is not None else [_unknown(node.left)]),
                *(right if right is not None else [_unknown(node.right)]),
            ]  # fmt: skip
        if isinstance(node, ast.Call) and _dotted_name(node.func) in ("list", "tuple") and len(node.args) == 1:
            return self._read_items(node.args[0], depth + 1)
        if isinstance(node, ast.Name):
            value, added = self._find_value(node.id)
            words_before = self._read_items(value, depth + 1) if value is not None else None
            if words_before is None:
                return None
            for addition in added:
                more = self._read_items(addition.value, depth + 1) if addition.value is not None else None
                many = f"{_unknown(node)[:-1]}[@]}}"  # any number of words, not the value of the option before
                unknown = [] if words_before[-1:] == [many] else [many]
                words_before = words_before + (more if more is not None else unknown)
            return words_before[: MAX_ARGUMENTS + 1]
        return None

    def _read_text(self, node: ast.expr, depth: int) -> str:
        """Return a string in which each unknown part is a shell variable."""
        if not self._is_within_limits(depth):
            return _unknown(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float)):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(
                self._read_text(part.value, depth + 1) if isinstance(part, ast.FormattedValue) else _constant(part)
                for part in node.values
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._read_text(node.left, depth + 1) + self._read_text(node.right, depth + 1)
        if isinstance(node, ast.Call):
            return self._read_call_text(node, depth)
        if isinstance(node, ast.Name):
            value, added = self._find_value(node.id)
            if value is not None and not isinstance(value, (ast.List, ast.Tuple)):
                parts = [item.value for item in added]
                texts = [self._read_text(part, depth + 1) if part is not None else _unknown(node) for part in parts]
                return "".join([self._read_text(value, depth + 1), *texts])
        return "python" if _dotted_name(node) == "sys.executable" else _unknown(node)

    def _read_call_text(self, node: ast.Call, depth: int) -> str:
        """Return the text of `str(x)`, `" ".join([…])` and `shlex.join([…])`."""
        name = _dotted_name(node.func)
        if name in ("str", "shlex.quote", "quote") and len(node.args) == 1:
            return self._read_text(node.args[0], depth + 1)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "join" and len(node.args) == 1:
            items = self._read_items(node.args[0], depth + 1)
            separator = " " if name == "shlex.join" else _constant(function.value)
            if items is not None and separator.strip(" \\\n;&") == "":
                return separator.join(items)
        return _unknown(node)


def _constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _dotted_name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < 4:
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _unknown(node: ast.expr) -> str:
    """Return a word for a value that is known only at run time, named after the expression."""
    name = re.sub(r"\W+", "_", _dotted_name(node)).strip("_")
    return f"${{{name or 'value'}}}"
