"""Cases for ATN357."""

from __future__ import annotations

from typing import Any

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

WITHOUT_POSITIONS = s.Known(("create_causal_mask(attention_mask,config,inputs_embeds,past_key_values)",))
WITH_POSITIONS = s.Known(("create_causal_mask(attention_mask,config,inputs_embeds,past_key_values,position_ids)",))
NEVER_SKIPPED = s.Known(("create_causal_mask(allow_is_causal_skip,attention_mask,config,position_ids)",))
PACKED = {"attn_implementation": "sdpa", "packing": "position_ids"}
NOT_BUILT: dict[str, Any] = {"accepts": s.Known({})}
DEFAULT = {"attn_implementation": "", "packing": "padding"}
PADDED = {"attn_implementation": "eager", "packing": "padding", "padding_side": "left"}


def model(transformers: str, model_type: str, plan: dict[str, Any] | None = None, **fields: Any) -> Snapshot:
    """Return the recorded machine with this transformers, a model of this type, and a launch with this plan."""
    snapshot = s.with_model(s.with_package(s.h200(), "transformers", transformers), model_type=model_type, **fields)
    return s.with_job(snapshot, plan) if plan is not None else snapshot


FIRES = {
    "doge under sdpa": model("5.17.0", "doge"),
    "moshi under eager, padded": model("5.17.0", "moshi", {**PADDED, "padding_side": "right"}),
    "afmoe packed under sdpa": model("5.17.0", "afmoe", PACKED),
    "afmoe without a launch": model("5.17.0", "afmoe"),
    "the installed file of a later release shows it": model("9.0", "falcon", PACKED, mask_calls=WITHOUT_POSITIONS),
    "llama4 in rows longer than its chunks": model(
        "5.17.0", "llama4_text", {**PACKED, "max_length": 16384}, attention_chunk_size=s.Known(8192)
    ),
    "qwen4_exp padded on the left under eager": model("5.17.0", "qwen4_exp_text", PADDED),
    "a class without sdpa that was not built, and no implementation named": model(
        "5.14.0", "roformer", DEFAULT, **NOT_BUILT
    ),
    "bloom packed, and no implementation named": model(
        "5.14.0", "bloom", {**DEFAULT, "packing": "position_ids"}, **NOT_BUILT
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "a healthy Qwen2, packed under sdpa": model("5.17.0", "qwen2", PACKED),
    "doge in 5.18.0": model("5.18.0", "doge"),
    "a patched doge in 5.17.0": model("5.17.0", "doge", mask_calls=NEVER_SKIPPED),
    "doge under eager": model("5.17.0", "doge", PADDED),
    "afmoe, padded": model("5.17.0", "afmoe", {**PACKED, "packing": "padding"}),
    "afmoe, packed under flash attention": model("5.17.0", "afmoe", {}),
    "afmoe, packed with its own mask": model("5.17.0", "afmoe", {**PACKED, "packing": "mask_4d"}),
    "a class that got sdpa, and no implementation named": model(
        "5.14.0", "roformer", DEFAULT, accepts=s.Known({"sdpa": ""})
    ),
    "moshi has sdpa, and no implementation is named": model("5.17.0", "moshi", DEFAULT),
    "the installed file of afmoe is fixed": model("5.17.0", "afmoe", PACKED, mask_calls=WITH_POSITIONS),
    "an encoder that is no decoder": model("5.17.0", "bert", PACKED, causal=False),
    "llama4 in rows within one chunk": model("5.17.0", "llama4_text", PACKED, attention_chunk_size=s.Known(8192)),
    "qwen4_exp padded on the right": model("5.17.0", "qwen4_exp_text", {**PADDED, "padding_side": "right"}),
    "a later release of which nothing is known": model("9.0", "bloom", {**PACKED, "attn_implementation": "eager"}),
}


def says(text: str) -> bool:
    """Return whether the finding names the type, the place in transformers, and what to use instead."""
    fixes = ("packing", "padding", "eager", "sdpa", "transformers>=5.18.0")
    return "under" in text and ".py" in text and any(fix in text for fix in fixes)
