"""Documents of a user's file as tokens of the model's own tokenizer, for training on what the job will train on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attncheck.smoke.worker.data.fields import BadData, Messages, Text
from attncheck.smoke.worker.data.readers import PIECE, first_line, texts

__all__ = ["BadData", "compact", "documents"]

LONGEST = 512  # tokens of a document, as of a row in a plan
REMEDY = "name a model whose folder holds its tokenizer's files, or leave --data out"


def documents(
    path: str,
    tokenizer_source: str,
    limit_tokens: int,
    field: str | None = None,
    longest: int = LONGEST,
    say: Callable[[str], None] = lambda note: None,
) -> list[Tensor]:
    """Return the first `limit_tokens` tokens of a file as documents of at most `longest` tokens: int64, on the CPU.

    The tokenizer is that of a model's folder or of the Hub's local cache. `say` is told what a reader should know: what
    was cut, that the file is short. Raises `BadData` and nothing else.
    """
    tokenizer = load(tokenizer_source)
    found: list[Tensor] = []
    left, count, cut = limit_tokens, 0, 0
    for where, text in texts(path, field, say):
        count += 1
        before = len(found)
        for ids in _encoded(tokenizer, text, where):
            pieces = torch.tensor(ids[:left], dtype=torch.int64).split(longest) if ids else ()
            found += pieces
            left -= min(left, len(ids))
            if not left:
                break
        cut += len(found) - before > 1
        if not left:
            break
    if cut:
        say(f"{cut} of the first {count} texts of {path} have more than {longest} tokens: each was cut into several")
    if left and found:
        say(f"{path} has {limit_tokens - left} tokens, {limit_tokens} were asked for")
    return _useful(found, path, count, tokenizer_source)


def _useful(found: list[Tensor], path: str, count: int, source: str) -> list[Tensor]:
    """Return the documents, where anything can be learned from them."""
    if not count:
        raise BadData(f"there is no text in {path}; name a file with text in it")
    if not found:
        raise BadData(f"the tokenizer of {source} makes no token of the {count} texts in {path}: are they empty?")
    if max(map(len, found)) < 2:
        raise BadData(f"every document of {path} is one token long, so that there is no next token to predict")
    return found


def compact(documents: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """Return documents whose tokens are numbered anew, 0 … n-1 in the old order, and n: what a small vocabulary needs.

    The same token stays the same token, so that what can be learned and what attends to what do not change.
    """
    if not documents:
        return [], 0
    known, numbers = torch.unique(torch.cat(list(documents)), return_inverse=True)
    return list(numbers.split([len(document) for document in documents])), len(known)


def load(source: str) -> Any:
    """Return the tokenizer of a model: its own files, no code of its own, no network. Raises `BadData`."""
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # damaged files make the libraries underneath raise anything
        raise BadData(f"{_lacking(source, error)}; {REMEDY}") from None
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # what transformers makes of no files at all
        raise BadData(f"{source} holds no tokenizer files; {REMEDY}")
    return tokenizer


def _lacking(source: str, error: Exception) -> str:
    folder = Path(source or "/nowhere")
    if folder.is_dir() and not any(_of_a_tokenizer(child.name) for child in folder.iterdir()):
        return f"{source} holds no tokenizer files"
    if isinstance(error, OSError) and not folder.is_dir():
        return f"the tokenizer of {source} is neither in a folder here nor in the Hub's local cache"
    return f"the tokenizer of {source} cannot be loaded ({type(error).__name__}: {first_line(error)})"


def _of_a_tokenizer(name: str) -> bool:
    return any(word in name for word in ("token", "vocab", "tekken")) or name.endswith(".model")


def _encoded(tokenizer: Any, text: Text, where: str) -> Iterator[list[int]]:
    """Yield the tokens of a text, a piece of it at a time; only the first has the tokenizer's special tokens before."""
    templated = not isinstance(text, str)
    words = _written(tokenizer, text, where) if not isinstance(text, str) else text
    words = words.encode("utf-8", "replace").decode()  # JSON may hold half a surrogate pair
    for start in range(0, len(words), PIECE):
        try:
            ids = tokenizer.encode(
                words[start : start + PIECE], add_special_tokens=not templated and not start, verbose=False
            )
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise BadData(f"the tokenizer cannot take {where}: {reason}") from None
        yield [int(token) for token in ids]


def _written(tokenizer: Any, messages: Messages, where: str) -> str:
    """Return a conversation as the tokenizer's chat template writes it, or plainly where it has none."""
    if not getattr(tokenizer, "chat_template", None):
        return "\n".join(f"{message.get('role', '')}: {_content(message)}".strip(": \n") for message in messages)
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False))
    except Exception as error:  # a template raises what its author wrote
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise BadData(f"the tokenizer's chat template refuses the messages in {where}: {reason}") from None


def _content(message: Any) -> str:
    """Return the text of a message; of one in parts, that of its parts of text."""
    content = message.get("content") or ""
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content)
