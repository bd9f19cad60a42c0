"""What a model's tokenizer files say of padding.

Read in transformers 4.57.3 and 5.23.0 (`tokenization_utils_base.py`): tokenizer_config.json comes first and
special_tokens_map.json fills what it leaves out; a token is a text or an object with its text in "content".
tokenizer.json, of many megabytes, is not read.
"""

from __future__ import annotations

from ..facts import absent, known
from . import files
from .values import table, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def look(folder: str, documents: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the record `snapshot.Tokenizer` as a fact."""
    config = files.parsed(folder, "tokenizer_config.json", documents)
    special = files.parsed(folder, "special_tokens_map.json", documents)
    if "known" not in config and "known" not in special:
        return config
    document, fallback = table(config.get("known")), table(special.get("known"))
    return known(
        {
            "padding_side": text(document, "padding_side"),
            "pad_token": _token("pad_token", document, fallback),
            "eos_token": _token("eos_token", document, fallback),
        }
    )


def _token(name: str, document: dict[str, Any], fallback: dict[str, Any]) -> dict[str, Any]:
    for source in (document, fallback):
        found = source.get(name)
        if isinstance(found, dict):
            found = found.get("content")
        if found is not None:
            return text({name: found}, name)
    return absent("the tokenizer's files set no " + name)
