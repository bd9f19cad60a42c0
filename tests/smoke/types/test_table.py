"""Each row of `knowledge.wrong_models` against the installed transformers: by the independent judge, and by reading.

A row that fails here under a new transformers has been fixed there: give it its release in `before`.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import transformers
from packaging.version import Version

from attncheck.doctor.knowledge.wrong_models import WRONG_MODELS, WrongModel
from attncheck.doctor.probes.payload.model.mask_calls import find_mask_calls
from tests.smoke.types.judge import judge
from tests.smoke.types.tiny import tiny_model

LIMIT = 1e-4  # sound ones are at 1e-5 at most, wrong ones at 1e-2 at least
QUESTIONS = {"any": "not causal", "packed": "packed", "left padding": "left"}
INSTALLED = Version(transformers.__version__)
CASES = [
    pytest.param(row, name, implementation, id=f"{name}-{implementation}-{row.batching}",
                 marks=() if name == row.model_types[0] and implementation == row.implementations[0]
                 else pytest.mark.nightly)
    for row in WRONG_MODELS
    for name in row.model_types
    for implementation in row.implementations
]  # fmt: skip


def is_wrong(model_type: str, implementation: str, question: str) -> bool:
    answer = judge(tiny_model(model_type, implementation))[question]
    assert isinstance(answer, float), answer
    return answer > LIMIT


@pytest.mark.parametrize(("row", "model_type", "implementation"), CASES)
def test_row(row: WrongModel, model_type: str, implementation: str) -> None:
    in_range = Version(row.since) <= INSTALLED and (not row.before or Version(row.before) > INSTALLED)
    assert is_wrong(model_type, implementation, QUESTIONS[row.batching]) is in_range
    for way in row.works:
        if way in ("padding", "right padding"):
            assert not is_wrong(model_type, implementation, "right")
            assert way == "right padding" or not is_wrong(model_type, implementation, "left")
        else:
            assert not is_wrong(model_type, way, QUESTIONS[row.batching])


@pytest.mark.parametrize("row", [row for row in WRONG_MODELS if row.shown_by], ids=lambda row: row.model_types[0])
def test_the_installed_files_show_it(row: WrongModel) -> None:
    in_range = Version(row.since) <= INSTALLED and (not row.before or Version(row.before) > INSTALLED)
    mapping = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    for model_type in row.model_types:
        text = Path(inspect.getfile(getattr(transformers, mapping[model_type]))).read_text(encoding="utf-8")
        assert (re.search(row.shown_by, "\n".join(find_mask_calls(text))) is not None) is in_range, model_type


def test_mask_calls_of_a_sound_model_show_nothing() -> None:
    text = Path(inspect.getfile(transformers.LlamaForCausalLM)).read_text(encoding="utf-8")
    calls = "\n".join(find_mask_calls(text))
    assert "position_ids" in calls
    assert not any(
        re.search(row.shown_by, calls) for row in WRONG_MODELS if row.shown_by and "skip" not in row.shown_by
    )
