"""The dtype of 4-bit layers is read from config.json; transformers' own class has the same default."""

from __future__ import annotations

import importlib.util

import pytest

from attncheck.doctor.probes.payload.model.config import derive_model


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"load_in_4bit": True}, {"known": "float32"}),
        ({"load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"}, {"known": "bfloat16"}),
        ({"load_in_4bit": True, "bnb_4bit_compute_dtype": "torch.float16"}, {"known": "float16"}),
    ],
)
def test_the_dtype_is_read(settings: dict[str, object], expected: dict[str, str]) -> None:
    assert derive_model({"model_type": "llama", "quantization_config": settings})["quantised_dtype"] == expected


@pytest.mark.parametrize("settings", [None, [], {"load_in_8bit": True}, {"load_in_4bit": "yes"}])
def test_what_is_not_in_4_bits_has_none(settings: object) -> None:
    assert "absent" in derive_model({"model_type": "llama", "quantization_config": settings})["quantised_dtype"]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed here")
def test_the_fix_computes_in_bfloat16_where_the_default_is_float32() -> None:
    import torch
    from transformers import BitsAndBytesConfig

    assert BitsAndBytesConfig(load_in_4bit=True).bnb_4bit_compute_dtype == torch.float32
    fixed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    assert fixed.bnb_4bit_compute_dtype == torch.bfloat16
