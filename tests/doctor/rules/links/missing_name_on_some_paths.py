"""Cases for ATN132."""

from __future__ import annotations

from tests import snapshots as s

VERL = s.with_package(s.h200(), "verl", "0.9.1")

FIRES = {
    "in a function": s.with_links(VERL, s.make_link(function="qwen2_vl_attn_forward")),
    "under a condition": s.with_links(VERL, s.make_link(conditions=("is_npu_available()",))),
    "in a module of one model": s.with_links(VERL, s.make_link(breaks=("verl.models.transformers.qwen2_vl",))),
    "an argument": s.with_links(
        VERL, s.make_link(kind="argument", argument="tokenizer", reason="it takes no argument tokenizer", function="f")
    ),
}
SILENT = {
    "a launch of another framework": s.with_job(
        s.with_links(VERL, s.make_link(function="f")), framework="trl", trainer="sft"
    ),
    "the recorded machine, which was not linked": s.h200(),
    "nothing no longer exists": s.with_links(VERL),
    "caught": s.with_links(VERL, s.make_link(function="f", fallback_line=30)),
    "put back by the package": s.with_links(VERL, s.make_link(function="f", patched_by="verl.patch")),
    "reported as an error": s.with_links(VERL, s.make_link(breaks=("verl.trainer.sft_trainer",))),
}


def says(text: str) -> bool:
    """Return whether the finding names where, and which name or argument, and one name is no plural."""
    agrees = ("1 name imported by" in text) == ("no longer exists;" in text)
    return agrees and "qwen2_vl.py:24" in text and ("Qwen2VL" in text or "tokenizer" in text)
