"""Determines the padding token of a user's own tokenizer, which is often also a token of documents."""

from collections.abc import Sequence

from attncheck.rehearsal.worker.records import RankRecord


def choose_filler(ranks: Sequence[RankRecord], padding: int | None) -> int:
    """Return the padding token: the tokenizer's, or one that occurs nowhere, if the tokenizer's is in documents too.

    Documents are the tokens that masks do not hide: if eos_token is the padding, it also ends documents, and only the
    masks distinguish them.
    """
    shown: set[int] = set()
    for call in (call for record in ranks for call in record.calls):
        mask, tokens = call.tensors.get("attention_mask"), call.input_ids
        if mask is not None and mask.shape == tokens.shape:
            tokens = tokens[mask != 0]
        shown.update(tokens.flatten().tolist())
    if padding is not None and padding not in shown:
        return padding
    return next(token for token in range(len(shown) + 1) if token not in shown)
