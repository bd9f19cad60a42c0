"""Keeps the parts of a program that a launch reaches: the branches that its options decide, and what these use.

A function or class counts if code that is reached names it. Decorators may register what they decorate, so that counts
too, and so does everything of a module that looks up names at run time.
"""

import ast
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

from attncheck.lint.programs.literals import UNKNOWN, evaluate
from attncheck.lint.programs.modules import Definition, Resolved, SourceModule, SourceTree
from attncheck.lint.programs.passed_options import PassedOptions
from attncheck.lint.programs.syntax import join_name, list_kind, list_nodes

MAX_MODULES = 60
BLOCKS = ("body", "orelse", "finalbody")
DYNAMIC = frozenset({"globals", "locals", "eval", "exec", "__import__", "importlib.import_module"})
CHANGES = frozenset({"setattr", "vars", "__dict__", "set_defaults", "parse_known_args"})  # an option's value or default
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class TooMany(Exception):
    """The program uses more modules than are followed."""


@dataclass
class UsedParts:
    """The parts of a program's modules that its main module reaches with the options of a launch."""

    tree: SourceTree
    main: SourceModule
    options: PassedOptions
    given: frozenset[str] | None  # the fields that the command sets; None if it may set more
    modules: dict[Path, SourceModule] = field(default_factory=dict)  # without the branches that are not taken
    used: set[tuple[Path, str]] = field(default_factory=set)  # functions and classes of modules
    executed: set[Path] = field(default_factory=set)
    followed: set[tuple[Path, str]] = field(default_factory=set)  # names in modules

    def __post_init__(self) -> None:
        """Read what the main module itself tells about its options."""
        nodes = list_nodes(self.main.body)
        names = {getattr(node, "id", getattr(node, "attr", "")) for node in nodes}
        stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        bound = ((node.targets[0], node.value) for node in nodes if isinstance(node, ast.Assign))
        once = {name.id: value for name, value in bound if isinstance(name, ast.Name) and stored.count(name.id) == 1}
        defaults: dict[str, str] = {}
        if self.given is not None and not names & CHANGES:
            switches = {name: text for name, text in _list_switches(nodes) if name not in self.given}
            defaults = {**self.options.defaults, **switches}
        self.options = replace(self.options, aliases=once, defaults=defaults)

    @property
    def is_decided(self) -> bool:
        """Whether the options decide a branch of the main module."""
        tests = (node.test for node in list_kind(self.main.body, ast.If))
        return any(self.options.test(test) is not None for test in tests)

    def reduce(self, module: SourceModule) -> SourceModule:
        """Return a module without the functions and classes that nothing reached uses. Raises `TooMany`."""
        self._execute(self.main)
        self._execute(module)
        pruned = self._get(module)
        kept = [item for item in pruned.body.body if not isinstance(item, DEFINITIONS) or self._is_used(module, item)]
        return replace(pruned, body=ast.Module(kept, []))

    def _is_used(self, module: SourceModule, item: Defined) -> bool:
        return bool(item.decorator_list) or not {(module.path, item.name), (module.path, "")}.isdisjoint(self.used)

    def _get(self, module: SourceModule) -> SourceModule:
        if module.path not in self.modules:
            if len(self.modules) >= MAX_MODULES:
                raise TooMany
            body = self._prune(module.body.body, module.path == self.main.path)
            self.modules[module.path] = replace(module, body=ast.Module(body, []))
        return self.modules[module.path]

    def _execute(self, module: SourceModule) -> None:
        """Follow what an import of a module runs."""
        if module.path in self.executed:
            return
        self.executed.add(module.path)
        pruned = self._get(module)
        for item in pruned.body.body:
            if not isinstance(item, DEFINITIONS) or item.decorator_list:
                self._follow(pruned, item)

    def _follow(self, module: SourceModule, node: ast.AST) -> None:
        waiting = [node]
        while waiting:
            node = waiting.pop()
            name = join_name(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
            if not name or not isinstance(node, (ast.Name, ast.Attribute)):
                waiting += ast.iter_child_nodes(node)
            elif (module.path, name) not in self.followed:
                self.followed.add((module.path, name))
                if name in DYNAMIC:
                    self._use(module)
                resolved = self.tree.resolve(module, node)
                self._use(resolved)
                owner = self.tree.resolve(module, node.value) if isinstance(node, ast.Attribute) else None
                if resolved is None or not isinstance(owner, SourceModule):
                    waiting += ast.iter_child_nodes(node)

    def _use(self, resolved: Resolved) -> None:
        if isinstance(resolved, SourceModule):
            self._use_name(resolved, "", self._get(resolved).body.body)
        elif isinstance(resolved, Definition) and isinstance(resolved.node, DEFINITIONS):
            name = resolved.node.name
            own = self._get(resolved.module).bindings.get(name, [])
            self._use_name(resolved.module, name, [item for item in own if isinstance(item, DEFINITIONS)])
        elif isinstance(resolved, Definition):
            self._use_name(resolved.module, f"{resolved.node.lineno}:{resolved.node.col_offset}", [resolved.node])

    def _use_name(self, module: SourceModule, name: str, nodes: Sequence[ast.AST]) -> None:
        if (module.path, name) not in self.used:
            self.used.add((module.path, name))
            self._execute(module)
            for node in nodes:
                self._follow(self._get(module), node)

    def _prune(self, statements: Sequence[ast.stmt], is_main: bool) -> list[ast.stmt]:
        """Return statements without the branches that are not taken, and without those that are never reached."""
        kept: list[ast.stmt] = []
        for statement in statements:
            is_true = self._decide(statement.test, is_main) if isinstance(statement, ast.If) else None
            if isinstance(statement, ast.If) and is_true is not None:
                kept += self._prune(statement.body if is_true else statement.orelse, is_main)
            else:
                kept.append(self._prune_blocks(statement, is_main))
            if kept and _ends(kept[-1]):
                break
        return kept

    def _prune_blocks(self, statement: ast.stmt, is_main: bool) -> ast.stmt:
        changed = {}
        for block in (name for name in BLOCKS if getattr(statement, name, None)):
            before = getattr(statement, block)
            after = self._prune(before, is_main)
            if after != before:
                changed[block] = after or [ast.copy_location(ast.Pass(), statement)]
        if changed:
            statement = copy(statement)
            for block, after in changed.items():
                setattr(statement, block, after)
        return statement

    def _decide(self, test: ast.expr, is_main: bool) -> bool | None:
        if getattr(getattr(test, "left", None), "id", "") == "__name__":
            return is_main
        return self.options.test(test)


def _list_switches(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the literal defaults of the options that argparse knows, by field."""
    for call in nodes:
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            words = {word.arg: word.value for word in call.keywords}
            action, default = evaluate(words.get("action"), {}), evaluate(words.get("default"), {})
            flags = [flag for flag in (evaluate(item, {}) for item in call.args) if isinstance(flag, str)]
            long = [flag[2:] for flag in flags if flag.startswith("--")]
            if "default" not in words and action in (UNKNOWN, "store_true"):
                default = False if action == "store_true" else None
            if long and "dest" not in words and default is not UNKNOWN and action in (UNKNOWN, "store_true"):
                yield long[0].replace("-", "_"), "null" if default is None else str(default)


def _ends(statement: ast.stmt) -> bool:
    """Return whether nothing after a statement of its block runs."""
    is_exit = isinstance(statement, ast.Expr) and ast.unparse(statement).startswith(("sys.exit(", "exit(", "os._exit("))
    return is_exit or isinstance(statement, (ast.Return, ast.Raise))
