"""Labels of a model that computes only the logits which they need: they are as wide as those, not as the rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attncheck.rehearsal.worker.records import IGNORED, spread_labels

NONE = IGNORED
IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 0]])
LABELS = torch.tensor([[NONE, NONE, NONE, 4, 5, 6], [NONE, NONE, NONE, NONE, 7, NONE]])


def spread(labels: torch.Tensor, rows: int = 2, options: dict[str, Any] | None = None, **tensors: torch.Tensor) -> Any:
    """Return the labels of a call with the first rows."""
    return spread_labels({"input_ids": IDS[:rows], "labels": labels, **tensors}, options or {})["labels"].tolist()


@pytest.mark.parametrize("name", ["logits_to_keep", "num_logits_to_keep"])
def test_the_last_logits(name: str) -> None:
    """ms-swift keeps one token before the first target."""
    assert spread(LABELS[:, -4:], options={name: 4}) == LABELS.tolist()


def test_logits_that_a_mask_selects() -> None:
    """ms-swift keeps the tokens before targets, and the last one: gaps between answers are left out."""
    labels = torch.tensor([[NONE, 2, NONE, 4, 5, NONE]])
    before = torch.tensor([True, False, True, True, False, True])
    assert spread(torch.tensor([[NONE, 2, 4, 5]]), 1, logits_to_keep=before) == labels.tolist()


def test_a_label_moved_in_the_kept_part_stays_moved() -> None:
    """It is judged at the token that the loss compares it with."""
    moved = LABELS[:, -4:].roll(1, 1)
    assert spread(moved, options={"logits_to_keep": 4}) == [[NONE] * 4 + [4, 5], [NONE] * 5 + [7]]


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (LABELS, {"logits_to_keep": 4}),  # of whole rows
        (LABELS[:, -4:], {}),
        (LABELS[:, -4:], {"logits_to_keep": 3}),
        (LABELS[:, 0], {"logits_to_keep": 1}),  # of rows
        (LABELS[:, -4:], {"logits_to_keep": 0}),
    ],
)
def test_other_labels_stay_as_they_are(labels: torch.Tensor, options: dict[str, Any]) -> None:
    assert spread(labels, options=options) == labels.tolist()
