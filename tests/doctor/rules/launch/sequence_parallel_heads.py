"""Cases for ATN572."""

from tests import snapshots as s

QWEN = s.with_model(s.h200x2())  # 28 query heads, 4 key/value heads
RING = {"ring_size": 2}
ULYSSES = {"scheme": "ulysses", "hooked": ()}
FIRES = {
    "a stride of 8": s.with_job(QWEN, {**RING, "heads_k_stride": 8}),
    "a stride of 3": s.with_job(QWEN, {**RING, "heads_k_stride": 3}),
    "Ulysses over 8": s.with_job(QWEN, {"ring_size": 8}, **ULYSSES),
    "Ulysses over 7: kv heads": s.with_job(QWEN, {"ring_size": 7}, **ULYSSES),
}
SILENT = {
    "no launch": QWEN,
    "a stride of 2": s.with_job(QWEN, {**RING, "heads_k_stride": 2}),
    "no ring": s.with_job(QWEN, {"heads_k_stride": 8}),
    "Ulysses over 4": s.with_job(QWEN, {"ring_size": 4}, **ULYSSES),
    "kv heads repeated": s.with_job(s.with_model(QWEN, num_heads=s.Known(32)), {"ring_size": 8}, **ULYSSES),
    "no model": s.with_job(s.h200x2(), {**RING, "heads_k_stride": 8}),
}


def says(findings: str) -> bool:
    """Return whether a number that fits is set."""
    return any(text in findings for text in ("'heads_k_stride': '4'", "'heads_k_stride': '2'", "'ring_size': '4'"))
