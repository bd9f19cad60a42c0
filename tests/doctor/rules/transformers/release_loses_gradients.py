"""Cases for ATN177."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "ZeRO-2 keeps the last batch": s.with_package(s.h200(), "deepspeed", "0.18.2"),
    "accelerate keeps 16-bit weights": s.with_package(s.laptop(), "accelerate", "1.13.0"),
}
SILENT = {
    "the recorded machine": s.with_package(s.h200(), "deepspeed", "0.19.0"),
    "the laptop": s.laptop(),
    "accelerate after it": s.with_package(s.h200(), "accelerate", "1.14.0"),
    "no DeepSpeed": s.without_packages(s.h200(), "deepspeed"),
}


def says(text: str) -> bool:
    """Return whether the finding names the settings and a release without the fault."""
    return ("ZeRO-2" in text and "deepspeed>=0.19" in text) or ("FSDP2" in text and "accelerate>=1.14" in text)
