"""Finds the errors and warnings that a program certainly reaches with the settings of a launch.

Configurations are made as its parser makes them: each field has the launch's value, or else its default. Then
`__post_init__`, pydantic's validators and the program itself are followed (attncheck.lint.programs.interpreter).
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attncheck.core.launch import Setting
from attncheck.core.program import Program, ProgramOption
from attncheck.lint.fields.written import FALSE_WORDS, NULL_WORDS, TRUE_WORDS, parse_value
from attncheck.lint.programs.dataclass_fields import FieldRow, derives_from_model, read_fields
from attncheck.lint.programs.interpreter import Closure, Frame, Interpreter, Outcome
from attncheck.lint.programs.literals import UNKNOWN
from attncheck.lint.programs.modules import Definition, SourceTree
from attncheck.lint.programs.records import Function, Origin, Record, list_classes

CHECKS = {"verl": "verl.utils.config.validate_config"}  # by package: what checks a composed configuration


def find_outcomes(
    program: Program, written: Mapping[str, Setting], environ: Mapping[str, str] | None = None
) -> list[Outcome]:
    """Return the errors and warnings that a program reaches.

    `written` are the launch's settings by bare name, `environ` the variables that it sets.
    """
    origin = program.origin
    if not isinstance(origin, Origin):
        return []
    if program.style == "hydra":
        return _check_composed(program, origin, written)
    first = origin.classes[0] if origin.classes else None
    if first is not None and derives_from_model(origin.tree, first):
        return _check_model(origin, first, written)
    if origin.classes:
        records = [
            make_record(origin, definition, written) if definition is not None else Record(is_whole=False)
            for definition in dict.fromkeys(origin.classes)
        ]
    else:
        records = [_nest(_read_options(program, written), is_mapping=False)]
    interpreter = Interpreter(origin.tree, records, environ or {}, origin.has_one_parser)
    resolved = origin.tree.resolve_name(origin.module, origin.member) if origin.member else None
    if isinstance(resolved, Definition) and isinstance(resolved.node, Function):
        callee = Closure(resolved.module, resolved.node)
        interpreter.follow(lambda: interpreter.call_closure(callee, {}))
    elif not origin.member:
        frame = Frame(origin.module, {"__name__": "__main__"})
        interpreter.follow(lambda: interpreter.run(origin.module.body.body, frame))
    if origin.has_one_parser and not any(outcome.kind == "raises" for outcome in interpreter.outcomes):
        interpreter.follow(lambda: interpreter.take_parsed(records))
    return interpreter.outcomes


def make_record(origin: Origin, definition: Definition, written: Mapping[str, Setting]) -> Record:
    """Return a dataclass's object with the launch's values, and the defaults of the other fields."""
    classes, is_whole = list_classes(origin.tree, definition)
    fields, _ = read_fields(origin.tree, definition, origin.find_external)
    values = {name: _read_default(row) for name, row in fields.items()}
    for name, setting in written.items():
        field_name = name.partition(".")[0]
        if field_name in fields:
            values[field_name] = convert(fields[name].option, setting) if name == field_name else UNKNOWN
        elif name.startswith("no_") and name[3:] in fields:
            values[name[3:]] = False
        for other in fields if len(name) > 1 and name not in fields else ():
            if other.startswith(name):  # an abbreviation
                values[other] = UNKNOWN
    return Record(classes, values, is_whole, is_made=False)


def _read_default(row: FieldRow) -> Any:
    return row.option.default if row.has_default else UNKNOWN


def convert(option: ProgramOption, setting: Setting) -> Any:
    """Return a setting's value as the option's type; `UNKNOWN` if that is not certain."""
    text = setting.value.strip("\"'")
    word, is_option = text.lower(), setting.name.startswith("-")
    if not setting.known or text[:1] in ("{", "[", "$"):
        return UNKNOWN
    if not text:
        return True if is_option and option.kind.startswith("bool") else UNKNOWN
    if word in NULL_WORDS:
        return UNKNOWN if is_option else None
    if option.kind.startswith("bool"):
        return True if word in TRUE_WORDS else False if word in FALSE_WORDS else UNKNOWN
    value = parse_value(text)
    if option.kind == "int":
        return value if isinstance(value, int) else UNKNOWN
    if option.kind == "float":
        return float(value) if isinstance(value, (int, float)) else UNKNOWN
    return text if option.kind == "str" and isinstance(value, str) and word not in TRUE_WORDS | FALSE_WORDS else UNKNOWN


def _read_options(program: Program, written: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the values of a parser's options, by the name that they get in its namespace."""
    values = {}
    for name, option in program.options.items():
        bare = name.replace("-", "_")
        default = False if option.nargs == 0 and option.default is None else option.default
        values[bare] = default if option.is_default_known else UNKNOWN
        if bare in written:
            values[bare] = convert(option, written[bare])
    return values


def _nest(values: Mapping[str, Any], is_mapping: bool) -> Record:
    """Return an object with dotted names as objects in it."""
    root = Record(is_mapping=is_mapping)
    for name, value in values.items():
        *parents, last = name.split(".")
        owner = root
        for parent in parents:
            if not isinstance(owner.values.get(parent), Record):
                owner.values[parent] = Record(is_mapping=is_mapping)
            owner = owner.values[parent]
        if not isinstance(owner.values.get(last), Record):
            owner.values[last] = value
    return root


# Composed configurations, and pydantic's models ------------------------------------------------------------------------
def _check_composed(program: Program, origin: Origin, written: Mapping[str, Setting]) -> list[Outcome]:
    """Return what the package's check of a configuration that Hydra composed reaches."""
    package = origin.module.name.partition(".")[0]
    resolved = origin.tree.find_definition(CHECKS.get(package, ""))
    if not isinstance(resolved, Definition) or not isinstance(resolved.node, Function) or program.gaps:
        return []
    values = {name: _read_leaf(option.default) for name, option in program.options.items()}
    values |= {name: read_scalar(setting) for name, setting in written.items() if not name.startswith("-")}
    root = _nest(values, is_mapping=True)
    interpreter = Interpreter(origin.tree)
    parameters = dict.fromkeys((item.arg for item in resolved.node.args.args), UNKNOWN)
    callee = Closure(resolved.module, resolved.node)
    interpreter.follow(lambda: interpreter.call_closure(callee, {**parameters, next(iter(parameters)): root}))
    return interpreter.outcomes


def _read_leaf(value: Any) -> Any:
    return (UNKNOWN if "$" in value else parse_value(value)) if isinstance(value, str) else value


def read_scalar(setting: Setting) -> Any:
    """Return the value of a YAML scalar, list or table; `UNKNOWN` if it is not known."""
    return parse_value(setting.value) if setting.known and "$" not in setting.value else UNKNOWN


def _check_model(origin: Origin, model: Definition, written: Mapping[str, Setting]) -> list[Outcome]:
    """Return what the validators of a pydantic model, and of the plugins' models, reach."""
    outcomes: dict[Outcome, None] = {}
    given = _nest({name: read_scalar(setting) for name, setting in written.items()}, is_mapping=True).values
    for definition in (model, *_iter_plugin_models(origin.tree, given.get("plugins"))):
        classes, is_whole = list_classes(origin.tree, definition)
        fields, _ = read_fields(origin.tree, definition, origin.find_external)
        validators = list(_iter_validators(classes))
        changed = {name for _, function, _ in validators for name in _iter_changed(function)}
        defaults = {name: _read_default(row) for name, row in fields.items()}
        for owner, function, mode in validators:
            values = {**(defaults if mode == "after" else {}), **given, **dict.fromkeys(changed, UNKNOWN)}
            record = Record(classes if mode == "after" else (), values, is_whole, is_mapping=mode == "before")
            interpreter = Interpreter(origin.tree)
            names = [item.arg for item in function.args.args]
            callee = Closure(owner.module, function, owner, record if mode == "after" else None)
            arguments = {**dict.fromkeys(names, UNKNOWN), names[-1 if mode == "before" else 0]: record}
            interpreter.follow(lambda: interpreter.call_closure(callee, arguments))  # noqa: B023 - called at once
            outcomes.update(dict.fromkeys(interpreter.outcomes))
    return list(outcomes)


def _iter_validators(classes: Iterable[Definition]) -> Iterator[tuple[Definition, Any, str]]:
    """Yield the validators of a whole model, each with the class that defines it, and when it runs."""
    for owner in classes:
        for statement in getattr(owner.node, "body", ()):
            for decorator in getattr(statement, "decorator_list", ()) if isinstance(statement, Function) else ():
                text = ast.unparse(decorator)
                mode = next((mode for mode in ("before", "after") if f"mode='{mode}'" in text), "")
                if text.startswith("model_validator(") and mode and statement.args.args:
                    yield owner, statement, mode


def _iter_changed(function: Function) -> Iterator[str]:
    """Yield the keys or attributes that a validator may set."""
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield str(getattr(node.slice, "value", ""))
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("pop", "setdefault") and node.args:
            yield str(getattr(node.args[0], "value", ""))


def _iter_plugin_models(tree: SourceTree, plugins: Any) -> Iterator[Definition]:
    """Yield the models that axolotl's plugins add (axolotl 0.19.0 utils/config/__init__.py, merge_input_args)."""
    for name in plugins if isinstance(plugins, list) else ():
        plugin = tree.find_definition(name) if isinstance(name, str) else None
        if isinstance(plugin, Definition):
            record = Record(list_classes(tree, plugin)[0])
            found = record.find_method("get_input_args")
            texts = [item.value for item in ast.walk(found[1]) if isinstance(item, ast.Constant)] if found else []
            models = (tree.find_definition(text) for text in texts if isinstance(text, str) and text.count(".") > 1)
            yield from (model for model in models if isinstance(model, Definition))
