"""Keeps the parts of a program that a launch reaches: the branches that its options decide, and what these use.

A function or class counts if code that is reached names it. Decorators may register what they decorate, so that counts
too, and so does everything of a module that looks up names at run time.
"""

import ast
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from attncheck.lint.programs.modules import Definition, Resolved, SourceModule, SourceTree
from attncheck.lint.programs.passed_options import PassedOptions
from attncheck.lint.programs.reached import Follower
from attncheck.lint.programs.syntax import join_name, list_children, list_nodes

MAX_NAMES = 4000  # of a program that uses more, everything counts
BLOCKS = ("body", "orelse", "finalbody")
DYNAMIC = frozenset({"globals", "locals", "eval", "exec", "__import__", "importlib.import_module"})
CHANGES = frozenset({"setattr", "vars", "__dict__", "set_defaults"})  # of an option's value or default
EXITS = ("sys.exit", "exit", "os._exit")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
WHOLE = ""  # instead of a name


def read_defaults(
    tree: SourceTree, main: SourceModule, options: PassedOptions, given: frozenset[str] | None
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
        if option.place.startswith(f"{main.shown_path}:")  # the code of another module may change its default
    }
    return replace(options, aliases=once, defaults={**options.defaults, **defaults})


@dataclass
class UsedParts:
    """The parts of a program's modules that its main module reaches with the options of a launch."""

    tree: SourceTree
    main: SourceModule
    options: PassedOptions
    chosen: frozenset[str] = frozenset()  # the keys of tables by which the program chooses classes
    modules: dict[Path, SourceModule] = field(default_factory=dict)  # without the branches that are not taken
    used: set[tuple[Path, str]] = field(default_factory=set)  # the names in each module that are reached
    waiting: list[tuple[SourceModule, ast.AST]] = field(default_factory=list)  # what is reached and not followed yet

    def reduce(self, module: SourceModule) -> SourceModule:
        """Return a module without the functions and classes that nothing reached uses."""
        self._follow(self.main)
        if not any(self._is_used(self.main, item) for item in self._prune(self.main).body.body):
            self._use(self.main)  # something else calls its functions
        pruned = self._follow(module)
        is_whole = (module.path, WHOLE) in self.used or len(self.used) >= MAX_NAMES
        kept = [item for item in pruned.body.body if is_whole or self._is_run(item) or self._is_used(module, item)]
        return replace(pruned, body=ast.Module(kept, []))

    def _is_run(self, item: ast.stmt) -> bool:
        return not isinstance(item, DEFINITIONS) or bool(item.decorator_list)

    def _is_used(self, module: SourceModule, item: ast.stmt) -> bool:
        return (module.path, getattr(item, "name", "")) in self.used

    def _prune(self, module: SourceModule) -> SourceModule:
        """Return a module without the branches that are not taken; what its import runs is reached."""
        if module.path not in self.modules:
            body = self._keep_taken(module.body.body, module.path == self.main.path)
            pruned = self.modules[module.path] = replace(module, body=ast.Module(body, []))
            self.waiting += [(pruned, item) for item in body if self._is_run(item)]
        return self.modules[module.path]

    def _keep_taken(self, statements: Sequence[ast.stmt], is_main: bool) -> list[ast.stmt]:
        """Return statements without the branches that are not taken, and without those that are never reached."""
        kept: list[ast.stmt] = []
        for statement in statements:
            is_true = self._decide(statement.test, is_main) if isinstance(statement, ast.If) else None
            if isinstance(statement, ast.If) and is_true is not None:
                kept += self._keep_taken(statement.body if is_true else statement.orelse, is_main)
            else:
                blocks = {name: block for name in BLOCKS if isinstance(block := getattr(statement, name, None), list)}
                taken = {name: self._keep_taken(block, is_main) for name, block in blocks.items()}
                if taken != blocks:
                    statement = copy(statement)
                    vars(statement).update(taken)
                kept.append(statement)
            if kept and _ends_block(kept[-1]):
                break
        return kept

    def _decide(self, test: ast.expr, is_main: bool) -> bool | None:
        is_start = getattr(getattr(test, "left", None), "id", "") == "__name__"
        return is_main if is_start else self.options.test(test)

    def _follow(self, module: SourceModule) -> SourceModule:
        """Return a module without the branches that are not taken, after all that is reached was followed."""
        pruned = self._prune(module)
        while self.waiting and len(self.used) < MAX_NAMES:
            owner, node = self.waiting.pop()
            names = list(_list_names(node, self.chosen))
            for name, part in names:  # which become more
                if self._follow_name(owner, name, part) and isinstance(part, ast.Attribute):
                    names += _list_names(part.value, self.chosen)
        return pruned

    def _follow_name(self, owner: SourceModule, name: str, node: ast.Name | ast.Attribute) -> bool:
        """Follow what a name of a module means, and return whether the parts of the name are to be followed too."""
        first = name.partition(".")[0]
        if (owner.path, f"={name}") in self.used:
            return False
        if first not in owner.bindings and first not in owner.local_imports and name not in DYNAMIC:
            return True
        self.used |= {(owner.path, f"={name}"), *([(owner.path, WHOLE)] if name in DYNAMIC else [])}
        self._use(self.tree.resolve(owner, node))
        place = self.tree.resolve(owner, node.value) if isinstance(node, ast.Attribute) else None
        return not isinstance(place, SourceModule)  # which is no use of the whole module

    def _use(self, resolved: Resolved) -> None:
        module = resolved.module if isinstance(resolved, Definition) else resolved
        name = getattr(resolved.node, "name", f"={id(resolved.node)}") if isinstance(resolved, Definition) else WHOLE
        if isinstance(module, SourceModule) and (module.path, name) not in self.used:
            self.used.add((module.path, name))
            pruned = self._prune(module)
            nodes = [resolved.node] if isinstance(resolved, Definition) else pruned.body.body
            self.waiting += [(pruned, node) for node in pruned.bindings.get(name, nodes)]


@lru_cache(maxsize=1 << 16)
def _list_names(node: ast.AST, chosen: frozenset[str]) -> tuple[tuple[str, ast.Name | ast.Attribute], ...]:
    """Return the outermost names in a node, each with its text, without rows of tables that are not chosen.

    The launches of a program share most of its statements, so the names of each are kept.
    """
    names: dict[str | ast.AST, tuple[str, ast.Name | ast.Attribute]] = {}
    parts = [node]
    for part in parts:  # which become more
        if isinstance(part, (ast.Name, ast.Attribute)):
            name = join_name(part)
            names.setdefault(name or part, (name, part))
        elif isinstance(part, ast.stmt) and part is not node:
            for name, inner in _list_names(part, chosen):
                names.setdefault(name or inner, (name, inner))
        else:
            parts += list_chosen(part, chosen) or list_children(part)
    return tuple(names.values())


def list_tables(body: ast.Module) -> frozenset[str]:
    """Return the keys of the tables of a module that hold classes: `{"sft": SFT}`, `table["dpo"] = DPO`."""
    rows = (row for node in list_nodes(body) for row in _list_rows(node))
    return frozenset(key for key, value in rows if join_name(value).rpartition(".")[2][:1].isupper())


def list_chosen(node: ast.AST, chosen: frozenset[str]) -> list[ast.AST]:
    """Return the parts of a table's rows that are chosen by their keys; [] for another node, or if all may be used."""
    rows = _list_rows(node) if chosen else []
    if isinstance(node, ast.Assign) and rows and rows[0][0] not in chosen and isinstance(rows[0][1], ast.Name):
        return [node.targets[0]]
    return [value for key, value in rows if key in chosen]


def _list_rows(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """Return the rows of a table with texts as keys, without case."""
    pairs: list[tuple[ast.expr | None, ast.expr]] = []
    if isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values))
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        pairs = [(node.targets[0].slice, node.value)]
    texts = [(getattr(key, "value", None), value) for key, value in pairs]
    return [(text.casefold(), value) for text, value in texts if isinstance(text, str)]


def _ends_block(statement: ast.stmt) -> bool:
    """Return whether nothing after a statement of its block runs."""
    called = getattr(statement.value, "func", None) if isinstance(statement, ast.Expr) else None
    return join_name(called) in EXITS or isinstance(statement, (ast.Return, ast.Raise))
