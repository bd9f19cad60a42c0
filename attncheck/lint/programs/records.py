"""Objects of a program whose attributes are known from its source and from the launch; nothing is run."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from attncheck.lint.programs.dataclass_fields import MODEL_BASES, FindExternal
from attncheck.lint.programs.literals import UNKNOWN
from attncheck.lint.programs.modules import INSTALLED, Definition, SourceModule, SourceTree, is_signature, unparse

MAX_CLASSES = 60
PLAIN_BASES = frozenset({"object", "ABC", "Generic", "Protocol", "NamedTuple", *MODEL_BASES})
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Origin(NamedTuple):
    """The source of a program: its modules, the one that is run, and the classes of its configuration."""

    tree: SourceTree
    module: SourceModule
    member: str  # the function or class of the module that is called; "" for the module itself
    classes: tuple[Definition | None, ...]  # the dataclasses of its parser, or its model; None for one not found
    find_external: FindExternal
    has_one_parser: bool = True

    @property
    def is_installed(self) -> bool:
        """Whether it is a file of an installed package."""
        return not INSTALLED.isdisjoint(self.module.path.parts)


def find_nothing(name: str) -> None:
    """Know no class of a package that was not found."""


@dataclass(eq=False)
class Record:
    """A configuration or a trainer: the values of its attributes, and its classes in the order of lookup."""

    classes: tuple[Definition, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    is_whole: bool = True  # whether `values` and `classes` are all that it has
    is_made: bool = True  # whether its `__post_init__` was followed
    is_mapping: bool = False  # whether keys are read by `get` and `[]`, and an absent one is None

    def get(self, name: str) -> Any:
        """Return the value of an attribute or key; `UNKNOWN` if it is not known."""
        absent = None if self.is_mapping and self.is_whole else UNKNOWN
        return self.values.get(name, absent)

    def has(self, name: str) -> bool | None:
        """Return whether there is an attribute or key; None if that is not known."""
        if name in self.values or any(_binds(item, name) for item in self.classes):
            return True
        return False if self.is_whole else None

    def forget(self) -> None:
        """Forget all values, because code that was not read may have changed them."""
        for value in self.values.values():
            if isinstance(value, Record):
                value.forget()
        self.values.clear()
        self.is_whole = False

    def find_method(self, name: str, after: Definition | None = None) -> "Closure | None":
        """Return a method of the object, of its classes `after` one of them; None if none defines it."""
        start = self.classes.index(after) + 1 if after in self.classes else 0
        for owner in self.classes[start:]:
            for statement in getattr(owner.node, "body", ()):
                if isinstance(statement, Function) and statement.name == name and not is_signature(statement):
                    return Closure(owner.module, statement, owner, self)
        return None


@dataclass(frozen=True)
class Closure:
    """A function that can be followed: a method of `this`, or one in a function whose names are `names`."""

    module: SourceModule
    node: Function
    owner: Definition | None = None
    this: Record | None = None
    names: Mapping[str, Any] = field(default_factory=dict)


def _binds(definition: Definition, name: str) -> bool:
    """Return whether a class defines a name: a method, or a value."""
    for statement in getattr(definition.node, "body", ()):
        if getattr(statement, "name", "") == name:
            return True
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return True
    return False


def list_classes(tree: SourceTree, definition: Definition) -> tuple[tuple[Definition, ...], bool]:
    """Return a class with its bases in the order of lookup (C3), and whether all of them were found."""
    missing: list[str] = []
    order = _linearize(tree, definition, missing, 0)
    return tuple(order), not missing


def _linearize(tree: SourceTree, definition: Definition, missing: list[str], depth: int) -> list[Definition]:
    bases = []
    for expression in getattr(definition.node, "bases", ()):
        base = expression.value if isinstance(expression, ast.Subscript) else expression
        resolved = tree.resolve(definition.module, base)
        if isinstance(resolved, Definition) and isinstance(resolved.node, ast.ClassDef) and depth < MAX_CLASSES:
            bases.append(resolved)
        elif unparse(base).rpartition(".")[2] not in PLAIN_BASES:
            missing.append(unparse(base))
    parts = [_linearize(tree, base, missing, depth + 1) for base in bases] + [list(bases)]
    return [definition, *_merge(parts)]


def _merge(parts: list[list[Definition]]) -> Iterator[Definition]:
    """Yield the merged order of some orders of lookup: each class before its bases."""
    parts = [part for part in parts if part]
    while parts:
        heads = [part[0] for part in parts]
        head = next((item for item in heads if not any(item in part[1:] for part in parts)), heads[0])
        yield head
        parts = [[item for item in part if item != head] for part in parts]
        parts = [part for part in parts if part]
