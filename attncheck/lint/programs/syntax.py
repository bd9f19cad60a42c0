"""Parses Python text, and lists the nodes of its syntax tree; both are kept, because many questions read the same text.

A tree is shared by all who ask for it, so nobody may change it.
"""

import ast
import re
import warnings
from collections.abc import Collection
from functools import lru_cache
from typing import TypeVar

MAX_KEPT = 512  # more than the modules of one launch
# f"{x["a"]}" (PEP 701), one pair of a string at a time
NESTED_QUOTES = re.compile(r"""(\bf"(?:[^"{\n]|\{[^"}\n]*\})*\{[^"}\n]*)"([^"'\n]*)"(?=[^"\n]*\})""")
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # of statements, in the order of their fields
Node = TypeVar("Node", bound=ast.AST)


@lru_cache(maxsize=MAX_KEPT)
def parse(content: str | bytes) -> ast.Module:
    """Return the syntax tree of a text; before Python 3.12 a quote inside an f-string's braces must be another one.

    Raises what `ast.parse` raises.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            return ast.parse(content)
        except SyntaxError:
            text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
            while (single := NESTED_QUOTES.sub(r"\1'\2'", text)) != text:
                text = single
            return ast.parse(text)


@lru_cache(maxsize=MAX_KEPT)
def list_nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return all nodes of a module but contexts, outer ones first."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # which become more
        nodes += list_children(node)
    return tuple(nodes)


def list_children(node: ast.AST, left_out: Collection[str] = ("ctx",)) -> list[ast.AST]:
    """Return the nodes in a node, less some fields: its context (Load or Store), as nobody asks for it."""
    children: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None) if name not in left_out else None
        if isinstance(value, list):
            children += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            children.append(value)
    return children


@lru_cache(maxsize=MAX_KEPT)
def _group_nodes(tree: ast.Module) -> dict[type[ast.AST], list[ast.AST]]:
    groups: dict[type[ast.AST], list[ast.AST]] = {}
    for node in list_nodes(tree):
        groups.setdefault(type(node), []).append(node)
    return groups


def list_kind(tree: ast.Module, kind: type[Node]) -> list[Node]:
    """Return the nodes of one type in a module, outer ones first."""
    return _group_nodes(tree).get(kind, [])  # type: ignore[return-value]


@lru_cache(maxsize=MAX_KEPT)
def list_statements(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return the statements of a module in the order of `list_nodes`, which takes ten times as long."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # which become more
        for block in BLOCKS:
            nodes += getattr(node, block, ())
    return tuple(nodes)


@lru_cache(maxsize=MAX_KEPT)
def list_imports(tree: ast.Module) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the imports of a module, those in its functions too, outer ones first."""
    return tuple(node for node in list_statements(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))


@lru_cache(maxsize=MAX_KEPT)
def list_called(tree: ast.Module) -> frozenset[str]:
    """Return the names of the functions and methods that a module calls: "backward" of `loss.backward()`."""
    callees = (call.func for call in list_kind(tree, ast.Call))
    return frozenset(getattr(callee, "attr", "") or getattr(callee, "id", "") for callee in callees)


def join_name(node: ast.AST | None) -> str:
    """Return a dotted name, such as "own.module.train"; "" for another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
