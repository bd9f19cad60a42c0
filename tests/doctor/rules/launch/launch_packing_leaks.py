"""Cases for ATN450."""

from tests import snapshots as s

OLD = s.package(s.h200(), "transformers", "4.51.3")
SDPA = {"attn_implementation": "sdpa"}
FIRES = {
    "sdpa in an old transformers": s.job(OLD, SDPA),
    "the default in an old transformers": s.job(OLD, {"attn_implementation": "", "packing": "cu_seqlens"}),
}
SILENT = {
    "no launch": OLD,
    "flash": s.job(OLD),
    "a Hub kernel": s.job(OLD, {"attn_implementation": "kernels-community/flash-attn"}),
    "not transformers' attention": s.job(OLD, {"attn_implementation": "transformer_engine"}),
    "padding": s.job(OLD, {**SDPA, "packing": "padding"}),
    "a newer transformers": s.job(s.h200(), SDPA),
}


def says(findings: str) -> bool:
    """Say whether the version and the way out are told."""
    return "4.51.3" in findings and "flash_attention_2" in findings
