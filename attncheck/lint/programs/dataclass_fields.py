"""Reads the fields of dataclasses from their source, with those of the bases first, as in `dataclasses.fields`.

HfArgumentParser's use of a field: transformers 5.23.0 hf_argparser.py `_parse_dataclass_field`. OmegaConf 2.3
`OmegaConf.structured` nests a field whose type is a dataclass.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from attncheck.core.program import ProgramOption
from attncheck.lint.programs.literals import UNKNOWN, evaluate
from attncheck.lint.programs.modules import Definition, External, SourceModule, SourceTree, unparse

MAX_DEPTH = 8  # levels of bases and of nested dataclasses
FindExternal = Callable[[str], "Mapping[str, ProgramOption] | None"]
MODEL_BASES = ("BaseModel", "BaseSettings")  # pydantic's classes
LIST_NAMES = frozenset({"List", "list", "Sequence", "Tuple", "tuple", "Set", "set"})


class FieldRow(NamedTuple):
    """One field: the values it takes, the dataclass that is its type, and whether `__init__` takes it.

    HfArgumentParser leaves out a field with `init=False` (transformers 4.51.3 hf_argparser.py:280), OmegaConf's
    structured configurations include it (omegaconf 2.3.1 _utils.py:378 `get_dataclass_data`).
    """

    option: ProgramOption
    nested: Definition | None = None
    is_taken: bool = True

    @property
    def has_default(self) -> bool:
        """Whether its default is a known value."""
        return self.option.is_default_known and self.nested is None


def read_fields(
    tree: SourceTree, definition: Definition, find_external: FindExternal, depth: int = 0
) -> tuple[dict[str, FieldRow], list[str]]:
    """Return the fields of a dataclass by name, and the parts that could not be read.

    `find_external(name)` returns the fields of a class that is in no folder of the tree; None if it is unknown.
    """
    node, module = definition.node, definition.module
    if not isinstance(node, ast.ClassDef) or depth > MAX_DEPTH:
        return {}, [f"{module.locate(node)} could not be read as a class"]
    fields: dict[str, FieldRow] = {}
    gaps: list[str] = []
    is_model = derives_from_model(tree, definition)
    for base in reversed(node.bases):
        base_fields, base_gaps = _read_base(tree, module, node, base, find_external, depth)
        fields.update(base_fields)
        gaps += base_gaps
    if is_dataclass(node) or is_model:
        for name, row in _iter_own_fields(tree, module, node):
            if row is None:
                fields.pop(name, None)
            else:
                fields[name] = row
    return fields, gaps


def _read_base(
    tree: SourceTree, module: SourceModule, node: ast.ClassDef, base: ast.expr, find_external: FindExternal, depth: int
) -> tuple[Mapping[str, FieldRow], list[str]]:
    if unparse(base).rpartition(".")[2] in MODEL_BASES:
        return {}, [f"{module.locate(base)} is a pydantic model, which drops unknown fields"]
    resolved = tree.resolve_base(module, node, base.value if isinstance(base, ast.Subscript) else base)
    if isinstance(resolved, Definition) and isinstance(resolved.node, ast.ClassDef):
        return read_fields(tree, resolved, find_external, depth + 1)
    name = resolved.name if isinstance(resolved, External) else unparse(base)
    if name.rpartition(".")[2] in ("object", "ABC", "Generic", "Protocol"):
        return {}, []
    external = find_external(name)
    if external is None:
        return {}, [f"{name}, a base of {module.locate(base)}, was not found"]
    return {field: FieldRow(option) for field, option in external.items()}, []


def derives_from_model(tree: SourceTree, definition: Definition, depth: int = 0) -> bool:
    """Return whether a class is a pydantic model; its annotated names are fields even without a decorator."""
    if not isinstance(definition.node, ast.ClassDef) or depth > MAX_DEPTH:
        return False
    for base in definition.node.bases:
        resolved = tree.resolve_base(definition.module, definition.node, base)
        is_model = unparse(base).rpartition(".")[2] in MODEL_BASES
        if is_model or (isinstance(resolved, Definition) and derives_from_model(tree, resolved, depth + 1)):
            return True
    return False


def is_dataclass(node: ast.AST) -> bool:
    """Return whether a node is a class with the decorator of a dataclass."""
    if not isinstance(node, ast.ClassDef):
        return False
    names = (unparse(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list)
    return any(name.rpartition(".")[2] in ("dataclass", "define", "s") for name in names)


def _iter_own_fields(
    tree: SourceTree, module: SourceModule, node: ast.ClassDef
) -> Iterator[tuple[str, FieldRow | None]]:
    """Yield the fields of a class; None for a name that is not a field (ClassVar)."""
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        annotation = _annotation(statement.annotation)
        name = statement.target.id
        if "ClassVar" in unparse(annotation):
            yield name, None
            continue
        default, metadata, is_taken = _read_default(statement.value)
        kind, choices, nested = _read_type(tree, module, annotation)
        nested_default = nested if nested is not None else _nested_default(tree, module, statement.value)
        if kind == "bool?" and default is not None and default is not UNKNOWN:
            kind = "bool"  # hf_argparser.py: a default makes it a switch
        choices = choices or _metadata_choices(metadata)
        value = None if default is UNKNOWN else default
        nargs: int | str = {"bool": "?", "bool?": "?", "list": "+"}.get(kind, 1)
        option = ProgramOption(kind, value, choices, nargs, module.locate(statement), default is not UNKNOWN)
        row = FieldRow(option, nested_default, is_taken)
        yield name, row
        for alias in _find_aliases(statement.value):
            yield alias, row


def _find_aliases(value: ast.expr | None) -> Iterator[str]:
    """Yield the other names of a pydantic field: `Field(validation_alias="model_type")`."""
    for keyword in value.keywords if isinstance(value, ast.Call) else ():
        alias = evaluate(keyword.value, {}) if keyword.arg in ("alias", "validation_alias") else None
        if isinstance(alias, str):
            yield alias


def _annotation(annotation: ast.expr) -> ast.expr:
    """Return an annotation, parsed if it is a string."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return ast.parse(annotation.value, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return annotation
    return annotation


def _read_default(value: ast.expr | None) -> tuple[Any, ast.expr | None, bool]:
    """Return a field's default, the expression of its metadata, and whether `__init__` takes it."""
    if not isinstance(value, ast.Call) or unparse(value.func).rpartition(".")[2] not in ("field", "Field", "HfArg"):
        return evaluate(value, {}), None, True
    keywords = {keyword.arg: keyword.value for keyword in value.keywords}
    is_taken = evaluate(keywords.get("init"), {}) is not False
    if "default_factory" in keywords:
        factory = keywords["default_factory"]
        default = evaluate(factory.body, {}) if isinstance(factory, ast.Lambda) else UNKNOWN
        return default, keywords.get("metadata"), is_taken
    return evaluate(keywords.get("default"), {}), keywords.get("metadata"), is_taken


def _metadata_choices(metadata: ast.expr | None) -> tuple[str, ...]:
    if isinstance(metadata, ast.Dict):
        for key, value in zip(metadata.keys, metadata.values):
            if isinstance(key, ast.Constant) and key.value == "choices":
                choices = evaluate(value, {})
                return tuple(map(str, choices)) if isinstance(choices, list) else ()
    return ()


def _read_type(
    tree: SourceTree, module: SourceModule, annotation: ast.expr
) -> tuple[str, tuple[str, ...], Definition | None]:
    """Return a field's kind, the choices of a Literal, and the dataclass that is its type."""
    members = list(_union_members(annotation))
    choices: tuple[str, ...] = ()
    kinds = []
    for member in members:
        name = unparse(member.value if isinstance(member, ast.Subscript) else member).rpartition(".")[2]
        if name in ("bool", "int", "float", "str"):
            kinds.append(name)
        elif name in LIST_NAMES:
            kinds.append("list")
        elif name == "Literal" and isinstance(member, ast.Subscript):
            values = evaluate(member.slice, {})
            choices = tuple(map(str, values if isinstance(values, list) else [values])) if values is not UNKNOWN else ()
            kinds.append("str")
        else:
            resolved = tree.resolve(module, member)
            if isinstance(resolved, Definition) and is_dataclass(resolved.node):
                return "", (), resolved
    is_optional = len(members) < _count_members(annotation)
    kind = kinds[0] if len(set(kinds)) == 1 else "str" if "str" in kinds else ""
    return ("bool?" if kind == "bool" and is_optional else kind), choices, None


def _nested_default(tree: SourceTree, module: SourceModule, value: ast.expr | None) -> Definition | None:
    """Return the dataclass of `field(default_factory=X)`."""
    if isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg == "default_factory":
                resolved = tree.resolve(module, keyword.value)
                if isinstance(resolved, Definition) and is_dataclass(resolved.node):
                    return resolved
    return None


def _union_members(annotation: ast.expr) -> Iterator[ast.expr]:
    """Yield the types of `Optional[X]`, `Union[X, Y]` and `X | Y`, without None."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        yield from _union_members(annotation.left)
        yield from _union_members(annotation.right)
    elif isinstance(annotation, ast.Subscript) and _short_name(annotation.value) in ("Optional", "Union", "Annotated"):
        inner = annotation.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        for part in parts[:1] if _short_name(annotation.value) == "Annotated" else parts:
            yield from _union_members(_annotation(part))
    elif not (isinstance(annotation, ast.Constant) and annotation.value is None):
        yield annotation


def _count_members(annotation: ast.expr) -> int:
    """Return how many types a union has, including None."""
    if isinstance(annotation, ast.BinOp):
        return _count_members(annotation.left) + _count_members(annotation.right)
    if isinstance(annotation, ast.Subscript) and _short_name(annotation.value) == "Optional":
        return 2
    if isinstance(annotation, ast.Subscript) and _short_name(annotation.value) == "Union":
        return len(annotation.slice.elts) if isinstance(annotation.slice, ast.Tuple) else 1
    return 1


def _short_name(expression: ast.expr) -> str:
    return unparse(expression).rpartition(".")[2]
