"""Reads which attention functions Python code registers with transformers without a mask function, using ast.

Read in transformers 4.53.2, 5.17.0 and 5.23.0, masking_utils.py (`_preprocess_mask_arguments`): no mask is made for an
implementation that is not in ALL_MASK_ATTENTION_FUNCTIONS, and every layer gets attention_mask=None.
"""

from __future__ import annotations

from .. import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from typing import Any

_ATTENTION_TABLES = ("ALL_ATTENTION_FUNCTIONS", "AttentionInterface")
_MASK_TABLES = ("ALL_MASK_ATTENTION_FUNCTIONS", "AttentionMaskInterface")
MASKED_BY_TRANSFORMERS = (
    *("eager", "sdpa", "flex_attention"),
    *("flash_attention_2", "flash_attention_3", "flash_attention_4"),
)


def find_unmasked_attentions(*sources: str) -> dict[str, int]:
    """Return the names that the sources register as attention but not as mask, with the line of each.

    Empty if a source registers a mask under a name that is known only at run time.
    """
    attentions: dict[str, int] = {}
    masks: set[str] = set()
    if not any(table in source for source in sources for table in _ATTENTION_TABLES):
        return {}  # without parsing them
    for source in sources:
        for table, name, line in _iter_registrations(source):
            if table in _ATTENTION_TABLES and name:
                attentions.setdefault(name, line)
            elif table in _MASK_TABLES and not name:
                return {}
            elif table in _MASK_TABLES:
                masks.add(name)
    known = masks.union(MASKED_BY_TRANSFORMERS)
    return {name: line for name, line in attentions.items() if name not in known and "|" not in name}


def _iter_registrations(source: str) -> Any:
    """Yield (table, name, line) of `table.register("name", …)` and `table["name"] = …`; "" for a computed name."""
    import ast

    tree = files.parse_source(source)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register":
            yield _last_name(node.func.value), _literal(node.args[0] if node.args else None), node.lineno
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    yield _last_name(target.value), _literal(target.slice), node.lineno


def _last_name(node: ast.AST) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))


def _literal(node: Any) -> str:
    inner = getattr(node, "value", None)  # Python 3.8 wraps the index of a subscript
    value = getattr(inner, "value", inner)
    return value if isinstance(value, str) else ""
