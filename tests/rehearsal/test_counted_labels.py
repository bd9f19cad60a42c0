"""A loss that is divided by labels which nothing predicts is named if rows are so short that it matters."""

from __future__ import annotations

from typing import Any

import pytest

from attncheck.core.rehearsal import Normalisation
from attncheck.rehearsal.worker.checks import loss
from attncheck.rehearsal.worker.definitions import Definition, Explanation


@pytest.mark.parametrize(
    ("name", "length", "count"),
    [("step_labels", 8, 1), ("rank_labels", 8, 1), ("step_labels", 64, 0), ("step_tokens", 8, 0)],
)
def test_short_rows_show_a_first_label_that_counts(
    name: Normalisation, length: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(evidence: Any, definition: Definition) -> float:
        return (length - 1) / (length if definition.normalisation.endswith("labels") else length - 1)

    monkeypatch.setattr(loss, "compute_loss", compute)
    evidence: Any = None
    assert len([*loss._find_counted(evidence, Explanation(Definition(name)))]) == count
