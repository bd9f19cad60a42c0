"""ring-flash-attn's Hugging Face adapter raises, or its ranks are lost.

What it checks: `import ring_flash_attn`, with the names put back that it misses in transformers where that helps (in
the measuring processes only; the evidence says which), then `substitute_hf_flash_attn`, then a small model forward and
backward over the ranks.

Why it matters: training stops at the first line. "The current transformer version X is not supported. please use pip
install -U transformers" covers every failure of `substitute_hf_flash_attn`; what it hides is told after it.

What to do: take the versions that ATN140 or ATN141 name; upgrading transformers is what broke them.

Source: the measurement itself; ring_flash_attn 0.1.8, adapters/hf_adapter.py (the bare `except`).
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN534", "error", lambda snapshot: (), by_engine=True)
