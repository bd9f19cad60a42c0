"""Finds the errors and warnings that a program certainly reaches with the settings of a launch.

Configurations are made as its parser makes them: each field has the launch's value, or else its default. Then
`__post_init__`, pydantic's validators and the program itself are followed (attncheck.lint.programs.interpreter).
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from attncheck.core.launch import Setting
from attncheck.core.program import Program, ProgramOption
from attncheck.lint.fields.written import FALSE_WORDS, NULL_WORDS, TRUE_WORDS, parse_value
from attncheck.lint.programs.dataclass_fields import FieldRow, derives_from_model, read_fields
from attncheck.lint.programs.interpreter import Frame, Interpreter, Outcome
from attncheck.lint.programs.literals import UNKNOWN
from attncheck.lint.programs.modules import Definition, SourceTree
from attncheck.lint.programs.records import Closure, Function, Origin, Record, list_classes

MAX_ROUNDS = 5  # until no validator changes what another reads
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
    return follow_program(origin, records, environ or {})


def follow_program(origin: Origin, records: Sequence[Record], environ: Mapping[str, str]) -> list[Outcome]:
    """Return the errors and warnings that a program reaches, whose parsers return `records`."""
    interpreter = Interpreter(origin.tree, records, environ, origin.has_one_parser)
    resolved = origin.tree.resolve_name(origin.module, origin.member) if origin.member else None
    if isinstance(resolved, Definition) and isinstance(resolved.node, Function):
        callee = Closure(resolved.module, resolved.node)
        interpreter.follow(lambda: interpreter.call_closure(callee, {}))
    elif not origin.member:
        frame = Frame(origin.module, {"__name__": "__main__"})
        interpreter.follow(lambda: interpreter.run(origin.module.body.body, frame))
    if origin.has_one_parser and not any(outcome.kind == "raises" for outcome in interpreter.outcomes):
        interpreter.follow(lambda: interpreter.take_parsed(interpreter.parsed))
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


# Composed configurations, and pydantic's models -----------------------------------------------------------------------
def _check_composed(program: Program, origin: Origin, written: Mapping[str, Setting]) -> list[Outcome]:
    """Return what the package's check of a configuration that Hydra composed reaches."""
    package = origin.module.name.partition(".")[0]
    resolved = origin.tree.find_definition(CHECKS.get(package, ""))
    if not isinstance(resolved, Definition) or not isinstance(resolved.node, Function) or program.gaps:
        return []
    defaults = {name: option.default for name, option in program.options.items()}
    values: dict[str, Any] = {
        name: value if not isinstance(value, str) else UNKNOWN if "$" in value else parse_value(value)
        for name, value in defaults.items()
    }
    values |= {name: read_scalar(setting) for name, setting in written.items() if not name.startswith("-")}
    root = _nest(values, is_mapping=True)
    interpreter = Interpreter(origin.tree)
    parameters = dict.fromkeys((item.arg for item in resolved.node.args.args), UNKNOWN)
    callee = Closure(resolved.module, resolved.node)
    interpreter.follow(lambda: interpreter.call_closure(callee, {**parameters, next(iter(parameters)): root}))
    return interpreter.outcomes


def read_scalar(setting: Setting) -> Any:
    """Return the value of a YAML scalar, list or table; `UNKNOWN` if it is not known."""
    return parse_value(setting.value) if setting.known and "$" not in setting.value else UNKNOWN


def _check_model(origin: Origin, model: Definition, written: Mapping[str, Setting]) -> list[Outcome]:
    """Return what the validators of a pydantic model, and of the plugins' models, reach."""
    given = _nest({name: read_scalar(setting) for name, setting in written.items()}, is_mapping=True).values
    models = [model, *_iter_plugin_models(origin.tree, given.get("plugins"))]
    validators = [item for definition in models for item in _list_validators(origin, definition, given)]
    changed: set[str] = set()
    for _ in range(MAX_ROUNDS):
        interpreter, before = Interpreter(origin.tree), len(changed)
        for validator in validators:
            changed |= _follow_validator(interpreter, validator, {**given, **dict.fromkeys(changed, UNKNOWN)})
        if len(changed) == before:
            return interpreter.outcomes
    return []


class Validator(NamedTuple):
    """A function that checks a pydantic model: its values "before" or "after" they are parsed, or one "field"."""

    owner: Definition
    function: Function
    mode: str
    field: str
    classes: tuple[Definition, ...]
    defaults: Mapping[str, Any]


def _follow_validator(interpreter: Interpreter, validator: Validator, values: Mapping[str, Any]) -> set[str]:
    """Follow a validator; return the names whose values it may have changed."""
    is_after = validator.mode == "after"
    start = {**(validator.defaults if is_after else {}), **values}
    record = Record(validator.classes if is_after else (), dict(start), is_mapping=not is_after)
    checked = start.get(validator.field, UNKNOWN) if validator.field else record
    names = [item.arg for item in validator.function.args.args]
    arguments = {**dict.fromkeys(names, UNKNOWN), names[0 if is_after else min(1, len(names) - 1)]: checked}
    owner = validator.owner
    callee = Closure(owner.module, validator.function, owner, record if is_after else None)
    interpreter.follow(lambda: interpreter.call_closure(callee, arguments))
    kept = record.values if record.is_whole else {}
    return {name for name in {**start, **kept} if kept.get(name, UNKNOWN) is not start.get(name)}


def _list_validators(origin: Origin, model: Definition, given: Mapping[str, Any]) -> Iterator[Validator]:
    """Yield the validators of a model; one of a field only if the launch sets it."""
    classes, _ = list_classes(origin.tree, model)
    fields, _ = read_fields(origin.tree, model, origin.find_external)
    defaults = {name: _read_default(row) for name, row in fields.items()}
    for owner in classes:
        for statement in getattr(owner.node, "body", ()):
            for kind, words in _read_decorators(statement) if isinstance(statement, Function) else ():
                mode = next((word for word in words if word in ("before", "after")), "after")
                if kind == "model_validator" and statement.args.args:
                    yield Validator(owner, statement, mode, "", classes, defaults)
                for word in words if kind == "field_validator" else ():
                    if word in given and word in fields:
                        yield Validator(owner, statement, "field", word, classes, {})


@lru_cache(maxsize=4096)
def _read_decorators(function: Function) -> list[tuple[str, list[Any]]]:
    """Return the name of each decorator that is called, and the literals in the call."""
    calls = [item for item in function.decorator_list if isinstance(item, ast.Call)]
    words = ([item.value for item in ast.walk(call) if isinstance(item, ast.Constant)] for call in calls)
    return list(zip((ast.unparse(call.func).rpartition(".")[2] for call in calls), words))


def _iter_plugin_models(tree: SourceTree, plugins: Any) -> Iterator[Definition]:
    """Yield the models that axolotl's plugins add (axolotl 0.19.0 utils/config/__init__.py, merge_input_args)."""
    for name in plugins if isinstance(plugins, list) else ():
        plugin = tree.find_definition(name) if isinstance(name, str) else None
        if isinstance(plugin, Definition):
            method = Record(list_classes(tree, plugin)[0]).find_method("get_input_args")
            nodes = ast.walk(method.node) if method else ()
            texts = [item.value for item in nodes if isinstance(item, ast.Constant)]
            models = (tree.find_definition(text) for text in texts if isinstance(text, str) and text.count(".") > 1)
            yield from (model for model in models if isinstance(model, Definition))
