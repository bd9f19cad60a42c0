"""Reads the padding settings in a model's tokenizer files.

Read in transformers 4.57.3 and 5.23.0 (`tokenization_utils_base.py`): tokenizer_config.json takes precedence and
special_tokens_map.json supplies what it leaves out. A token is a text or an object with its text in "content".
"""

from __future__ import annotations

from typing import Any

from ..facts import absent, known
from . import files, token_ids
from .values import as_object, read_str


def collect_tokenizer(folder: str, documents: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the record `core.model.Tokenizer` as a fact."""
    config = files.read_json(folder, "tokenizer_config.json", documents)
    tokens_map = files.read_json(folder, "special_tokens_map.json", documents)
    if "known" not in config and "known" not in tokens_map:
        return config
    document, fallback = as_object(config.get("known")), as_object(tokens_map.get("known"))
    special = {name: _read_token(name, document, fallback) for name in token_ids.SPECIAL}
    answer = {
        "padding_side": read_str(document, "padding_side"),
        "pad_token": special["pad_token"],
        "eos_token": special["eos_token"],
    }
    answer.update(_number_tokens(folder, document, special, documents))
    return known(answer)


def _number_tokens(
    folder: str, document: dict[str, Any], special: dict[str, dict[str, Any]], documents: dict[str, str] | None
) -> dict[str, Any]:
    added = token_ids.collect_added_tokens(folder, document, documents)
    texts = {name: fact["known"] for name, fact in special.items() if "known" in fact}
    last = max(added, key=lambda token: added[token]) if added else ""
    nothing = absent("the tokenizer's files list no added tokens")
    return {
        "added_token": known(last[:200]) if added else nothing,
        "added_token_id": known(added[last]) if added else nothing,
        "token_ids": {name: added[token] for name, token in texts.items() if token in added},
        "appended": {} if documents is not None else token_ids.number_appended_tokens(folder, texts, added),
    }


def _read_token(name: str, document: dict[str, Any], fallback: dict[str, Any]) -> dict[str, Any]:
    for settings in (document, fallback):
        token = settings.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None:
            return read_str({name: token}, name)
    return absent("the tokenizer's files set no " + name)
