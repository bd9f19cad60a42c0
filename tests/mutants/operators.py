"""Small wrong changes to a module's source: one at a time, each valid Python.

Mutation testers on the index rewrite a whole project and sample it by their own session files; what is wanted here is
a seeded sample of a few modules, which is this page.

Numbers that no test can tell from their double are left out, by their size alone: below 1e-9 they keep a division
defined, since 1e30 they represent infinity. Everything else is changed, thresholds with wide margins included.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "amax": "amin", "clamp_min": "clamp_max"}
NEAR_ZERO, NEAR_INFINITY = 1e-9, 1e30  # beyond these a number is zero's or infinity's stand-in


@dataclass(frozen=True)
class Mutant:
    """One change: where, what, and how it is made, at which node of the unchanged source."""

    line: int
    change: str
    original: str
    index: int
    operator: Callable[[ast.AST], bool]

    @property
    def source(self) -> str:
        """The source that has the change."""
        tree = ast.parse(self.original)
        self.operator(next(node for index, node in enumerate(ast.walk(tree)) if index == self.index))
        return ast.unparse(tree)


def make_mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module: each operator at each place that it can change."""
    tree = ast.parse(source)
    skipped = {id(child) for node in ast.walk(tree) for part in _unchanged(node) for child in ast.walk(part)}
    for index, node in enumerate(ast.walk(tree)):
        for operator in OPERATORS:
            if id(node) not in skipped and operator(copy.copy(node)):
                text = ast.unparse(node).splitlines()[0][:70]
                change = f"{text} [{operator.__name__[1:]}]"
                yield Mutant(getattr(node, "lineno", 0), change, source, index, operator)


def _unchanged(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that hold no behaviour: annotations, messages, imports."""
    if isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation is not None:
        yield node.annotation
    if isinstance(node, ast.FunctionDef) and node.returns is not None:
        yield node.returns
    for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    if for_types or isinstance(node, (ast.Assert, ast.ImportFrom, ast.Import, ast.JoinedStr)):
        yield node


# Each changes a node's own fields and returns True, or returns False.


def _compare(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS):
        return False
    node.ops = [COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
    return True


def _arithmetic(node: ast.AST) -> bool:
    if not (isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC):
        return False
    node.op = ARITHMETIC[type(node.op)]()
    return True


def _connective(node: ast.AST) -> bool:
    if not isinstance(node, ast.BoolOp):
        return False
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return True


def _sign(node: ast.AST) -> bool:
    if not (isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not))):
        return False
    if isinstance(node.op, ast.Not):
        node.operand = ast.UnaryOp(ast.Not(), node.operand)
    else:
        node.op = ast.UAdd()
    return True


def _constant(node: ast.AST) -> bool:
    """Flip a bool, double a number that is neither nearly 0 nor as good as infinite."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float))):
        return False
    if isinstance(node.value, bool):
        node.value = not node.value
    elif NEAR_ZERO < abs(node.value) < NEAR_INFINITY:
        node.value = node.value * 2
    else:
        return False
    return True


def _condition(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    node.test = ast.Constant(False)
    return True


def _name(node: ast.AST) -> bool:
    if isinstance(node, ast.Name) and node.id in NAMES:
        node.id = NAMES[node.id]
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        node.attr = NAMES[node.attr]
    else:
        return False
    return True


OPERATORS: tuple[Callable[[ast.AST], bool], ...] = (
    _compare,
    _arithmetic,
    _connective,
    _sign,
    _constant,
    _condition,
    _name,
)
