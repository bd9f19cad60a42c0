"""Infers the shapes of row fields from a script's use of them: numbers, texts, lists of texts, turns and tables.

A field may also be JSON in a text, a key of one of the script's own tables, a text that it splits at a marker, or one
of the words to which it is compared.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from attncheck.core.rehearsal import CHOICE, JSON_TEXT, KEY, MARKED
from attncheck.lint.programs.modules import SourceModule
from attncheck.lint.programs.syntax import list_nodes

ITEM = 0  # in a place, an element of a list
TEXT_METHODS = frozenset(
    ("strip", "lstrip", "rstrip", "lower", "upper", "split", "splitlines", "startswith", "endswith", "encode", "title")
)
NUMBER_CALLS = frozenset(("int", "float", "round", "abs", "range"))
LIST_CALLS = frozenset(("enumerate", "reversed", "sorted", "list", "iter", "tuple"))
MAX_DEPTH = 3  # of functions that get a field
SPLITS = ("train", "test", "validation", "eval", "data")  # of data sets and files, whose rows follow
Place = tuple[str | int, ...]  # ("conversations", ITEM, "value")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Shape:
    """One field's shape: the kinds that its uses need, the keys of a table, and the shape of a list's elements."""

    kinds: set[str] = field(default_factory=set)
    keys: dict[str, "Shape"] = field(default_factory=dict)
    item: "Shape | None" = None
    is_json: bool = False

    def at(self, place: Place) -> "Shape":
        """Return the shape at a place below this one, which is added."""
        if not place:
            return self
        first, *others = place
        if isinstance(first, str):
            return self.keys.setdefault(first, Shape()).at(tuple(others))
        self.item = self.item or Shape()
        return self.item.at(tuple(others))

    def describe(self) -> Any:
        """Return the shape in plain data: "text", "number", "turns", [shape], {key: shape}; "" if it is not known.

        A field that is also used as a text stays one.
        """
        inner = self._describe()
        is_text = isinstance(inner, str)  # which a script may also try to read as JSON
        return f"{JSON_TEXT}{json.dumps(inner)}" if self.is_json and not is_text else inner

    def _describe(self) -> Any:
        if needed := sorted(kind for kind in self.kinds if kind.startswith((KEY, MARKED))):
            return needed[0]
        words = [json.loads(kind.removeprefix(CHOICE)) for kind in sorted(self.kinds) if kind.startswith(CHOICE)]
        if words and len(self.kinds - {"text"}) == len(words):
            return f"{CHOICE}{json.dumps(words)}"
        if self.kinds == {"text"} or "content" in self.kinds:
            return "text"
        if self.item is not None:
            return [self.item.describe()]
        if self.keys:
            return {name: shape.describe() for name, shape in self.keys.items()}
        return next(iter(self.kinds)) if len(self.kinds) == 1 else ""


def read_shapes(modules: tuple[SourceModule, ...]) -> dict[str, Any]:
    """Return the shape of each field that the functions of modules read, "" if it is not known."""
    rows, nodes = Shape(), [node for module in modules for node in list_nodes(module.body)]
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    tables = {
        target.id: [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in (*nodes, *(module.body for module in modules)):
        if isinstance(node, (*FUNCTIONS, ast.Module)):
            _Reader(rows, functions, tables, {}).read(node)
    return {name: shape.describe() for name, shape in rows.keys.items()}


class _Reader:
    """Follows the fields of rows through the variables of one function."""

    def __init__(
        self,
        rows: Shape,
        functions: dict[str, ast.FunctionDef],
        tables: dict[str, list[Any]],
        places: dict[str, Place],
        depth: int = 0,
    ) -> None:
        self.rows, self.functions, self.tables, self.places, self.depth = rows, functions, tables, places, depth

    def read(self, scope: Any) -> None:
        """Add the fields that a function uses, not those of the functions inside it."""
        for node in [scope.body] if isinstance(scope, ast.Lambda) else scope.body:
            self._visit(node)

    def _visit(self, node: ast.AST) -> None:
        """Follow a statement or expression in the order in which it is computed."""
        if isinstance(node, FUNCTIONS):
            return
        children = list(ast.iter_child_nodes(node))
        first: list[ast.AST] = []  # before the variables are bound
        if isinstance(node, (ast.Assign, ast.For, ast.comprehension)):
            first = [node.value if isinstance(node, ast.Assign) else node.iter]
        elif isinstance(node, COMPREHENSIONS):
            first = [*node.generators]
        for child in first:
            self._visit(child)
        self._bind(node)
        for child in children:
            if child not in first:
                self._visit(child)
        self._note(node)

    def _bind(self, node: ast.AST) -> None:
        """Note the variables that hold fields: `turns = row["turns"]`, `for turn in row["turns"]`."""
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            pair = (node.targets[0], node.value)
            both = [side.elts if isinstance(side, ast.Tuple) else [side] for side in pair]
            pairs = zip(*both) if len(both[0]) == len(both[1]) else ()
            self.places |= {target.id: self.find(value) for target, value in pairs if isinstance(target, ast.Name)}
        elif isinstance(node, (ast.For, ast.comprehension)):
            target, place = node.target, self.find(node.iter)
            if isinstance(node.iter, ast.Call) and _name_call(node.iter) == "enumerate":
                target = target.elts[-1] if isinstance(target, ast.Tuple) else target
            if isinstance(target, ast.Name):
                self.places[target.id] = (*place, ITEM) if place else ()

    def find(self, node: ast.AST) -> Place:
        """Return the place in a row that an expression reads, () if it reads none."""
        if isinstance(node, ast.Name):
            return self.places.get(node.id, ())
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
                return self._find_key(node.func.value, node.args[0])
            name, place = _name_call(node), self.find(node.args[0]) if node.args else ()
            is_json = name == "loads" or (name in self.functions and place and self.rows.at(place).is_json)
            if is_json and place:
                self.rows.at(place).is_json = True
            return place if name in LIST_CALLS or is_json else ()
        if not isinstance(node, ast.Subscript):
            return ()
        if isinstance(node.slice, ast.Slice):
            return self.find(node.value)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return self._find_key(node.value, node.slice)
        place = self.find(node.value)
        is_batch = len(place) == 1 and not isinstance(node.slice, (ast.Constant, ast.UnaryOp))  # `rows["text"][i]`
        return place if is_batch or not place else (*place, ITEM)

    def _find_key(self, value: ast.AST, key: ast.AST) -> Place:
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)) or key.value in SPLITS:
            return ()
        place = self.find(value)
        return (*place, key.value) if place or isinstance(value, (ast.Name, ast.Attribute)) else ()

    def _note(self, node: ast.AST) -> None:
        """Add the kind that a use of a field needs."""
        if isinstance(node, (ast.Subscript, ast.Call)) and (place := self.find(node)):
            self.rows.at(place)
        for kind, used in (*_iter_uses(node), *self._iter_keys(node)):
            if place := self.find(used):
                self.rows.at(place).kinds.add(kind)
        called = self.functions.get(_name_call(node)) if isinstance(node, ast.Call) else None
        if called is not None and isinstance(node, ast.Call) and self.depth < MAX_DEPTH:
            given = {own.arg: self.find(value) for own, value in zip(called.args.args, node.args)}
            if any(given.values()):
                _Reader(self.rows, self.functions, self.tables, given, self.depth + 1).read(called)

    def _iter_keys(self, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
        """Yield a field by which one of the script's own tables is read."""
        match node:
            case ast.Subscript(ast.Name(table), used) if keys := self.tables.get(table):
                yield f"{KEY}{json.dumps(keys, default=str)}", used


def _name_call(call: ast.Call) -> str:
    """Return the name of a called function or method, "" if it has none."""
    return str(getattr(call.func, "id", "") or getattr(call.func, "attr", ""))


def _iter_uses(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield each operand of an expression whose kind the expression decides."""
    if isinstance(node, ast.Call):
        name = _name_call(node)
        if isinstance(node.func, ast.Attribute) and name in TEXT_METHODS:
            yield "text", node.func.value
        elif name == "apply_chat_template":
            yield from (("turns", argument) for argument in node.args[:1])
        elif name in NUMBER_CALLS and isinstance(node.func, ast.Name):
            yield from (("number", argument) for argument in node.args)
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call) and isinstance(node.slice, ast.Constant):
        call, part = node.value, node.slice.value
        match call:
            case ast.Call(ast.Attribute(used, "split"), [ast.Constant(str(marker)), *_]) if isinstance(part, int):
                yield from ((f"{MARKED}{json.dumps(marker * part)}", used) for _ in range(min(part, 1)))
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):  # `a, b = row["text"].split(": ")`
        match node.value:
            case ast.Call(ast.Attribute(used, "split"), [ast.Constant(str(marker)), *_]):
                yield f"{MARKED}{json.dumps(marker * (len(node.targets[0].elts) - 1))}", used
    elif isinstance(node, ast.Dict):  # a turn
        keys = (getattr(key, "value", None) for key in node.keys)
        yield from (("content", value) for key, value in zip(keys, node.values) if key == "content")
    elif isinstance(node, ast.FormattedValue):
        yield "text", node.value
    elif isinstance(node, (ast.BinOp, ast.Compare)):
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.left, *node.comparators)
        values = [side.value for side in sides if isinstance(side, ast.Constant)]
        kinds = {"text" if isinstance(v, str) else "number" for v in values if isinstance(v, (str, int, float))}
        if len(kinds) == 1 and not (isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn))):
            yield from ((kind, side) for kind in kinds for side in sides)
        if isinstance(node, ast.Compare):
            parts = (part for side in sides for part in getattr(side, "elts", [side]))
            words = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            yield from ((f"{CHOICE}{json.dumps(word)}", side) for word in words for side in sides if word)
