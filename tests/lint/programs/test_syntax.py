"""A module's statements are the nodes of its tree that are statements, in the same order."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import attncheck
from attncheck.lint.programs.syntax import list_imports, list_nodes, list_statements, parse

SOURCES = sorted(Path(attncheck.__file__).parent.glob("lint/**/*.py"))[::4]
NESTED = """
try:
    import a
except ImportError:
    match x:
        case 1:
            import b
        case _:
            from c import d
else:
    while x:
        import e
    else:
        import f
finally:
    async def g(h=lambda: 1):
        with i as j, k:
            class L:
                import m
import n
"""


@pytest.mark.parametrize("text", [NESTED, *(path.read_text("utf-8") for path in SOURCES)])
def test_statements_are_nodes_in_their_order(text: str) -> None:
    tree = parse(text)
    kinds = (ast.stmt, ast.excepthandler, ast.match_case, ast.Module)
    assert list(list_statements(tree)) == [node for node in list_nodes(tree) if isinstance(node, kinds)]
    imports = [node for node in list_nodes(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert list(list_imports(tree)) == imports
