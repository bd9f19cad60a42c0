"""Cases for ATN428."""

from __future__ import annotations

from tests import snapshots as s

COMPILED = {"compile": True, "attn_implementation": "flash_attention_2"}
FIRES = {
    "compiled, packed, flash": s.with_job(s.h200(), COMPILED),
    "with a Hub kernel": s.with_job(s.h200(), {**COMPILED, "attn_implementation": "kernels-community/flash-attn2"}),
}
SILENT = {
    "not compiled": s.with_job(s.h200()),
    "padded": s.with_job(s.h200(), {**COMPILED, "packing": "padding"}),
    "sdpa": s.with_job(s.h200(), {**COMPILED, "attn_implementation": "sdpa"}),
    "the variable is set": s.with_job(s.with_env(s.h200(), TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS="1"), COMPILED),
}


def says(text: str) -> bool:
    """Return whether the finding names the variable."""
    return "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS=1" in text
