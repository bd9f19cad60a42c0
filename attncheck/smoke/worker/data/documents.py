"""Reads a user's file into documents of the model's own tokenizer, to train on what the job will train on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attncheck.smoke.worker.data.fields import BadData, Messages, Text
from attncheck.smoke.worker.data.readers import PIECE_CHARS, read_texts, summarize_error
from attncheck.workers.inside.paths import user_path

__all__ = ["BadData", "load_documents", "renumber_tokens"]

MAX_DOCUMENT_TOKENS = 512  # tokens of a document, as of a row in a plan
TOKENIZER_FIX = "name a model whose folder holds its tokenizer's files, or leave --data out"


def load_documents(
    path: str,
    tokenizer_source: str,
    limit_tokens: int,
    field: str | None = None,
    max_length: int = MAX_DOCUMENT_TOKENS,
    report_progress: Callable[[str], None] = lambda note: None,
) -> list[Tensor]:
    """Return the first `limit_tokens` tokens of a file as documents of at most `max_length` tokens: int64, on the CPU.

    The tokenizer is that of a model's folder or of the Hub's local cache. `report_progress` gets notes for the user:
    what was cut, that the file is short. Raises `BadData` and nothing else.
    """
    tokenizer = load_tokenizer(tokenizer_source)
    tokenized: list[Tensor] = []
    remaining, text_count, cut_count = limit_tokens, 0, 0
    for location, text in read_texts(path, field, report_progress):
        text_count += 1
        previous_count = len(tokenized)
        for token_ids in _encode_text(tokenizer, text, location):
            pieces = torch.tensor(token_ids[:remaining], dtype=torch.int64).split(max_length) if token_ids else ()
            tokenized += pieces
            remaining -= min(remaining, len(token_ids))
            if not remaining:
                break
        cut_count += len(tokenized) - previous_count > 1
        if not remaining:
            break
    if cut_count:
        report_progress(
            f"{cut_count} of the first {text_count} texts of {path} have more than {max_length} tokens: "
            "each was cut into several"
        )
    if remaining and tokenized:
        report_progress(f"{path} has {limit_tokens - remaining} tokens, {limit_tokens} were asked for")
    return _require_usable(tokenized, path, text_count, tokenizer_source)


def _require_usable(tokenized: list[Tensor], path: str, text_count: int, source: str) -> list[Tensor]:
    """Return the documents. Raises `BadData` where nothing can be learned from them."""
    if not text_count:
        raise BadData(f"there is no text in {path}; name a file with text in it")
    if not tokenized:
        raise BadData(f"the tokenizer of {source} makes no token of the {text_count} texts in {path}: are they empty?")
    if max(map(len, tokenized)) < 2:
        raise BadData(f"every document of {path} is one token long, so that there is no next token to predict")
    return tokenized


def renumber_tokens(documents: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """Return documents whose tokens are renumbered 0 … n-1 in the old order, and n: the size of vocabulary they need.

    The same token stays the same token, so that what can be learned and what attends to what do not change.
    """
    if not documents:
        return [], 0
    distinct, indices = torch.unique(torch.cat(list(documents)), return_inverse=True)
    return list(indices.split([len(document) for document in documents])), len(distinct)


def load_tokenizer(source: str) -> Any:
    """Return the tokenizer of a model from its files, without remote code and without network. Raises `BadData`."""
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(user_path(source), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # damaged files make the libraries underneath raise anything
        raise BadData(f"{_describe_missing_tokenizer(source, error)}; {TOKENIZER_FIX}") from None
    if set(tokenizer.get_vocab()) <= set(
        tokenizer.all_special_tokens
    ):  # what transformers returns where there are no files at all
        raise BadData(f"{source} holds no tokenizer files; {TOKENIZER_FIX}")
    return tokenizer


def _describe_missing_tokenizer(source: str, error: Exception) -> str:
    folder = Path(user_path(source) or "/nowhere")
    if folder.is_dir() and not any(_is_tokenizer_file(child.name) for child in folder.iterdir()):
        return f"{source} holds no tokenizer files"
    if isinstance(error, OSError) and not folder.is_dir():
        return f"the tokenizer of {source} is neither in a folder here nor in the Hub's local cache"
    return f"the tokenizer of {source} cannot be loaded ({type(error).__name__}: {summarize_error(error)})"


def _is_tokenizer_file(name: str) -> bool:
    return any(word in name for word in ("token", "vocab", "tekken")) or name.endswith(".model")


def _encode_text(tokenizer: Any, text: Text, location: str) -> Iterator[list[int]]:
    """Yield the token ids of a text, PIECE_CHARS characters at a time, special tokens before the first alone."""
    is_conversation = not isinstance(text, str)
    plain_text = _render_conversation(tokenizer, text, location) if not isinstance(text, str) else text
    plain_text = plain_text.encode("utf-8", "replace").decode()  # JSON may hold half a surrogate pair
    for start in range(0, len(plain_text), PIECE_CHARS):
        try:
            token_ids = tokenizer.encode(
                plain_text[start : start + PIECE_CHARS],
                add_special_tokens=not is_conversation and not start,
                verbose=False,
            )
        except Exception as error:
            reason = f"{type(error).__name__}: {summarize_error(error)}"
            raise BadData(f"the tokenizer cannot take {location}: {reason}") from None
        yield [int(token) for token in token_ids]


def _render_conversation(tokenizer: Any, messages: Messages, location: str) -> str:
    """Return a conversation as the tokenizer's chat template renders it, or as plain lines where it has none."""
    if not getattr(tokenizer, "chat_template", None):
        return "\n".join(f"{message.get('role', '')}: {_message_text(message)}".strip(": \n") for message in messages)
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False))
    except Exception as error:  # a template raises what its author likes
        reason = f"{type(error).__name__}: {summarize_error(error)}"
        raise BadData(f"the tokenizer's chat template refuses the messages in {location}: {reason}") from None


def _message_text(message: Any) -> str:
    """Return the text of a message; where its content is in parts, the text parts joined."""
    content = message.get("content") or ""
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content)
