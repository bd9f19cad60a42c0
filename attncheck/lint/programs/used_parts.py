"""Keeps the parts of a program that a launch reaches: the branches that its options decide, and what these use.

A function or class counts if code that is reached names it. Decorators may register what they decorate, so that counts
too, and so does everything of a module that looks up names at run time.
"""

import ast
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attncheck.lint.programs.modules import Definition, Resolved, SourceModule, SourceTree
from attncheck.lint.programs.passed_options import PassedOptions
from attncheck.lint.programs.reached import Follower
from attncheck.lint.programs.syntax import list_nodes

MAX_MODULES = 60  # of a program with more, everything counts
BLOCKS = ("body", "orelse", "finalbody")
DYNAMIC = frozenset({"globals", "locals", "eval", "exec", "__import__", "importlib.import_module"})
CHANGES = frozenset({"setattr", "vars", "__dict__", "set_defaults"})  # of an option's value or default
EXITS = ("sys.exit(", "exit(", "os._exit(")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
WHOLE = ""  # instead of a name


def read_defaults(
    tree: SourceTree, main: SourceModule, options: PassedOptions, given: set[str] | None
) -> PassedOptions:
    """Return the options with argparse's defaults of those that are not given, and names that the module binds once.

    `given` is None if the command may set more options.
    """
    nodes = list_nodes(main.body)
    names = {getattr(node, "id", getattr(node, "attr", "")) for node in nodes}
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    bound = ((node.targets[0], node.value) for node in nodes if isinstance(node, ast.Assign))
    once = {name.id: value for name, value in bound if isinstance(name, ast.Name) and stored.count(name.id) == 1}
    if given is None or names & CHANGES:
        return replace(options, aliases=once, defaults={})
    defaults = {
        name.replace("-", "_"): "null" if option.default is None and option.nargs else str(option.default or False)
        for name, option in Follower(tree, main).follow_entry().options.items()
        if option.is_default_known and name.replace("-", "_") not in given
    }
    return replace(options, aliases=once, defaults={**options.defaults, **defaults})


class _Pruner(ast.NodeTransformer):
    """Leaves out branches that are not taken, and statements that are never reached."""

    def __init__(self, options: PassedOptions, is_main: bool) -> None:
        self.options, self.is_main = options, is_main

    def visit_If(self, node: ast.If) -> Any:
        is_start = getattr(getattr(node.test, "left", None), "id", "") == "__name__"
        is_true = self.is_main if is_start else self.options.test(node.test)
        taken = node.body if is_true else node.orelse
        return self.generic_visit(node) if is_true is None else [self.visit(item) for item in taken]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for block in (name for name in BLOCKS if isinstance(getattr(node, name, None), list)):
            statements = getattr(node, block)
            ends = (number for number, item in enumerate(statements, 1) if _ends_block(item))
            del statements[next(ends, len(statements)) :]
        return node


@dataclass
class UsedParts:
    """The parts of a program's modules that its main module reaches with the options of a launch."""

    tree: SourceTree
    main: SourceModule
    options: PassedOptions
    modules: dict[Path, SourceModule] = field(default_factory=dict)  # without the branches that are not taken
    used: set[tuple[Path, str]] = field(default_factory=set)  # the names in each module that are reached

    def reduce(self, module: SourceModule) -> SourceModule:
        """Return a module without the functions and classes that nothing reached uses."""
        if not any(self._is_used(self.main, item) for item in self._prune(self.main).body.body):
            self._use(self.main)  # something else calls its functions
        pruned = self._prune(module)
        is_whole = (module.path, WHOLE) in self.used or len(self.modules) >= MAX_MODULES
        kept = [item for item in pruned.body.body if is_whole or self._is_run(item) or self._is_used(module, item)]
        return replace(pruned, body=ast.Module(kept, []))

    def _is_run(self, item: ast.stmt) -> bool:
        return not isinstance(item, DEFINITIONS) or bool(item.decorator_list)

    def _is_used(self, module: SourceModule, item: ast.stmt) -> bool:
        return (module.path, getattr(item, "name", "")) in self.used

    def _prune(self, module: SourceModule) -> SourceModule:
        """Return a module without the branches that are not taken; what its import runs is followed first."""
        if module.path not in self.modules:
            body = _Pruner(self.options, module.path == self.main.path).visit(deepcopy(module.body))
            pruned = self.modules[module.path] = replace(module, body=body)
            for item in filter(self._is_run, body.body):
                self._follow(pruned, item)
        return self.modules[module.path]

    def _follow(self, module: SourceModule, node: ast.AST) -> None:
        """Follow the names in a node of a module."""
        if isinstance(node, (ast.Name, ast.Attribute)) and len(self.modules) < MAX_MODULES:
            name = ast.unparse(node)
            if (module.path, f"={name}") in self.used:
                return
            self.used |= {(module.path, f"={name}"), *([(module.path, WHOLE)] if name in DYNAMIC else [])}
            self._use(self.tree.resolve(module, node))
            if isinstance(node, ast.Attribute) and isinstance(self.tree.resolve(module, node.value), SourceModule):
                return  # it is no use of the whole module
        for child in ast.iter_child_nodes(node):
            self._follow(module, child)

    def _use(self, resolved: Resolved) -> None:
        module = resolved.module if isinstance(resolved, Definition) else resolved
        name = getattr(resolved.node, "name", f"={id(resolved.node)}") if isinstance(resolved, Definition) else WHOLE
        if not isinstance(module, SourceModule) or (module.path, name) in self.used:
            return
        self.used.add((module.path, name))
        pruned = self._prune(module)
        nodes = [resolved.node] if isinstance(resolved, Definition) else pruned.body.body
        for node in pruned.bindings.get(name, nodes):
            self._follow(pruned, node)


def _ends_block(statement: ast.stmt) -> bool:
    """Return whether nothing after a statement of its block runs."""
    is_exit = isinstance(statement, ast.Expr) and ast.unparse(statement).startswith(EXITS)
    return is_exit or isinstance(statement, (ast.Return, ast.Raise))
