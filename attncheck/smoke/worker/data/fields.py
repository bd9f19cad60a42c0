"""The text of a row of a user's data, taken from the fields that data sets usually have it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

FIELD_FLAG = "--data-field"
MOST_NAMED = 12  # fields that a message names
CONVERSATIONS = ("messages", "conversations", "conversation")
PLAIN = ("text", "content")
QUESTIONS = ("prompt", "instruction", "question", "query")
ANSWERS = ("completion", "response", "output", "answer", "chosen")
KNOWN = (*PLAIN, *CONVERSATIONS, *QUESTIONS, "input", *ANSWERS)

Messages = Sequence[Mapping[str, Any]]
Text = Union[str, Messages]


class BadData(Exception):
    """A user's file, or the tokenizer for it, is of no use; the message says why and what to do, in one line."""


def text_of(row: Mapping[str, Any], field: str | None, where: str) -> Text:
    """Return the text of a row: of `field`, or of the first usual field that is there; null is no text."""
    if field is not None:
        if field not in row:
            raise BadData(f"{where} has no field {field!r}; {_fields(row)}")
        return _checked(row[field], field, where)
    single = next((name for name in (*PLAIN, *CONVERSATIONS) if row.get(name) is not None), None)
    if single is not None:
        return _checked(row[single], single, where)
    asked = next((name for name in QUESTIONS if row.get(name) is not None), None)
    if asked is None and not any(name in row for name in KNOWN):
        raise BadData(f"{where} has no field that smoke knows for text; {_fields(row)}: name one with {FIELD_FLAG}")
    names = (asked, "input", next((name for name in ANSWERS if row.get(name) is not None), None))
    parts = [_checked(row[name], name, where) for name in names if name is not None and row.get(name) is not None]
    if any(not isinstance(part, str) for part in parts):  # a prompt and its completion, each of messages
        return [message for part in parts for message in _messages(part)]
    return "\n".join(str(part) for part in parts if part)


def _messages(part: Text) -> Messages:
    return [{"role": "user", "content": part}] if isinstance(part, str) else part


def _checked(value: Any, name: str, where: str) -> Text:
    """Return a field's value where it is text, or a list of messages, with ShareGPT's words put into the usual ones."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and value and all(isinstance(message, dict) for message in value):
        return [_usual(message) for message in value]
    if value == []:
        return ""
    raise BadData(f"the field {name!r} in {where} holds {kind(value)}, not text; name another with {FIELD_FLAG}")


def _usual(message: dict[str, Any]) -> dict[str, Any]:
    if "from" in message and "value" in message:
        role = {"human": "user", "gpt": "assistant"}.get(str(message["from"]), str(message["from"]))
        return {"role": role, "content": message["value"]}
    return {name: value for name, value in message.items() if value is not None}


def _fields(row: Mapping[str, Any]) -> str:
    names = [str(name)[:40] for name in row][:MOST_NAMED]
    more = ", …" if len(row) > MOST_NAMED else ""
    return f"its fields are {', '.join(names)}{more}" if names else "it has none"


def kind(value: Any) -> str:
    """Return what a value of JSON is, in words."""
    return {"NoneType": "null", "int": "a number", "float": "a number", "bool": "true or false"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )
