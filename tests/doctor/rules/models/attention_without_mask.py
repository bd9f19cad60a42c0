"""Cases for ATN350."""

from __future__ import annotations

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

MASKS = ("eager", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention", "sdpa")


def registering(*names: str, masks: tuple[str, ...] = ()) -> Snapshot:
    """Return the recorded machine whose packages register these attention functions, and these masks."""
    return s.with_interfaces(
        s.h200(),
        attention_functions=s.Known(("flash_attention_2", "paged|sdpa", "sdpa_paged", "sdpa", *names)),
        mask_functions=s.Known((*MASKS, *masks)),
    )


FIRES = {
    "a package registers its attention alone": registering("own_attention"),
    "and the launch requests it": s.with_job(registering("own_attention"), {"attn_implementation": "own_attention"}),
    "the model's own code does": s.with_model(s.h200(), remote_code=True, registered_attentions=("own_attention",)),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "with its mask": registering("own_attention", masks=("own_attention",)),
    "vLLM's own": registering("vllm"),
    "a transformers without the table of masks": s.with_interfaces(
        s.h200(), attention_functions=s.Known(("own_attention",)), mask_functions=s.Unreadable("no masking_utils")
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the implementation and registers its masks."""
    return "'own_attention' has no mask function" in text and "ALL_MASK_ATTENTION_FUNCTIONS.register" in text
