"""Reads the padding settings in a model's tokenizer files.

Read in transformers 4.57.3 and 5.23.0 (`tokenization_utils_base.py`): tokenizer_config.json comes first and
special_tokens_map.json fills what it leaves out; a token is a text or an object with its text in "content".
tokenizer.json, of many megabytes, is not read.
"""

from __future__ import annotations

from ..facts import absent, known
from . import files
from .values import as_object, read_str

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def collect_tokenizer(folder: str, documents: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the record `core.model.Tokenizer` as a fact."""
    config = files.read_json(folder, "tokenizer_config.json", documents)
    special = files.read_json(folder, "special_tokens_map.json", documents)
    if "known" not in config and "known" not in special:
        return config
    document, fallback = as_object(config.get("known")), as_object(special.get("known"))
    return known(
        {
            "padding_side": read_str(document, "padding_side"),
            "pad_token": _read_token("pad_token", document, fallback),
            "eos_token": _read_token("eos_token", document, fallback),
        }
    )


def _read_token(name: str, document: dict[str, Any], fallback: dict[str, Any]) -> dict[str, Any]:
    for settings in (document, fallback):
        token = settings.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None:
            return read_str({name: token}, name)
    return absent("the tokenizer's files set no " + name)
