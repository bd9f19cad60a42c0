"""Evaluates the arithmetic expansion `$((…))` with known integers."""

import ast
import operator
import re
from collections.abc import Callable

PARAMETER_NAME = re.compile(r"[A-Za-z_]\w*")
INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
ALLOWED_EXPRESSION = re.compile(r"[\d\s+*/%()<>=!&|-]{1,200}")
MAX_MAGNITUDE = 1 << 62
OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda left, right: abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (1 if left >= 0 else -1),
}


def evaluate_arithmetic(text: str, read_parameter: Callable[[str], str]) -> int | None:
    """Return the value of an arithmetic expression; None if a name is unknown or it has operators besides + - * / % ().

    `read_parameter(name)` returns the value of a variable; "" if unknown.
    """
    if len(text) > 200:
        return None
    expression = PARAMETER_NAME.sub(lambda name: f"({_keep_integer(read_parameter(name[0]))})", text.strip())
    if not ALLOWED_EXPRESSION.fullmatch(expression) or "//" in expression or "**" in expression:
        return None
    try:
        return _evaluate_node(ast.parse(expression.replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _keep_integer(text: str) -> str:
    return text if INTEGER.fullmatch(text) else ""


def _evaluate_node(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate_node(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](_evaluate_node(node.left), _evaluate_node(node.right))
        if abs(value) < MAX_MAGNITUDE:
            return value
    raise ValueError("not integer arithmetic")
