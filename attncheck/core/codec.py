"""Converts frozen dataclasses to and from JSON by their type hints.

A fact is written as {"known": value}, {"absent": reason} or {"unreadable": reason}; tuples as arrays. Reading is strict
about required keys and ignores unknown ones, so that an older judge can read a newer probe.

Input is bounded, so all values computed from it are finite. JSON has neither infinity nor NaN: both are written as
`HUGE`.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from attncheck.core.facts import Absent, Known, Unreadable

T = TypeVar("T")
HUGE = 1e30  # represents infinity, which JSON cannot express
MAX_DIGITS = 31  # digits of a whole number; tokenizers without a limit write int(1e30)


class BadDocument(ValueError):
    """A JSON document that does not have the expected shape; the message starts with the path to the fault."""


def dumps(value: object, indent: int | None = 2) -> str:
    """Return `value`, a dataclass, as JSON text."""
    return write(to_plain(value), indent)


def write(plain: Any, indent: int | None = 2) -> str:
    """Return a document of `to_plain` as JSON text."""
    try:
        return json.dumps(plain, indent=indent, ensure_ascii=False, allow_nan=False, check_circular=False)
    except ValueError:
        return json.dumps(_bound_numbers(plain), indent=indent, ensure_ascii=False)


def _bound_numbers(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _bound_numbers(item) for key, item in plain.items()}
    if isinstance(plain, list):
        return [_bound_numbers(item) for item in plain]
    return _bound(plain) if isinstance(plain, float) else plain


def _bound(number: float) -> float:
    """Return the number limited to ±`HUGE`; NaN becomes `HUGE`."""
    return number if abs(number) <= HUGE else -HUGE if number < 0 else HUGE


def to_plain(value: Any) -> Any:
    """Return `value` as dictionaries, lists and scalars. Raises `TypeError` for a named tuple."""
    if isinstance(value, Known):
        return {"known": to_plain(value.value)}
    if isinstance(value, (Absent, Unreadable)):
        return {type(value).__name__.lower(): value.reason}
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        if hasattr(value, "_fields"):
            raise TypeError(f"{type(value).__name__} is a named tuple")
        return [to_plain(item) for item in value]
    return value


def loads(kind: type[T], text: str) -> T:
    """Return the `kind` written in `text`. Raises `BadDocument`, naming the path to the fault."""
    return read(kind, parse(text))


def parse(text: str) -> Any:
    """Return the JSON document in `text`, every number within bounds. Raises `BadDocument`."""
    try:
        return json.loads(
            text,
            parse_int=_parse_integer,
            parse_float=lambda digits: _bound(float(digits)),
            parse_constant=_refuse_constant,
        )
    except BadDocument:
        raise
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"not JSON: {error}") from None


def _parse_integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise BadDocument(f"a number has {len(digits)} digits; at most {MAX_DIGITS} are allowed")
    return int(digits)


def _refuse_constant(word: str) -> float:
    raise BadDocument(f"{word} is not a number")


def read(kind: type[T], document: object) -> T:
    """Return the `kind` that a parsed document contains. Raises `BadDocument`, naming the path to the fault."""
    reader: Callable[[object, str], T] = _make_reader(cast(Any, kind))
    return reader(document, "$")


def _bad_document(path: str, expected: str, value: object) -> BadDocument:
    return BadDocument(f"{path}: expected {expected}, found {type(value).__name__}")


@cache
def _dataclass_fields(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind)}


@cache
def _make_reader(kind: Any) -> Callable[[object, str], Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin is Union and Absent in arguments:
        return _fact_reader(arguments)
    if origin is Union or str(origin) == "<class 'types.UnionType'>":
        return _optional_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin in (dict, Mapping):
        return _mapping_reader(arguments[1])
    if origin is Literal:
        return _literal_reader(arguments)
    return _scalar_reader(kind)


def _dataclass_reader(kind: Any) -> Callable[[object, str], Any]:
    hints = get_type_hints(kind)
    fields = _dataclass_fields(kind)

    def reader(document: object, path: str) -> Any:
        if not isinstance(document, dict):
            raise _bad_document(path, kind.__name__, document)
        values = {}
        for name, field in fields.items():
            if name in document:
                values[name] = _make_reader(hints[name])(document[name], f"{path}.{name}")
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise BadDocument(f"{path}: {name} is missing")
        return kind(**values)

    return reader


def _fact_reader(arguments: tuple[Any, ...]) -> Callable[[object, str], Any]:
    value_type = next(get_args(argument)[0] for argument in arguments if get_origin(argument) is Known)

    def reader(document: object, path: str) -> Any:
        if isinstance(document, dict) and len(document) == 1:
            state, value = next(iter(document.items()))
            if state == "known":
                return Known(_make_reader(value_type)(value, path))
            if state in ("absent", "unreadable") and isinstance(value, str):
                return Absent(value) if state == "absent" else Unreadable(value)
        raise _bad_document(path, 'a fact {"known": …}, {"absent": …} or {"unreadable": …}', document)

    return reader


def _optional_reader(arguments: tuple[Any, ...]) -> Callable[[object, str], Any]:
    inner_type = next(argument for argument in arguments if argument is not type(None))
    return lambda document, path: None if document is None else _make_reader(inner_type)(document, path)


def _tuple_reader(arguments: tuple[Any, ...]) -> Callable[[object, str], Any]:
    def reader(document: object, path: str) -> Any:
        if not isinstance(document, list):
            raise _bad_document(path, "an array", document)
        if arguments[-1] is Ellipsis:
            kinds = (arguments[0],) * len(document)
        elif len(arguments) == len(document):
            kinds = arguments
        else:
            raise BadDocument(f"{path}: expected {len(arguments)} items, found {len(document)}")
        return tuple(
            _make_reader(kind)(item, f"{path}[{index}]") for index, (kind, item) in enumerate(zip(kinds, document))
        )

    return reader


def _mapping_reader(kind: Any) -> Callable[[object, str], Any]:
    def reader(document: object, path: str) -> Any:
        if not isinstance(document, dict):
            raise _bad_document(path, "an object", document)
        return {key: _make_reader(kind)(item, f"{path}.{key}") for key, item in document.items()}

    return reader


def _literal_reader(choices: tuple[Any, ...]) -> Callable[[object, str], Any]:
    def reader(document: object, path: str) -> Any:
        if document not in choices:
            raise BadDocument(f"{path}: expected one of {', '.join(map(str, choices))}, found {document!r}")
        return document

    return reader


def _scalar_reader(kind: Any) -> Callable[[object, str], Any]:
    if hasattr(kind, "_fields"):
        raise TypeError(f"{kind.__name__} is a named tuple")

    def reader(document: object, path: str) -> Any:
        if kind is float and type(document) is int:
            return float(max(-HUGE, min(document, HUGE)))
        if type(document) is not kind:
            raise _bad_document(path, kind.__name__, document)
        return document

    return reader
