"""Cases for ATN354."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "one place": s.with_model(s.h200(), remote_code=True, rounded_positions=("modeling_own.py:112",)),
    "two": s.with_model(s.laptop(), remote_code=True, rounded_positions=("a.py:1", "a.py:20")),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "its own code that counts in float32": s.with_model(s.h200(), remote_code=True),
}


def says(text: str) -> bool:
    """Return whether the finding names the buffer and counts in float32."""
    return "inv_freq" in text and "dtype=torch.float32" in text
