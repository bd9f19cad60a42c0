"""Cases for ATN351."""

from __future__ import annotations

from typing import Any

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_heads(transformers: str, *sizes: int, **fields: Any) -> Snapshot:
    """Return the recorded machine with this transformers and a model with grouped heads of these sizes."""
    snapshot = s.with_package(s.h200(), "transformers", transformers)
    return s.with_model(snapshot, head_dims=sizes, v_head_dim=s.Known(max(sizes)), **fields)


FIRES = {
    "gemma 4 under 5.10.1": with_heads("5.10.1", 256, 512, model_type="gemma4"),
    "a launch in float32": s.with_job(with_heads("5.17.0", 128), {"attn_implementation": "sdpa", "precision": "fp32"}),
    "a launch under sdpa": s.with_job(with_heads("5.10.1", 512), {"attn_implementation": "sdpa"}),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "a healthy Qwen2 under 5.10.1": with_heads("5.10.1", 128),
    "5.14.1 repeats the heads": with_heads("5.14.1", 512),
    "4.53.2 always did": with_heads("4.53.2", 512),
    "as many key/value heads as query heads": with_heads("5.10.1", 512, num_kv_heads=s.Known(28)),
    "a launch in bfloat16": s.with_job(with_heads("5.17.0", 128), {"attn_implementation": "sdpa"}),
    "values narrower than keys: cuDNN takes them": s.with_model(with_heads("4.57.3", 192), v_head_dim=s.Known(128)),
    "a launch under flash attention": s.with_job(with_heads("5.10.1", 512)),
}


def says(text: str) -> bool:
    """Return whether the finding names the fallback and what is without it."""
    return "MATH" in text and (">=5.14.1" in text or "'precision': 'bf16'" in text)
