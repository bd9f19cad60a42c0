"""Smoke's shrinking of configurations whose layers differ in more than their kind."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import transformers

from attncheck.smoke.worker.models.architectures import Architecture, Unbuildable
from attncheck.smoke.worker.models.build import build_model
from attncheck.smoke.worker.models.shrink import shrink_config


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


def test_what_cannot_be_cut_is_one_clear_line() -> None:
    import torch

    for model_type, reason in (("blt", "no decoder sizes"), ("xlnet", "no sequence length limit")):
        with pytest.raises(Unbuildable, match=reason):
            build_model(source(model_type), "eager", torch.float32, "cpu", 200, 0, False)
