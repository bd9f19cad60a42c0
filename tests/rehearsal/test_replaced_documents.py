"""Documents that a data set lacks, while it has others again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.rehearsal.worker.ledger import find_replaced
from attncheck.rehearsal.worker.segments import Segment


@pytest.mark.parametrize(
    ("held", "data_sets", "count"),
    [
        ([*range(90), *range(10)], 1, 1),  # the last ten are read from the start
        ([*range(90)], 1, 0),  # held out
        ([*range(100), *range(10)], 1, 0),  # repeated on purpose
        ([*range(90), *range(10)], 2, 0),  # other data sets have the same rows here
    ],
)
def test_rows_that_replace_others_are_named(held: list[int], data_sets: int, count: int) -> None:
    rows = [[Segment(document, 0, 8, 0, 8)] for document in held]
    ledger: Any = SimpleNamespace(held=rows, words=[()] * 100)
    evidence: Any = SimpleNamespace(data_sets=data_sets)
    lines = [*find_replaced(evidence, ledger)]
    assert len(lines) == count
    assert all("10 of 100 documents, such as 99," in line and "10 others, such as 0," in line for line in lines)
