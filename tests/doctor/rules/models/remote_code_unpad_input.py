"""Cases for ATN305."""

from __future__ import annotations

from dataclasses import replace

from tests import snapshots as s

FIRES = {
    "flash-attn 2.7.0, not imported": s.with_model(
        replace(s.with_package(s.h200(), "flash-attn", "2.7.0"), interfaces=s.Absent()),
        remote_code=True,
        remote_imports=("flash_attn", "flash_attn.bert_padding:unpad_input"),
    ),
    "five values measured": s.with_model(
        s.with_interfaces(s.h200(), unpad_input_arity=s.Known(5)),
        remote_code=True,
        remote_imports=("flash_attn", "flash_attn.bert_padding:unpad_input"),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "flash-attn 2.6.3, not imported": s.with_model(
        replace(s.with_package(s.h200(), "flash-attn", "2.6.3"), interfaces=s.Absent()),
        remote_code=True,
        remote_imports=("flash_attn", "flash_attn.bert_padding:unpad_input"),
    ),
    "four values measured": s.with_model(
        s.with_interfaces(s.h200(), unpad_input_arity=s.Known(4)),
        remote_code=True,
        remote_imports=("flash_attn", "flash_attn.bert_padding:unpad_input"),
    ),
    "no flash-attn": s.with_model(
        s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"),
        remote_code=True,
        remote_imports=("flash_attn", "flash_attn.bert_padding:unpad_input"),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "unpad_input" in text and "*_" in text
