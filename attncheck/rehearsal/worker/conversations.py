"""Makes conversations in which every turn can be identified in a batch, with their model and tokenizer.

A turn's text is words in an order that no other turn has. The tokenizer is the model's own, with its own chat template,
if it is available locally. It need not encode a word as one token, because turns are found by their text.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attncheck.core.rehearsal import DataForm, Pictures
from attncheck.rehearsal.worker import materials
from attncheck.rehearsal.worker.turns import FILE, THINK, THOUGHT, Conversation, Turn
from attncheck.rehearsal.worker.vocabulary import MADE, NOUNS

TURN_WORDS = (6, 10)  # least and most words in a turn
SYSTEM_EVERY = 3  # one of so many rows has a system turn


def prepare(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Handle a job of one item: fill `message["stage"]` with model/, conversations.json and data/train.jsonl.

    `message["tokenizer"]` is the model or folder with the tokenizer to use, "" for a synthetic one. With
    `message["has_fields"]` a message's thought and tool calls are its fields, which the chat template renders.
    """
    from attncheck.smoke.worker.models.architectures import Unbuildable

    (item,) = message["items"]
    send({"started": item})
    folder, name = Path(message["stage"]), str(message["tokenizer"])
    try:
        tokenizer, remarks = make_model(message, folder, name)
    except Unbuildable as error:
        send({"unanswered": str(error)})
        return
    words = NOUNS.split() if name else list(MADE.texts)
    parts = list_parts(tokenizer, message["form"], message["has_fields"])
    makes_pictures = bool(message["pictures"]) and not name
    parts -= {"system"} if makes_pictures else set()  # the first turn has the image
    conversations = list(make_conversations(message["documents"], message["seed"], words, parts))
    images: dict[str, Any] = {"images": []} if message["pictures"] == "tagged" else {}
    rows = [make_row(conversation, message["form"], "reasoning" in parts) | images for conversation in conversations]
    rows, _ = materials.fit_rows(rows, message)
    (folder / FILE).write_text(json.dumps(conversations))
    materials.save_rows(rows, folder, message["as_parquet"])
    if makes_pictures:
        rows = _add_pictures(rows, folder, message["pictures"])
        materials.save_rows(rows, folder, False)
    send({"item": item, "answer": {"remarks": remarks}})


def make_model(message: Mapping[str, Any], folder: Path, name: str) -> tuple[Any, list[str]]:
    """Make the small model; return its tokenizer and remarks. Raises `Unbuildable`."""
    from attncheck.rehearsal.worker import light, own_model

    if message["pictures"] and not name:
        from transformers import AutoTokenizer

        _, _, remarks = materials.make_small_model(message, folder)
        return AutoTokenizer.from_pretrained(folder / "model", local_files_only=True), remarks
    if name:
        own_model.lay_tokenizer(name, folder / "model")
    if not name:
        tokenizer, remarks = light.make_tokenizer(folder / "model"), []
    elif message.get("real_data"):  # rows that are not rendered here
        tokenizer, remarks = light.load_tokenizer(folder / "model"), []
    else:
        tokenizer = own_model.load_tokenizer(name, folder / "model", from_file=True)
        has_template = getattr(tokenizer, "chat_template", None)
        remarks = [] if has_template else [f"the tokenizer of {name} has no chat template"]
    light.save_model(tokenizer, message["seed"], folder / "model")
    return tokenizer, remarks


def _add_pictures(rows: list[dict[str, Any]], folder: Path, form: Pictures) -> list[dict[str, Any]]:
    """Return rows with an image in two of three, if the small model's processor accepts images."""
    from attncheck.rehearsal.worker import multimodal

    if not (folder / multimodal.FOLDER).exists():
        return rows
    documents: list[dict[str, Any]] = [{} for _ in rows]
    multimodal.lay_pictures(documents, folder)
    return multimodal.add_pictures(rows, documents, folder, form)


def list_parts(tokenizer: Any, form: DataForm, has_fields: bool = False) -> frozenset[str]:
    """Return the parts of conversations that the chat template supports.

    They are "system", "thinking", "turns" (more than one question), "tools", and "reasoning" if a thought is a field of
    its message.
    """
    if form not in ("messages", "conversations"):
        return frozenset()
    question, answer = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
    parts = {
        "system": [{"role": "system", "content": "three"}, question, answer],
        "turns": [question, answer, question, answer],
    }
    if not getattr(tokenizer, "chat_template", None):
        return frozenset(parts)
    written = {"system": ("three",)} if has_fields else {}  # other frameworks have their templates
    taken = {part for part, messages in parts.items() if _renders(tokenizer, messages, written.get(part, ()))}
    taken |= {"thinking"} if "</think>" in str(tokenizer.chat_template) else set()
    if has_fields:
        called: Conversation = (("user", "one"), ("call", "two"), ("tool", "three"), ("assistant", "four"))
        thought: Conversation = (("user", "one"), ("thinking", "two"), ("assistant", "four"))
        taken |= {"tools"} if _renders(tokenizer, make_row(called, form)["messages"], ("two", "three")) else set()
        messages = make_row(thought, form, True)["messages"]
        taken |= {"thinking", "reasoning"} if _renders(tokenizer, messages, ("two",)) else set()
    return frozenset(taken)


def _renders(tokenizer: Any, messages: list[dict[str, Any]], texts: tuple[str, ...] = ()) -> bool:
    """Return whether the chat template accepts messages and writes these texts of theirs."""
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # a template's author decides its exceptions
        return False
    return all(part in text for part in texts)


def make_conversations(count: int, seed: int, words: list[str], parts: frozenset[str]) -> Iterator[Conversation]:
    """Yield conversations in which no two turns begin with the same four words."""
    chance = random.Random(seed)
    beginnings: set[tuple[str, ...]] = set()

    def write() -> str:
        while True:
            text = [chance.choice(words) for _ in range(chance.randint(*TURN_WORDS))]
            if tuple(text[:4]) not in beginnings:
                beginnings.add(tuple(text[:4]))
                return " ".join(text)

    for number in range(count):
        turns: list[Turn] = [("system", write())] * ("system" in parts and number % SYSTEM_EVERY == 0)
        for _ in range(2 if "turns" in parts else 1):
            turns.append(("user", write()))
            if "tools" in parts:
                turns += [("call", write()), ("tool", write())]
            if "thinking" in parts:
                turns.append(("thinking", write()))
            turns.append(("assistant", write()))
        yield tuple(turns)


def make_row(conversation: Conversation, form: DataForm, has_reasoning: bool = False) -> dict[str, Any]:
    """Return a conversation as a row of a data set; a thought is part of the following answer, or its field."""
    messages: list[dict[str, Any]] = []
    thought: dict[str, str] = {}
    for role, text in conversation:
        if role == "thinking":
            thought = {"reasoning_content": text} if has_reasoning else {"content": f"{THINK}{text}{THOUGHT}"}
        elif role == "call":
            function = {"name": "search", "arguments": {"query": text}}
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
            )
        else:
            messages.append({"role": role, **thought, "content": thought.get("content", "") + text})
            thought = {}
    return materials.arrange_messages(messages, form)


def read_conversations(folder: Path) -> list[Conversation]:
    """Return the conversations of a folder."""
    content = json.loads((folder / FILE).read_text())
    return [tuple((role, text) for role, text in turns) for turns in content]
