"""Attention functions that code registers without masks are seen, and registering a mask is what fixes them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from attncheck.doctor.probes.payload.model.registered_attention import find_unmasked_attentions
from attncheck.doctor.rules.models.attention_without_mask import write_registration

REGISTERS = 'ALL_ATTENTION_FUNCTIONS.register("own", forward)\n'
MASKED = 'masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register("own", make_mask)\n'


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (REGISTERS, {"own": 1}),
        ('import x\nALL_ATTENTION_FUNCTIONS["own"] = forward', {"own": 2}),
        ('modeling_utils.AttentionInterface.register("own", f)', {"own": 1}),
        (REGISTERS + MASKED, {}),
        (REGISTERS + 'AttentionMaskInterface.register("own", make_mask)', {}),
        (REGISTERS + "ALL_MASK_ATTENTION_FUNCTIONS.register(name, make_mask)", {}),
        ('ALL_ATTENTION_FUNCTIONS["sdpa"] = faster', {}),
        ("ALL_ATTENTION_FUNCTIONS.register(name, f)\nother.register('x', f)", {}),
        ("def broken(:", {}),
    ],
)
def test_what_is_registered_without_a_mask_is_read(source: str, names: dict[str, int]) -> None:
    assert find_unmasked_attentions(source) == names


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed here")
def test_padding_is_seen_without_a_mask_function_and_no_longer_with_it() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    ALL_ATTENTION_FUNCTIONS.register("own_attention", ALL_ATTENTION_FUNCTIONS["sdpa"])
    model = LlamaForCausalLM._from_config(LlamaConfig(vocab_size=32, **sizes), attn_implementation="own_attention")
    alone = torch.tensor([[5, 6, 7, 8]])
    padded, mask = torch.tensor([[0, 0, 5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1, 1, 1]])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)

    def difference() -> float:
        with torch.no_grad():
            row = model(padded, attention_mask=mask, position_ids=positions).logits[:, 2:]
            return float((row - model(alone).logits).abs().max())

    try:
        assert difference() > 1e-3
        exec(write_registration("own_attention"), {})
        assert difference() < 1e-5
    finally:
        ALL_ATTENTION_FUNCTIONS._global_mapping.pop("own_attention", None)
        ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.pop("own_attention", None)
