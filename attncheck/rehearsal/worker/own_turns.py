"""Reads the turns of the user's rows, so that labels can be judged by role."""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attncheck.core.rehearsal import ANSWER_COLUMNS, PROMPT_COLUMNS
from attncheck.rehearsal.worker import own_data
from attncheck.rehearsal.worker.turns import FILE, SHAREGPT, THINK, THOUGHT, Conversation, Turn

TEXT_TOKENS = 12  # a generous number of tokens of markup around each text of a row: a role, and what it says
ROLES = {name: role for role, name in SHAREGPT.items()} | {role: role for role in SHAREGPT} | {"model": "assistant"}
QUESTIONS = ("system", *PROMPT_COLUMNS, "input")
ANSWERS = (*ANSWER_COLUMNS, "output")
PAIR = ("prompt", "completion")


def read_conversation(row: Any) -> Conversation:
    """Return the turns of a row, () if their texts or roles are not plain."""
    if not isinstance(row, Mapping):
        return ()
    listed = [value for value in row.values() if isinstance(value, list) and value]
    listed = [value for value in listed if all(isinstance(message, Mapping) for message in value)]
    if listed and not all(isinstance(row.get(name), list) for name in PAIR):
        listed = listed[:1]
    turns = [turn for value in listed for message in value for turn in _read_message(message)]
    if not listed:
        columns = [("system" if name == "system" else "user", row.get(name)) for name in QUESTIONS]
        columns += [("assistant", row.get(name)) for name in ANSWERS]
        turns = [(role, value) for role, value in columns if isinstance(value, str) and value.strip()]
    roles = [role for role, _ in turns]
    return tuple(turns) if "user" in roles and roles[-1:] == ["assistant"] and "" not in roles else ()


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


def lay_rows(name: str, folder: Path, tokenizer: Any, length: int) -> tuple[list[Any], str]:
    """Write the first rows of the user's data, and their turns; return them and a remark. Raises `Unbuildable`.

    `length` is the most tokens that a row may have, 0 if the launch truncates rows at the same length as the test.
    """
    keep = functools.partial(_fits, tokenizer, length) if length else own_data.keep_any
    rows = own_data.lay_data(name, folder / "data", keep)
    (folder / FILE).write_text(json.dumps([read_conversation(row) for row in rows]))
    return (
        rows,
        f"the data are the first {len(rows)} rows of {name}{f' that have at most {length} tokens' * bool(length)}",
    )


def _fits(tokenizer: Any, length: int, row: Any) -> bool:
    """Return whether a row has at most `length` tokens, with the markup of its texts."""
    texts = [*own_data.iter_texts(row)]
    characters = sum(map(len, texts))
    if characters > own_data.MAX_CHARACTERS:
        return False
    tokens = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    return tokens + TEXT_TOKENS * len(texts) <= length


def describe_turns(rows: Sequence[Any]) -> dict[str, bool]:
    """Return whether turns of rows are known, and whether all rows are a prompt and its completion, or none."""
    pairs = [is_pair(row) for row in rows]
    has_turns = any(map(read_conversation, rows))
    return {"has_turns": has_turns, "pairs": all(pairs), "is_mixed": any(pairs) and not all(pairs)}
