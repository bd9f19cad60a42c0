"""The overrides of a command that Hydra refuses for a configuration, applied in order as Hydra does.

hydra-core 1.3.2 _internal/config_loader_impl.py `_apply_overrides_to_config`: `key=` needs an existing key, `+key=` one
that is missing or null (a list or a table is merged into it), `++key=` takes any, `~key` needs one with a value. It
looks through interpolations, of a value and of the tables around it.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from attncheck.core.launch import Word
from attncheck.core.program import Program

OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<key>[A-Za-z_][\w.@/:-]*)(?:=(?P<value>.*))?", re.DOTALL)
NULLS = (None, "null", "???")
# What Hydra's grammar takes whole: a value in quotes, an escaped character, a reference to another value.
TAKEN = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|\\.|\$\{[^{}]*\}", re.DOTALL)
BRACKETS = ("()", "[]", "{}")
SELECT_INTERPOLATION = re.compile(r"\$\{oc\.select:\s*([\w.]+)\s*(?:,(.*))?\}")
KEY_INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")
MAX_INTERPOLATIONS = 12  # successive interpolations; more than this is a cycle
NOT_IN_VALUES = re.compile(
    r"[~<>#!^&;`=]|[^\x00-\x7f]"
)  # what no other value may contain: hydra-core 1.3.8 OverrideLexer.g4


class RefusedOverride(NamedTuple):
    """An override that Hydra refuses, and its accepted form; "" if there is none."""

    word: Word
    name: str  # includes its prefix: "+trainer.x"
    now: str = ""


def find_refused_overrides(program: Program, words: Sequence[Word]) -> Iterator[RefusedOverride]:
    """Yield the overrides that the composition refuses, in order."""
    values: dict[str, Any] = {name: option.default for name, option in program.options.items()}
    for word in words:
        match = OVERRIDE.fullmatch(word.text)
        if match is None or (match["value"] is None and match["prefix"] != "~"):
            continue
        prefix, key, value = match["prefix"] or "", match["key"], match["value"] or ""
        if key.partition(".")[0] == "hydra" or "@" in key or key in program.groups or "/" in key:
            if (
                not prefix
                and not (key in program.groups or key.partition("@")[0] in program.groups)
                and key.partition(".")[0] != "hydra"
            ):
                yield RefusedOverride(word, key)
        elif prefix == "~":
            if not _has_value(values, key):
                yield RefusedOverride(word, f"~{key}")
            values = {name: held for name, held in values.items() if not f"{name}.".startswith(f"{key}.")}
        elif not prefix and not has_key(values, key):
            yield RefusedOverride(word, key)
        elif prefix == "+" and value[:1] not in ("[", "{") and _has_value(values, key):
            yield RefusedOverride(word, f"+{key}", f"{key}={value}")
        else:
            values[key] = f"${value}" if value.startswith("{") else value  # the keys of a table are not read


def describe_unparsed(word: Word) -> str:
    """Return what Hydra's grammar refuses in an override's value: "'~' outside quotes"; "" if nothing is known.

    Quotes that do not close, and a name to which bash assigns (`X=~/data`), leave it open. So does a ~ from a variable,
    which bash expands where it is assigned (`X=${Y:-~/data}`).
    """
    match = OVERRIDE.fullmatch(word.text) if word.known else None
    rest = TAKEN.sub("", match["value"] or "") if match and not match["key"].isidentifier() else ""
    if {"'", '"'}.intersection(rest):
        return ""
    rest = rest if word.span[1] - word.span[0] == len(word.text) else rest.replace("~", "")
    character = NOT_IN_VALUES.search(rest)
    unpaired = next((pair for pair in BRACKETS if rest.count(pair[0]) != rest.count(pair[1])), "")
    return f"{character[0]!r} outside quotes" if character else f"unpaired {unpaired!r}" if unpaired else ""


def has_key(values: dict[str, Any], key: str) -> bool:
    """Return whether a key exists: a value, a table, or an item of a list or of a text that is resolved at run time."""
    parts = key.split(".")
    parents = (".".join(parts[:count]) for count in range(1, len(parts)))
    is_inside = any(str(values.get(parent, ""))[:2].startswith(("[", "${")) for parent in parents)
    return is_inside or key in values or any(name.startswith(f"{key}.") for name in values)


def _has_value(values: dict[str, Any], key: str, depth: int = MAX_INTERPOLATIONS) -> bool:
    """Return whether a key exists and is not null; False if its value is known only after resolving."""
    text = str(values.get(key))
    if key in values and "${" not in text:
        return values[key] not in NULLS
    if depth == 0:
        return False
    if key in values:
        selected = SELECT_INTERPOLATION.fullmatch(text)
        if selected and (values.get(selected[1]) == "???" or not has_key(values, selected[1])):
            return (selected[2] or "null").strip() not in NULLS
        target = selected or KEY_INTERPOLATION.fullmatch(text)
        if target:
            return _has_value(values, _find_absolute(target[1], key), depth - 1)
        named = KEY_INTERPOLATION.findall(text)  # in a text, which is not null
        return len(named) == text.count("${") and all(has_key(values, _find_absolute(name, key)) for name in named)
    if any(name.startswith(f"{key}.") for name in values):
        return True
    parts = key.split(".")
    for count in range(len(parts) - 1, 0, -1):
        parent = ".".join(parts[:count])
        table = KEY_INTERPOLATION.fullmatch(str(values.get(parent)))
        if table:
            return _has_value(values, ".".join((_find_absolute(table[1], parent), *parts[count:])), depth - 1)
    return False


def _find_absolute(reference: str, key: str) -> str:
    """Return the key to which the value of another one refers: ".x" of "a.b" is "a.x"."""
    name = reference.lstrip(".")
    parts = key.split(".")[: len(name) - len(reference)] if name != reference else []
    return ".".join((*parts, name))
