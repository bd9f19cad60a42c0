"""Smoke's shrinking of configurations whose layers differ in more than their kind."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import transformers

from attncheck.smoke.worker.models.architectures import WINDOW, Architecture, Unbuildable
from attncheck.smoke.worker.models.build import build_model
from attncheck.smoke.worker.models.shrink import MAX_HIDDEN_SIZE, shrink_config


def source(model_type: str) -> Architecture:
    return Architecture(model_type, transformers.CONFIG_MAPPING[model_type]().to_dict())


def test_layers_keep_the_fields_of_their_own() -> None:
    config = shrink_config(source("gemma4_text"), 200)
    dims = [layer.head_dim for layer in config.per_layer_config]
    assert config.layer_types[-1] == "full_attention" and dims == [256] * (len(dims) - 1) + [512]


def test_two_hybrid_layers_are_kept_as_they_share_weights() -> None:
    for model_type in ("zamba", "zamba2"):
        config = shrink_config(source(model_type), 200)
        assert config.layer_types.count("hybrid") == 2, model_type
        assert len(config.layer_types) == config.num_hidden_layers
    assert config.hybrid_layer_ids == [i for i, kind in enumerate(config.layer_types) if kind == "hybrid"]


def test_linear_attention_keeps_two_heads_of_keys_and_the_width_is_cut() -> None:
    import torch

    for model_type, heads in (("qwen3_next", (2, 4)), ("olmo_hybrid", (2, 2)), ("kimi_linear", (2,))):
        model = build_model(source(model_type), "eager", torch.float32, "cpu", 200, 0, False)
        config: Any = model.config
        names = ("linear_num_heads", "linear_num_key_heads", "linear_num_value_heads")
        assert tuple(getattr(config, name) for name in names if hasattr(config, name)) == heads, model_type
        assert config.hidden_size <= MAX_HIDDEN_SIZE, model_type


@pytest.mark.parametrize(("is_used", "width"), [(True, WINDOW), (False, 4096)])
def test_a_window_is_cut_if_it_is_used(is_used: bool, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        @staticmethod
        def from_dict(document: dict[str, Any]) -> Any:
            config = transformers.Qwen2Config(use_sliding_window=is_used)
            config.sliding_window = document["sliding_window"]  # as transformers 4.49.0 has it
            return config

    monkeypatch.setattr(transformers, "CONFIG_MAPPING", {"qwen2": Held})
    document = {"model_type": "qwen2", "sliding_window": 4096}
    assert shrink_config(Architecture("qwen2", document), 200).sliding_window == width


def test_what_cannot_be_cut_is_one_clear_line() -> None:
    import torch

    for model_type, reason in (("blt", "no decoder sizes"), ("xlnet", "no sequence length limit")):
        with pytest.raises(Unbuildable, match=reason):
            build_model(source(model_type), "eager", torch.float32, "cpu", 200, 0, False)
