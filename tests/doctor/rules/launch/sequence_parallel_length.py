"""Cases for ATN573."""

from tests import snapshots as s

TORCH = {"scheme": "torch", "hooked": ("sdpa",)}
FIRES = {"2050 over 4": s.with_job(s.h200x2(), {"ring_size": 4, "max_length": 2050}, **TORCH)}
SILENT = {
    "no launch": s.h200x2(),
    "2048 over 4": s.with_job(s.h200x2(), {"ring_size": 4, "max_length": 2048}, **TORCH),
    "rows of any length": s.with_job(s.h200x2(), {"ring_size": 4, "max_length": 2050, "packing": "padding"}, **TORCH),
    "llama3 pads on its own": s.with_job(s.h200x2(), {"ring_size": 4, "max_length": 2050}),
}


def says(findings: str) -> bool:
    """Return whether use a length that is divisible is set."""
    return "'max_length': '2048'" in findings
