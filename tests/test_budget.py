"""The package's weight: a change that needs more statements says why in the commit that raises the number."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def count_statements(source: str) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(source)))


def test_the_package_keeps_to_its_budget() -> None:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["attncheck-budget"]
    count = sum(count_statements(path.read_text(encoding="utf-8")) for path in (ROOT / "attncheck").rglob("*.py"))
    assert count <= budget["statements"], (
        f"attncheck has {count:,} statements, and [tool.attncheck-budget] allows {budget['statements']:,}: "
        "remove some, or raise the number in pyproject.toml in a commit that says why"
    )


def test_what_is_counted() -> None:
    assert count_statements("import a\n\nif a:\n    b = 1\nelse:\n    def f():\n        return b\n") == 5
