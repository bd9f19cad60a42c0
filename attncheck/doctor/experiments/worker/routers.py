"""Measures whether the router logits of each mixture of experts in the installed transformers are logits.

The balancing loss takes their softmax. It runs in a child of the examined interpreter and knows nothing of attncheck.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

# Sizes, under the names that configurations have for them.
SIZES: dict[str, int] = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 8, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_sparse_step": 1,
}  # fmt: skip
COEFFICIENT = "router_aux_loss_coef"


def measure_routers() -> Iterator[dict[str, Any]]:
    """Yield, for each type of model with a balancing loss, whether its router logits are probabilities."""
    types = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    mapping = importlib.import_module("transformers").CONFIG_MAPPING
    for model_type in types:
        try:
            config = mapping[model_type]
            if hasattr(config(), COEFFICIENT):
                yield {"model_type": model_type, **measure_router(config)}
        except Exception as error:  # a tiny model of this type needs other sizes, or a kernel
            yield {"model_type": model_type, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def measure_router(config: Any) -> dict[str, Any]:
    """Return whether the router logits of a tiny model are probabilities, and the place of its class."""
    import torch

    known = {name: size for name, size in SIZES.items() if hasattr(config(), name)}
    torch.manual_seed(0)
    auto = importlib.import_module("transformers").AutoModelForCausalLM
    model = auto.from_config(config(**known, output_router_logits=True)).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.arange(1, 17)[None]).router_logits
    rows = torch.cat([item.float().reshape(-1, item.shape[-1]) for item in logits if item is not None])
    are_probabilities = bool((rows >= 0).all()) and torch.allclose(rows.sum(-1), torch.ones(len(rows)), atol=1e-3)
    path = str(inspect.getsourcefile(type(model))).split("site-packages/")[-1]
    return {"are_probabilities": are_probabilities, "place": path}
