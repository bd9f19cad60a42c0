"""The text of a row of a user's data, taken from the fields that data sets usually have it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

FIELD_FLAG = "--data-field"
MAX_LISTED_FIELDS = 12  # fields that a message names
CONVERSATION_FIELDS = ("messages", "conversations", "conversation")
TEXT_FIELDS = ("text", "content")
PROMPT_FIELDS = ("prompt", "instruction", "question", "query")
COMPLETION_FIELDS = ("completion", "response", "output", "answer", "chosen")
KNOWN_FIELDS = (*TEXT_FIELDS, *CONVERSATION_FIELDS, *PROMPT_FIELDS, "input", *COMPLETION_FIELDS)

Messages = Sequence[Mapping[str, Any]]
Text = Union[str, Messages]


class BadData(Exception):
    """A user's file or its tokenizer cannot be used; the message says why and what to do, in one line."""


def extract_text(row: Mapping[str, Any], field: str | None, location: str) -> Text:
    """Return the text of a row: that of `field`, or of the first usual field that it has; null is no text."""
    if field is not None:
        if field not in row:
            raise BadData(f"{location} has no field {field!r}; {_describe_fields(row)}")
        return _validate_text(row[field], field, location)
    text_field = next((name for name in (*TEXT_FIELDS, *CONVERSATION_FIELDS) if row.get(name) is not None), None)
    if text_field is not None:
        return _validate_text(row[text_field], text_field, location)
    prompt_field = next((name for name in PROMPT_FIELDS if row.get(name) is not None), None)
    if prompt_field is None and not any(name in row for name in KNOWN_FIELDS):
        raise BadData(
            f"{location} has no field that smoke knows for text; {_describe_fields(row)}: name one with {FIELD_FLAG}"
        )
    names = (prompt_field, "input", next((name for name in COMPLETION_FIELDS if row.get(name) is not None), None))
    parts = [
        _validate_text(row[name], name, location) for name in names if name is not None and row.get(name) is not None
    ]
    if any(not isinstance(part, str) for part in parts):  # a prompt and its completion, each of messages
        return [message for part in parts for message in _as_messages(part)]
    return "\n".join(str(part) for part in parts if part)


def _as_messages(part: Text) -> Messages:
    return [{"role": "user", "content": part}] if isinstance(part, str) else part


def _validate_text(value: Any, name: str, location: str) -> Text:
    """Return a field's value where it is text or a list of messages, ShareGPT's keys put into the usual ones."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and value and all(isinstance(message, dict) for message in value):
        return [_normalize_message(message) for message in value]
    if value == []:
        return ""
    raise BadData(
        f"the field {name!r} in {location} holds {describe_json_type(value)}, not text; name another with {FIELD_FLAG}"
    )


def _normalize_message(message: dict[str, Any]) -> dict[str, Any]:
    if "from" in message and "value" in message:
        role = {"human": "user", "gpt": "assistant"}.get(str(message["from"]), str(message["from"]))
        return {"role": role, "content": message["value"]}
    return {name: value for name, value in message.items() if value is not None}


def _describe_fields(row: Mapping[str, Any]) -> str:
    names = [str(name)[:40] for name in row][:MAX_LISTED_FIELDS]
    more = ", …" if len(row) > MAX_LISTED_FIELDS else ""
    return f"its fields are {', '.join(names)}{more}" if names else "it has none"


def describe_json_type(value: Any) -> str:
    """Return the type of a JSON value in words: "a number", "a list"."""
    return {"NoneType": "null", "int": "a number", "float": "a number", "bool": "true or false"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )
