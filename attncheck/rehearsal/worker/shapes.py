"""Gives the fields of rows the shapes that a script needs: turns with its own keys, tables, numbers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attncheck.core.rehearsal import CHOICE, JSON_TEXT, KEY, MARKED, TEXT_COLUMNS
from attncheck.rehearsal.worker.turns import SHAREGPT

ROLES = ("role", "from", "speaker", "author")
TEXTS = ("content", "value", "text", "utterance", "message")
MESSAGE = frozenset(("role", "content"))


def list_turns(shapes: Mapping[str, Any]) -> list[str]:
    """Return the fields that a script takes apart as messages, or writes with a chat template."""
    items = {name: shape[0] for name, shape in shapes.items() if isinstance(shape, list)}
    taken = [name for name, item in items.items() if isinstance(item, dict) and not MESSAGE.isdisjoint(item)]
    return taken + [name for name, shape in shapes.items() if shape == "turns"]


def fit_rows(rows: Sequence[Mapping[str, Any]], shapes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows with their fields in the shapes that a script needs; a text of unknown use stays as it is.

    A row's text is there once: further turns are empty if the script reads a field that has it.
    """
    talks = [name for name, shape in shapes.items() if _is_dialogue(shape)]
    own = talks[0] if talks and shapes.keys().isdisjoint({*TEXT_COLUMNS, "messages"}) else ""
    return [
        {
            name: _fit(row.get("messages", value) if name == own else value, shapes.get(name, ""), row, number)
            for name, value in row.items()
        }
        for number, row in enumerate(rows)
    ]


def _is_dialogue(shape: Any) -> bool:
    return isinstance(shape, list) and isinstance(shape[0], dict) and not shape[0].keys().isdisjoint(ROLES)


def _fit(value: Any, shape: Any, row: Mapping[str, Any], number: int, is_field: bool = True) -> Any:
    """Return a value in a shape: "text", "number", "turns", [shape], {key: shape}; "" is unknown.

    A field's list of texts may as well be a batch's column, whose rows have one text each.
    """
    kind = next(
        (kind for kind in (KEY, JSON_TEXT, MARKED, CHOICE) if isinstance(shape, str) and shape.startswith(kind)), ""
    )
    needed: Any = json.loads(shape.removeprefix(kind)) if kind else None
    if kind == KEY:
        return value if value in needed else needed[number % len(needed)]
    if kind == CHOICE:  # of a field that has no part of the document
        return value if value and isinstance(value, (str, bool)) else needed[number % len(needed)]
    if kind == JSON_TEXT:
        return json.dumps(_fit(value, needed, row, number, False))
    if kind == MARKED:
        return value if not isinstance(value, str) or needed in value else f"{needed} {value}"
    if isinstance(shape, list):
        (item,) = shape
        if not isinstance(item, dict):
            inner = _fit(value, item, row, number, is_field) if isinstance(item, list) else value
            return inner if is_field or isinstance(inner, list) else [inner]
        if isinstance(value, str) and item.keys() & {*ROLES, *TEXTS}:
            turns = row["messages"] if "messages" in row and _is_dialogue(shape) else [{"role": "user"}]
            value = [{**turn, "content": value if len(turns) == 1 else ""} for turn in turns]
        elif isinstance(value, str):
            value = [_fit(value, item, row, number)]
        return [_complete(turn, item) for turn in value] if isinstance(value, list) else value
    if isinstance(shape, dict) and isinstance(value, str):
        own = next((name for name in (*TEXTS, *shape) if name in shape), "")
        return {name: _fit(value if name == own else "", part, row, number, False) for name, part in shape.items()}
    return number if shape == "number" and value == "" else value


def _complete(turn: Any, keys: Mapping[str, Any]) -> Any:
    """Return a turn with its role and text under the keys that a script reads, too."""
    if not isinstance(turn, Mapping):
        return turn
    role, text = (next((turn[name] for name in names if name in turn), "") for names in (ROLES, TEXTS))
    own = {"from": SHAREGPT.get(role, role)} | dict.fromkeys(ROLES[:1] + ROLES[2:], role) | dict.fromkeys(TEXTS, text)
    words = {role, SHAREGPT.get(role, role), *(name for name, other in SHAREGPT.items() if other == role)}
    own |= {  # the script's own table decides between the names of a role
        name: next(filter(words.__contains__, json.loads(shape.removeprefix(KEY))), role)
        for name, shape in keys.items()
        if name in ROLES and str(shape).startswith(KEY)
    }
    return {name: own.get(name, "") for name in keys} | {name: own.get(name, part) for name, part in turn.items()}
