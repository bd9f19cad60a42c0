"""Cases for ATN177."""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.experiments import AccumulationMeasurement, Experiments
from attncheck.core.facts import Known
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

RIGHT = (1, 1, 1, 1)


def measured(release: str, *weights: tuple[int, str, tuple[float, ...]]) -> Snapshot:
    """Return a machine with a DeepSpeed and what `doctor --deep` measured of it."""
    accumulations = tuple(AccumulationMeasurement(*item) for item in weights)
    return replace(
        s.with_package(s.h200(), "deepspeed", release), experiments=Known(Experiments(accumulations=accumulations))
    )


FIRES = {
    "ZeRO-2 was measured to keep the last batch": measured("0.18.2", (1, "", RIGHT), (2, "", (0, 0, 0, 1))),
    "a release that no table names was measured": measured("0.99", (3, "", (1, 1, 0.5, 1)), (1, "", RIGHT)),
    "the state on the CPU was not measured": measured("0.18.9", (2, "", RIGHT)),
    "ZeRO-2 keeps the last batch": s.with_package(s.h200(), "deepspeed", "0.18.2"),
    "accelerate keeps 16-bit weights": s.with_package(s.laptop(), "accelerate", "1.13.0"),
}
SILENT = {
    "a listed release was measured to be right": measured("0.18.9", (2, "", RIGHT), (2, "cpu", RIGHT)),
    "the recorded machine": s.with_package(s.h200(), "deepspeed", "0.19.0"),
    "the laptop": s.laptop(),
    "accelerate after it": s.with_package(s.h200(), "accelerate", "1.14.0"),
    "no DeepSpeed": s.without_packages(s.h200(), "deepspeed"),
}


def says(text: str) -> bool:
    """Return whether the finding names the settings and a release without the fault."""
    if "ZeRO-3" in text:
        return "use ZeRO-1" in text and "1, 1, 0.5, 1" in text
    return ("ZeRO-2" in text and "deepspeed>=0.1" in text) or ("FSDP2" in text and "accelerate>=1.14" in text)
