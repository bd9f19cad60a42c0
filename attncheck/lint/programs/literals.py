"""Evaluates expressions without running them: literals, f-strings over known names, enum members."""

import ast
from collections.abc import Mapping
from typing import Any

MAX_LENGTH = 10_000  # characters of a text, or items of a list
UNKNOWN = object()  # the value cannot be determined
Constants = Mapping[str, Any]  # names in the current block, with their known values


def evaluate(expression: ast.expr | None, constants: Constants) -> Any:
    """Return the value of an expression; `UNKNOWN` if it is known only at run time."""
    if expression is None:
        return UNKNOWN
    if isinstance(expression, ast.Constant):
        return expression.value
    if isinstance(expression, ast.Name):
        return constants.get(expression.id, UNKNOWN)
    if isinstance(expression, (ast.List, ast.Tuple, ast.Set)):
        values = [evaluate(element, constants) for element in expression.elts]
        return UNKNOWN if UNKNOWN in values else values
    if isinstance(expression, ast.JoinedStr):
        return _evaluate_joined(expression, constants)
    if isinstance(expression, ast.BinOp):
        return _evaluate_binary(expression, constants)
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
        value = evaluate(expression.operand, constants)
        return -value if isinstance(value, (int, float)) else UNKNOWN
    return UNKNOWN


def _evaluate_joined(expression: ast.JoinedStr, constants: Constants) -> Any:
    parts = []
    for value in expression.values:
        if isinstance(value, ast.FormattedValue):
            if value.format_spec is not None or value.conversion not in (-1, 115):
                return UNKNOWN
            part = evaluate(value.value, constants)
        else:
            part = evaluate(value, constants)
        if part is UNKNOWN:
            return UNKNOWN
        parts.append(str(part))
    return "".join(parts)


def _evaluate_binary(expression: ast.BinOp, constants: Constants) -> Any:
    left, right = evaluate(expression.left, constants), evaluate(expression.right, constants)
    if isinstance(expression.op, ast.Add) and type(left) is type(right) and isinstance(left, (str, list)):
        return left + right if len(left) + len(right) <= MAX_LENGTH else UNKNOWN
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        if isinstance(expression.op, ast.Mult):
            return left * right
        if isinstance(expression.op, ast.Add):
            return left + right
    return UNKNOWN
