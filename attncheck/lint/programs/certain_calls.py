"""Finds the calls that a program certainly makes: from its first statement, and in the functions that those name.

A branch, a loop, a guarded block and a table of functions may run or not, so what they contain is left out. A function
that both branches call is certainly called, with the keywords that both give it.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from attncheck.lint.programs.modules import SourceModule
from attncheck.lint.programs.syntax import join_name, list_children, list_statements

UNCERTAIN = (ast.Lambda, ast.IfExp, ast.Dict, ast.BoolOp, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)
NONE = ast.Constant(None, lineno=0, col_offset=0)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def find_certain_calls(modules: Sequence[SourceModule]) -> Iterator[tuple[SourceModule, ast.Call]]:
    """Yield the calls that the first module certainly makes, also those in functions of the others."""
    yield from ((module, node) for module, node in find_certain_nodes(modules) if isinstance(node, ast.Call))


def find_certain_nodes(modules: Sequence[SourceModule]) -> Iterator[tuple[SourceModule, ast.AST]]:
    """Yield the statements and expressions that the first module certainly runs.

    A name means a function of its module or an imported one, `x.name` a function of an imported module or a method of
    a class that is named: `trainer.train()` calls no function `train` of another module.
    """
    functions = [
        (module, node) for module in modules for node in list_statements(module.body) if isinstance(node, FUNCTIONS)
    ]
    classes = [node for module in modules for node in list_statements(module.body) if isinstance(node, ast.ClassDef)]
    owners = {item: node.name for node in classes for item in node.body if isinstance(item, FUNCTIONS)}
    bases = {node.name: {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases} for node in classes}
    waiting: list[tuple[SourceModule, Sequence[ast.stmt]]] = [(module, module.body.body) for module in modules[:1]]
    names: set[str] = set()  # all, and of these the ones after a dot, the imported ones, and those in each module
    attributes: set[str] = set()
    imported: set[str] = set()
    direct: set[tuple[Path, str]] = set()
    while waiting:
        module, body = waiting.pop(0)
        for node in _walk(_iter_certain(body)):
            yield module, node
            if isinstance(node, ast.Attribute):
                attributes.add(node.attr)
                imported |= {node.attr} if _is_imported(module, join_name(node).partition(".")[0]) else set()
            elif isinstance(node, ast.Name):
                direct.add((module.path, node.id))
                imported |= {node.id} if _is_imported(module, node.id) else set()
        names |= {name for _, name in direct} | attributes
        names |= {base for name in names & bases.keys() for base in bases[name]}
        called = [
            (owner, node)
            for owner, node in functions
            if (node.name in attributes and owners[node] in names if node in owners else node.name in imported)
            or (node not in owners and (owner.path, node.name) in direct)
        ]
        waiting += [(owner, node.body) for owner, node in called]
        functions = [pair for pair in functions if pair not in called]


def _is_imported(module: SourceModule, name: str) -> bool:
    bound = (*module.bindings.get(name, ()), *module.bindings.get("*", ()), *module.local_imports.get(name, ()))
    return any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in bound)


def _iter_certain(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the statements and expressions that run whenever the block runs."""
    for statement in statements:
        if isinstance(statement, ast.If):
            yield statement.test
            if "__main__" in ast.unparse(statement.test):
                yield from _iter_certain(statement.body)
            elif statement.orelse:
                yield from _iter_common(statement)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            yield from (item.context_expr for item in statement.items)
            yield from _iter_certain(statement.body)
        elif isinstance(statement, ast.Try):
            yield from _iter_certain(statement.finalbody if statement.handlers else statement.body)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)):
            yield statement


def _iter_common(branches: ast.If) -> Iterator[ast.Call]:
    """Yield the calls in the first branch that the other one makes too, with the keywords that both have.

    A value that differs is left out.
    """
    nodes = _walk(_iter_certain(branches.orelse))
    others = {ast.unparse(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in _walk(_iter_certain(branches.body)):
        other = others.get(ast.unparse(node.func)) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and other is not None:
            values = {word.arg: ast.dump(word.value) for word in other.keywords}
            words = [
                word
                if ast.dump(word.value) == values[word.arg]
                else ast.copy_location(ast.keyword(word.arg, NONE), word)
                for word in node.keywords
                if word.arg in values
            ]
            yield ast.copy_location(ast.Call(node.func, [], words), node)


def _walk(nodes: Iterator[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes and those in them that are evaluated with them."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in list_children(node) if not isinstance(child, UNCERTAIN)]
