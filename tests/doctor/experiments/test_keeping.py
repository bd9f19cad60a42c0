"""Whether rows keep their tokens, measured on trainers and tokenizers of our own, right and with a fault."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attncheck.doctor.experiments.worker import frameworks, keeping, main


class Rows:
    """A trainer that packs documents into rows, in their order; `fault` is what it does wrong."""

    def __init__(self, documents: list[list[int]], layout: str, fault: str) -> None:
        self.rows: list[list[int]] = []
        for document in documents:
            fits = self.rows and len(self.rows[-1]) + len(document) <= frameworks.MAX_LENGTH
            is_alone = fault == "one document a row" and frameworks.MAX_LENGTH % 64
            if layout == keeping.PACKED and fits and not is_alone:
                self.rows[-1] = self.rows[-1] + document
            else:
                self.rows.append(list(document))
        if layout == keeping.PACKED and fault == "the last row is dropped":
            self.rows.pop()

    def get_train_dataloader(self) -> list[dict[str, Any]]:
        padded = [row + [0] * (frameworks.MAX_LENGTH - len(row)) for row in self.rows]
        masks = [[1] * len(row) + [0] * (frameworks.MAX_LENGTH - len(row)) for row in self.rows]
        return [
            {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([mask])}
            for ids, mask in zip(padded, masks)
        ]


@pytest.mark.parametrize(
    ("fault", "parts"),
    [("", ["", ""]), ("one document a row", ["", "rows"]), ("the last row is dropped", ["tokens", "tokens"])],
)
def test_packed_rows_are_compared_with_padded_ones(fault: str, parts: list[str]) -> None:
    def make(folder: str, documents: list[list[int]], layout: str, *_: object) -> Rows:
        return Rows(documents, layout, fault)

    plain = frameworks.MAX_LENGTH
    assert [item["part"] for item in keeping.measure_packing("own", make, "")] == parts
    assert plain == frameworks.MAX_LENGTH


@pytest.mark.parametrize("is_faulty", [False, True])
def test_windows_have_all_tokens_of_a_text(is_faulty: bool) -> None:
    tokenizer = main._make_tokenizer()

    class Cut:
        truncation_side = ""

        def __call__(self, *arguments: Any, **options: Any) -> Any:
            rows = tokenizer(*arguments, **options)["input_ids"]
            return {"input_ids": rows[:1] if is_faulty else rows}

    measured = list(keeping.measure_windows(Cut()))
    assert [item["part"] for item in measured] == ["tokens" if is_faulty else ""] * 2
    assert all((item["ratio"] < 0.5) is is_faulty for item in measured)
