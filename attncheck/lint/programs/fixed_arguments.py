"""Finds the settings that a program's source fixes: literals that it passes to its trainer, configuration or model.

They are effective whatever the launch sets. A setting counts if all calls that have the argument agree.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence

from attncheck.core.launch import NOWHERE, FixedSetting, SourceLocation
from attncheck.lint.programs.literals import UNKNOWN, evaluate
from attncheck.lint.programs.modules import SourceModule, SourceTree

MODEL_ARGUMENTS = ("attn_implementation", "torch_dtype", "dtype")
LOADS = ("from_pretrained", "from_config", "_from_config")
Call = tuple[SourceModule, ast.Call]


def find_model_arguments(tree: SourceTree, main: SourceModule, names: Iterable[str]) -> Iterator[FixedSetting]:
    """Yield the arguments that have one value in all calls that load a model.

    Neither the program's own module nor one that loads a model may name the setting.
    """
    modules = list({module.path: module for module in (main, *tree.iter_imports(main))}.values())
    if tree.unread:
        return
    calls = [(module, node) for module in modules for node in ast.walk(module.body) if _loads_model(node)]
    for name in names:
        rows = [(module, word.value) for module, call in calls for word in call.keywords if word.arg in (name, None)]
        texts = {_format_literal(value) for _, value in rows}
        if len(texts) == 1 and "" not in texts and not any(_reads(module, name) for module in (main, *dict(rows))):
            yield _make_setting(name, texts.pop(), *rows[0], is_read=False)


def find_passed_arguments(calls: Sequence[Call], is_passed: Callable[[str], bool]) -> Iterator[FixedSetting]:
    """Yield the literal arguments, among those that `is_passed`, on which all calls that have them agree."""
    rows: dict[str, list[tuple[SourceModule, ast.expr]]] = {}
    for module, call in calls:
        for keyword in call.keywords:
            if keyword.arg is not None and is_passed(keyword.arg):
                rows.setdefault(keyword.arg, []).append((module, keyword.value))
    for name, values in rows.items():
        value = evaluate(values[0][1], {})
        if value is not UNKNOWN and value is not None and len({ast.dump(item) for _, item in values}) == 1:
            is_read = any(_reads(module, name) for module, _ in values)
            yield _make_setting(name, str(value), *values[0], is_read=is_read)


def _make_setting(name: str, text: str, module: SourceModule, value: ast.expr, is_read: bool) -> FixedSetting:
    location = SourceLocation(module.shown_path, value.lineno, value.col_offset + 1)
    return FixedSetting(name, text, location, NOWHERE, is_read=is_read)


def _loads_model(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in LOADS:
        return False
    owner = ast.unparse(node.func.value)
    return "model" in owner.lower() or "For" in owner


def _format_literal(argument: ast.expr) -> str:
    """Return a literal's text or the name of torch's dtype; "" if the value is known only at run time."""
    if isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name) and argument.value.id == "torch":
        return argument.attr
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ""


def _reads(module: SourceModule, name: str) -> bool:
    """Return whether a module reads an attribute or a key of this name: `args.attn_implementation`."""
    return any(name in (getattr(node, "attr", ""), getattr(node, "value", "")) for node in ast.walk(module.body))
