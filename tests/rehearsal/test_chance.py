"""Rows that a program makes of token ids: words that some document has by chance prove nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.rehearsal.worker.evidence import Evidence


def make_piece(document: int, words: int) -> Any:
    segment = SimpleNamespace(document=document, words=words)
    return SimpleNamespace(segment=segment, tokens=range(words + 1), call=SimpleNamespace(description={}))


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        ([(7, 2), (-1, 1), (9, 3)], 0),  # no row has six words of a document in order
        ([(7, 2), (-1, 1), (9, 6)], 2),  # documents are mixed
        ([(7, 2), (9, 3)], 2),  # short documents
    ],
)
def test_short_pieces_next_to_other_words_are_not_judged(pieces: list[tuple[int, int]], count: int) -> None:
    step = SimpleNamespace(pieces=[make_piece(*piece) for piece in pieces])
    evidence: Any = SimpleNamespace(step=step)
    assert len(vars(Evidence)["judged_pieces"].func(evidence)) == count
