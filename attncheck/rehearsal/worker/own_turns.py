"""Reads the turns of the user's rows, so that labels can be judged by role."""

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attncheck.core.rehearsal import ANSWER_COLUMNS, PROMPT_COLUMNS
from attncheck.rehearsal.worker import own_data
from attncheck.rehearsal.worker.turns import FILE, SHAREGPT, THINK, THOUGHT, Conversation, Turn

TEXT_TOKENS = 12  # a generous number of tokens of markup around each text of a row: a role, and what it says
ROLES = {name: role for role, name in SHAREGPT.items()} | {role: role for role in SHAREGPT} | {"model": "assistant"}
COLUMNS: Mapping[str, str] = {
    "system": "system",
    **dict.fromkeys((*PROMPT_COLUMNS, "input"), "user"),
    **dict.fromkeys((*ANSWER_COLUMNS, "output"), "assistant"),
}
# Fields of a message by which axolotl, ms-swift and others choose whether it is learned.
CHOOSING = frozenset(("train", "training", "train_detail", "weight", "loss", "loss_scale"))
PAIR = ("prompt", "completion")


def read_conversation(row: Any, roles: Mapping[str, str] = MappingProxyType({})) -> Conversation:
    """Return the turns of a row, () if their texts or roles are not plain.

    `roles` are the columns that the launch names, otherwise those of any usual name are read.
    """
    if not isinstance(row, Mapping) or any(map(_is_history, row.values())):
        return ()
    listed = [value for value in row.values() if _is_messages(value)]
    if listed and not all(isinstance(row.get(name), list) for name in PAIR):
        listed = listed[:1]
    columns = [(role, _find_value(row, name)) for name, role in (roles or COLUMNS).items()]
    values = [("", value) for value in listed] if listed and not roles else columns
    turns = [turn for role, value in values for turn in _read_value(role, value)]
    said = [role for role, _ in turns]
    return tuple(turns) if "user" in said and said[-1:] == ["assistant"] and "" not in said else ()


def _is_history(value: Any) -> bool:
    """Return whether a column has earlier turns as pairs, whose roles are not read."""
    return isinstance(value, list) and any(isinstance(part, list) for part in value)


def _is_messages(value: Any) -> bool:
    """Return whether a column is a list of messages."""
    return isinstance(value, list) and bool(value) and all(isinstance(message, Mapping) for message in value)


def _find_value(row: Mapping[str, Any], name: str) -> Any:
    """Return a column's value; "extra_info.question" is a part of one."""
    first, _, rest = name.partition(".")
    inner = row.get(first)
    return _find_value(inner, rest) if rest and name not in row and isinstance(inner, Mapping) else row.get(name)


def _read_value(role: str, value: Any) -> Iterator[Turn]:
    """Yield the turns of a column: a text with the column's role, or messages."""
    if isinstance(value, str) and value.strip():
        yield role, value
    elif _is_messages(value):
        for message in value:
            yield from _read_message(message)


def _read_message(message: Mapping[str, Any]) -> Iterator[Turn]:
    """Yield the turns of a message: its thought and its text; one of role "" if it has more than that."""
    text = message.get("content", message.get("value"))
    role = ROLES.get(str(message.get("role", message.get("from"))), "")
    others = any(message.get(name) for name in ("tool_calls", "reasoning_content", "reasoning", "thinking"))
    if not isinstance(text, str) or others:
        yield "", ""
        return
    thought, mark, answer = text.rpartition(THOUGHT.strip())
    if role == "assistant" and mark:
        yield "thinking", thought.replace(THINK.strip(), "")
    yield role, answer


def is_pair(row: Any) -> bool:
    """Return whether a row is a prompt and its completion, and the prompt contains no answer."""
    if not isinstance(row, Mapping) or not all(row.get(name) for name in PAIR):
        return False
    return [role for role, _ in read_conversation(row)].count("assistant") == 1


def lay_rows(
    name: str, folder: Path, tokenizer: Any, length: int, roles: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[Any], str, dict[str, bool]]:
    """Write the first rows of the user's data, and their turns. Raises `Unbuildable`.

    Return them, a remark, and whether turns are known, whether all rows are a prompt and its completion, or only some,
    and whether messages choose what is learned. `length` is the most tokens that a row may have, 0 if the launch
    truncates rows at the same length as the test.
    """
    keep = functools.partial(_fits, tokenizer, length) if length else own_data.keep_any
    rows = own_data.lay_data(name, folder / "data", keep)
    conversations = [read_conversation(row, roles) for row in rows]
    (folder / FILE).write_text(json.dumps(conversations))
    pairs = [is_pair(row) for row in rows]
    known = {
        "has_turns": any(conversations),
        "pairs": all(pairs),
        "is_mixed": any(pairs) and not all(pairs),
        "chooses": any(map(_chooses, rows)),
    }
    remark = f"the data are the first {len(rows)} rows of {name}{f' that have at most {length} tokens' * bool(length)}"
    return rows, remark, known


def _chooses(row: Any) -> bool:
    """Return whether a row's messages have a field that chooses whether they are learned."""
    values = row.values() if isinstance(row, Mapping) else ()
    messages = [message for value in values if _is_messages(value) for message in value]
    return any(message.get(name) is not None for message in messages for name in CHOOSING)


def _fits(tokenizer: Any, length: int, row: Any) -> bool:
    """Return whether a row has at most `length` tokens, with the markup of its texts."""
    texts = [*own_data.iter_texts(row)]
    if sum(map(len, texts)) > own_data.MAX_CHARACTERS:
        return False
    tokens = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    return tokens + TEXT_TOKENS * len(texts) <= length
