"""Cases for ATN450."""

from tests import snapshots as s

TRANSFORMERS_4_51 = s.with_package(s.h200(), "transformers", "4.51.3")
SDPA = {"attn_implementation": "sdpa"}
FIRES = {
    "sdpa in an old transformers": s.with_job(TRANSFORMERS_4_51, SDPA),
    "the default in an old transformers": s.with_job(
        TRANSFORMERS_4_51, {"attn_implementation": "", "packing": "cu_seqlens"}
    ),
}
SILENT = {
    "no launch": TRANSFORMERS_4_51,
    "flash": s.with_job(TRANSFORMERS_4_51),
    "a Hub kernel": s.with_job(TRANSFORMERS_4_51, {"attn_implementation": "kernels-community/flash-attn"}),
    "not transformers' attention": s.with_job(TRANSFORMERS_4_51, {"attn_implementation": "transformer_engine"}),
    "padding": s.with_job(TRANSFORMERS_4_51, {**SDPA, "packing": "padding"}),
    "a newer transformers": s.with_job(s.h200(), SDPA),
}


def says(findings: str) -> bool:
    """Return whether the version and a fix are named."""
    return "4.51.3" in findings and "flash_attention_2" in findings
