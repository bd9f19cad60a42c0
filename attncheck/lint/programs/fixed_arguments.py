"""Finds the settings that a program's source fixes: literals that it passes to its trainer, configuration or model.

They are effective whatever the launch sets. A setting counts if all calls that have the argument agree.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from attncheck.core.launch import NOWHERE, FixedSetting, SourceLocation
from attncheck.core.lists import group_values
from attncheck.lint.files.traced_models import loads_model, trace_models
from attncheck.lint.programs.literals import UNKNOWN, evaluate
from attncheck.lint.programs.modules import Definition, SourceModule, SourceTree
from attncheck.lint.programs.syntax import list_kind

MODEL_ARGUMENTS = ("attn_implementation", "torch_dtype", "dtype")
Call = tuple[SourceModule, ast.Call]


def list_model_names(tree: SourceTree, main: SourceModule) -> list[tuple[str, ast.expr | None]]:
    """Return the class of each call that loads a model, for the trainers' models if they are known, and what it names.

    A name that its module assigns leads to its value; None if a call names nothing.
    """

    def follow(module: SourceModule, value: ast.expr) -> ast.expr:
        resolved = tree.resolve(module, value) if isinstance(value, ast.Name) else None
        node = resolved.node if isinstance(resolved, Definition) else value
        return node if isinstance(node, ast.expr) else value

    calls, _, _ = _list_loads(tree, main)
    return [
        (ast.unparse(call.func).split(".")[-2], follow(module, call.args[0]) if call.args else None)
        for module, call in calls
    ]


def _list_loads(tree: SourceTree, main: SourceModule) -> tuple[list[Call], list[SourceModule], bool]:
    """Return the calls that load a model, the modules read, and whether the trainers' models are known.

    If they are, only the calls that load those.
    """
    modules = list({module.path: module for module in (main, *tree.iter_imports(main))}.values())
    every = ((module, call) for module in modules for call in list_kind(module.body, ast.Call))
    trained = trace_models(tuple(module.body for module in modules)).trained
    calls = [(module, call) for module, call in every if loads_model(call) and (trained is None or call in trained)]
    return calls, modules, trained is not None


def find_unpassed(tree: SourceTree, main: SourceModule, name: str) -> Iterator[FixedSetting]:
    """Yield an argument of the model, without a value, if a program certainly loads its trainer's model without it.

    It then reads no option of this name either, and passes no configuration or table that may contain it.
    """
    calls, modules, is_known = _list_loads(tree, main)
    names = {"dtype", "torch_dtype"} if name.endswith("dtype") else {name}
    passed = {word.arg for _, call in calls for word in call.keywords}
    is_read = any(_reads(module, item) for module in modules for item in names)
    is_plain = all(len(call.args) == 1 for _, call in calls) and passed.isdisjoint({None, "config", *names})
    if calls and is_known and is_plain and not is_read and not tree.unread:
        yield _make_setting(name, "", *calls[0], is_read=False)


def find_model_arguments(tree: SourceTree, main: SourceModule, names: Iterable[str]) -> Iterator[FixedSetting]:
    """Yield the arguments that have one value in all calls that load a model for a trainer.

    Neither the program's own module nor one that loads a model may name the setting.
    """
    calls, _, _ = _list_loads(tree, main)
    if tree.unread:
        return
    for name in names:
        tables = [(module, table) for module, call in calls for table in _list_tables(main, module, call, name)]
        rows = [
            (module, value)
            for module, call in calls
            for written in _list_values(module, call, name)
            for value in _follow_parameter(main, module, written)
        ]
        texts = {_format_literal(value) for _, value in rows}
        one_choice = rows[:1] if len({ast.dump(value) for _, value in rows}) == 1 else []
        if unknown := tables or [row for row in one_choice if isinstance(row[1], ast.IfExp)]:
            yield replace(_make_setting(name, ast.unparse(unknown[0][1]), *unknown[0], is_read=True), known=False)
        elif len(texts) == 1 and "" not in texts and not any(_reads(module, name) for module in (main, *dict(rows))):
            yield _make_setting(name, texts.pop(), *rows[0], is_read=False)


def _list_tables(main: SourceModule, module: SourceModule, call: ast.Call, name: str) -> list[ast.expr]:
    """Return the tables of a call's `**` if one may contain an argument, as after `options["dtype"] = …`.

    [] if the call has the argument itself, or if the program reads an option of this name, which then decides.
    """
    modules = {item.path: item for item in (main, module)}.values()
    texts = [node.value for item in modules for node in list_kind(item.body, ast.Constant)]
    made = (
        other for item in modules for other in list_kind(item.body, ast.Call) if getattr(other.func, "id", "") == "dict"
    )
    texts += [word.arg for other in made for word in other.keywords]
    is_read = any(node.attr == name for item in modules for node in list_kind(item.body, ast.Attribute))
    is_passed = any(word.arg == name for word in call.keywords)
    return [word.value for word in call.keywords if word.arg is None and name in texts and not is_read | is_passed]


def find_passed_arguments(calls: Sequence[Call], is_passed: Callable[[str], bool]) -> Iterator[FixedSetting]:
    """Yield the arguments that `is_passed`; one that is not a literal, or on which the calls differ, is unknown."""
    rows = group_values(
        (keyword.arg, (module, keyword.value))
        for module, call in calls
        for keyword in call.keywords
        if keyword.arg is not None and is_passed(keyword.arg)
    )
    for name, values in rows.items():
        value = evaluate(values[0][1], {})
        is_read = any(_reads(module, name) for module, _ in values)
        if value is UNKNOWN or len({ast.dump(item) for _, item in values}) > 1:
            setting = _make_setting(name, ast.unparse(values[0][1]), *values[0], is_read=True)
            yield replace(setting, known=False)
        elif value is not None:
            yield _make_setting(name, str(value), *values[0], is_read=is_read)


def _make_setting(name: str, text: str, module: SourceModule, value: ast.expr, is_read: bool) -> FixedSetting:
    location = SourceLocation(module.shown_path, value.lineno, value.col_offset + 1)
    return FixedSetting(name, text, location, NOWHERE, is_read=is_read)


def _list_values(module: SourceModule, call: ast.Call, name: str) -> list[ast.expr]:
    """Return a call's value of an argument, or each `**` that may contain it: one that the module does not make."""
    written = [word.value for word in call.keywords if word.arg == name]
    unpacked = [word.value for word in call.keywords if word.arg is None]
    bound = {node.id for node in list_kind(module.body, ast.Name) if isinstance(node.ctx, ast.Store)}
    return written or [item for item in unpacked if not isinstance(item, ast.Name) or item.id not in bound]


def _follow_parameter(main: SourceModule, module: SourceModule, value: ast.expr) -> list[ast.expr]:
    """Return the value, or what the program's own module passes for it: `train(attn_implementation="sdpa")`."""
    if not isinstance(value, ast.Name):
        return [value]
    functions = list_kind(module.body, ast.FunctionDef)
    takers = {item.name for item in functions if value.id in {argument.arg for argument in item.args.args}}
    passed = [
        word.value
        for call in list_kind(main.body, ast.Call)
        if isinstance(call.func, ast.Name) and call.func.id in takers
        for word in call.keywords
        if word.arg == value.id
    ]
    return passed or [value]


def _format_literal(argument: ast.expr) -> str:
    """Return a literal's text or the name of torch's dtype; "" if the value is known only at run time."""
    if isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name) and argument.value.id == "torch":
        return argument.attr
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ""


def _reads(module: SourceModule, name: str) -> bool:
    """Return whether a module reads an attribute or a key of this name: `args.attn_implementation`."""
    attributes = (node.attr for node in list_kind(module.body, ast.Attribute))
    return name in attributes or any(name == node.value for node in list_kind(module.body, ast.Constant))
