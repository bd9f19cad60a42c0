"""Measures whether rows keep their tokens: the windows of a long text, and documents that a trainer packs.

It runs in a child of the examined interpreter, knows nothing of attncheck, and writes to a temporary folder alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from . import frameworks

WINDOWS, PACKED = "windows of a long text", "packing"
WIDTH, STRIDE = 10, 3  # tokens of a window, and those that two neighbours share
SIZES = (64, 66)  # a power of two, and another number
DOCUMENTS = [[(7 * number + 3 * place) % 50 for place in range(9 + number % 8)] for number in range(32)]
SLACK = 1.5  # first fit of the longest documents first needs at most 11/9 of the best number of rows


def measure_windows(tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the share of a long text's tokens that its windows have, if it is cut on the right, and on the left."""
    words = [f"w{number}" for number in range(50)]
    for tokenizer.truncation_side in ("right", "left"):
        options = {"truncation": True, "max_length": WIDTH, "stride": STRIDE, "return_overflowing_tokens": True}
        rows = tokenizer(" ".join(words), add_special_tokens=False, **options)["input_ids"]
        kept = len({token for row in rows for token in row}) / len(words)
        yield {
            "trainer": "tokenizers", "variant": f"cut on the {tokenizer.truncation_side}", "change": WINDOWS,
            "ratio": kept, "part": "tokens" if kept < 1 else "",
        }  # fmt: skip


def measure_packing(name: str, make: frameworks.Maker, folder: str) -> Iterator[dict[str, Any]]:
    """Yield whether packed rows have the tokens of padded ones, and how many rows there are for each that is needed."""
    plain = frameworks.MAX_LENGTH
    try:
        for frameworks.MAX_LENGTH in SIZES:
            (whole, _), (tokens, rows) = (_count(make, folder, layout) for layout in ("padded", PACKED))
            needed, kept = -(-whole.total() // frameworks.MAX_LENGTH), tokens.total() / whole.total()
            part = "tokens" if tokens != whole else "rows" if rows > SLACK * needed else ""
            yield {
                "trainer": name, "variant": "sft", "setting": f"max_length={frameworks.MAX_LENGTH}", "change": PACKED,
                "ratio": rows / needed if part == "rows" else kept, "part": part,
            }  # fmt: skip
    finally:  # a refusal must not change the other measurements
        frameworks.MAX_LENGTH = plain


def _count(make: frameworks.Maker, folder: str, layout: str) -> tuple[Counter[int], int]:
    """Return how often an epoch has each token, without padding, and the number of rows."""
    tokens: Counter[int] = Counter()
    rows = 0
    for batch in make(folder, DOCUMENTS, layout, "sdpa", 1, 1).get_train_dataloader():
        mask, rows = batch.get("attention_mask"), rows + len(batch["input_ids"])
        is_marked = mask is not None and mask.shape == batch["input_ids"].shape
        tokens.update((batch["input_ids"][mask != 0] if is_marked else batch["input_ids"]).flatten().tolist())
    return tokens, rows
