"""The arithmetic of `$((…))` over integers that are known."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

NAME = re.compile(r"[A-Za-z_]\w*")
NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
ALLOWED = re.compile(r"[\d\s+*/%()<>=!&|-]{1,200}")
LARGEST = 1 << 62
OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda left, right: abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (1 if left >= 0 else -1),
}


def value_of(text: str, number: Callable[[str], str]) -> int | None:
    """Return what an arithmetic expression is, None where a name is not known or it is more than + - * / % and ().

    `number(name)` returns what a variable holds, "" where that is not known.
    """
    if len(text) > 200:
        return None
    words = NAME.sub(lambda name: f"({_number(number(name[0]))})", text.strip())
    if not ALLOWED.fullmatch(words) or "//" in words or "**" in words:
        return None
    try:
        return _value(ast.parse(words.replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _number(text: str) -> str:
    return text if NUMBER.fullmatch(text) else ""


def _value(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        found = OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        if abs(found) < LARGEST:
            return found
    raise ValueError("not integer arithmetic")
