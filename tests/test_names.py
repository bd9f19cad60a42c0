"""Identifiers that once stood for anything do not come back; CONTRIBUTING.md says what takes their place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "attncheck"
BANNED = """
    say says tell told ask asked hear heard look looked talk talked found mine each meant seat ground nursery keeper
    bury fixing attempting fitted parted put_back as_meant
"""


def defined_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names of functions, classes, parameters and variables that `tree` defines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@pytest.mark.parametrize("room", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_no_identifier_is_a_word_of_no_field(room: str) -> None:
    names = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for name in defined_names(ast.parse(path.read_text(encoding="utf-8")))
        if name.strip("_") in BANNED.split()
    ]
    assert not names


@pytest.mark.parametrize(
    "text",
    [
        "def _told(): ...",
        "def f(say): ...",
        "found = 1",
        "for each in x: ...",
        "def f(*, fixing): ...",
        "[mine for mine in x]",
    ],
)
def test_such_a_name_is_seen(text: str) -> None:
    assert [name for name in defined_names(ast.parse(text)) if name.strip("_") in BANNED.split()]
