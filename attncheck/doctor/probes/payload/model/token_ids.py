"""Reads the token ids in a model's files: those of its configuration and those of its tokenizer.

Read in transformers 5.17.0 (`tokenization_utils_base.py`, `configuration_utils.py`): a special token that the
vocabulary lacks is appended when the tokenizer is loaded. tokenizer.json has "added_tokens" before its long vocabulary;
the vocabulary is parsed only if a special token is nowhere in the file.
"""

from __future__ import annotations

import json
import os
from typing import Any

from .. import files as any_files
from . import files
from .values import as_object

MAX_TOKENIZER_BYTES = 40 << 20
MAX_HEAD_CHARACTERS = 4 << 20  # enough for a tokenizer with thousands of added tokens
SPECIAL = ("pad_token", "eos_token", "bos_token")
_ID_NAMES = ("pad_token_id", "eos_token_id", "bos_token_id")


def collect_config_ids(document: dict[str, Any], text_config: dict[str, Any], generation: dict[str, Any]) -> Any:
    """Return {"config.json: pad_token_id": [ids]} from the configuration, its text part and the generation config."""
    sources = [("config.json", document), ("generation_config.json", generation)]
    if text_config is not document:
        sources.insert(1, ("config.json text part", text_config))
    answer = {}
    for source, settings in sources:
        for name in _ID_NAMES:
            numbers = _as_ids(settings.get(name))
            if numbers:
                answer[source + ": " + name] = numbers
    return answer


def _as_ids(value: Any) -> list[int]:
    candidates = value if isinstance(value, list) else [value]
    return [number for number in candidates[:100] if type(number) is int and 0 <= number < 1 << 40]


def collect_added_tokens(folder: str, config: dict[str, Any], documents: dict[str, str] | None) -> dict[str, int]:
    """Return the added tokens of a tokenizer with their ids, from every file that lists them."""
    added: dict[str, int] = {}
    for number, token in as_object(config.get("added_tokens_decoder")).items():
        content = as_object(token).get("content")
        if isinstance(content, str) and number.isdecimal():
            added[content] = int(number)
    for text, identity in as_object(files.read_json(folder, "added_tokens.json", documents).get("known")).items():
        if type(identity) is int:
            added[text] = identity
    for token in _read_added_list(folder) if documents is None else []:
        entry = as_object(token)
        if isinstance(entry.get("content"), str) and type(entry.get("id")) is int:
            added[entry["content"]] = entry["id"]
    return {content: number for content, number in added.items() if 0 <= number < 1 << 40}


def _read_added_list(folder: str) -> Any:
    """Return the list "added_tokens" of tokenizer.json; [] if it does not precede the vocabulary."""
    head = any_files.read_text(os.path.join(folder, "tokenizer.json"), MAX_HEAD_CHARACTERS)
    start = head.find('"added_tokens"')
    start = head.find("[", start) if start >= 0 else -1
    if start < 0:
        return []
    try:
        return json.JSONDecoder().raw_decode(head, start)[0]
    except (ValueError, RecursionError):
        return []


def number_appended_tokens(folder: str, special: dict[str, str], added: dict[str, int]) -> dict[str, int]:
    """Return the ids that loading assigns to the `special` tokens that no vocabulary contains.

    Empty if the vocabulary is not in tokenizer.json, or cannot be read completely.
    """
    missing = {name: token for name, token in special.items() if token not in added}
    text = any_files.read_text(os.path.join(folder, "tokenizer.json"), MAX_TOKENIZER_BYTES + 1) if missing else ""
    if not text or len(text) > MAX_TOKENIZER_BYTES or any(_quote(token) in text for token in missing.values()):
        return {}
    length = max(_vocabulary_length(text), max(added.values(), default=-1) + 1)
    tokens = list(dict.fromkeys(missing.values()))
    return {name: length + tokens.index(token) for name, token in missing.items()} if length else {}


def _quote(token: str) -> str:
    return json.dumps(token, ensure_ascii=False)


def _vocabulary_length(text: str) -> int:
    try:
        vocabulary = as_object(as_object(json.loads(text)).get("model")).get("vocab")
    except (ValueError, RecursionError):
        return 0
    return len(vocabulary) if isinstance(vocabulary, (list, dict)) else 0
