"""Cases for ATN150."""

from dataclasses import replace

from attncheck.core.model import Tower
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

VISION_TOWER = (Tower("vision_config", 16, 80),)


def with_versions(liger: str, transformers: str) -> Snapshot:
    """Return the recorded machine with these versions, nothing imported."""
    snapshot = s.with_package(s.with_package(s.h200(), "liger-kernel", liger), "transformers", transformers)
    return replace(snapshot, imports=s.Absent("not requested"), interfaces=s.Absent("not requested"))


FIRES = {
    "0.8.5 under 4.57.6": with_versions("0.8.5", "4.57.6"),
    "0.8.4 under 4.51.3": with_versions("0.8.4", "4.51.3"),
    "the import says so": s.with_import(
        with_versions("0.8.5", "4.57.6"),
        "liger_kernel.transformers",
        "raised",
        exception="ImportError",
        message="liger-kernel requires transformers >= 5.0.0, got 4.57.6",
    ),
    "a vision-language model on 5.3 with 0.7.0": s.with_model(with_versions("0.7.0", "5.3.0"), towers=VISION_TOWER),
}
SILENT = {
    "the recorded machine": s.h200(),
    "no liger-kernel": s.laptop(),
    "0.8.5 under 5.0.0": with_versions("0.8.5", "5.0.0"),
    "0.8.4 under 4.52.4": with_versions("0.8.4", "4.52.4"),
    "it could be imported": s.with_import(with_versions("0.8.5", "4.57.6"), "liger_kernel.transformers", "ok"),
    "a text model on 5.3 with 0.7.0": s.with_model(with_versions("0.7.0", "5.3.0")),
    "a vision-language model on 5.3 with 0.8.0": s.with_model(with_versions("0.8.0", "5.3.0"), towers=VISION_TOWER),
    "a vision-language model on 5.2 with 0.7.0": s.with_model(with_versions("0.7.0", "5.2.0"), towers=VISION_TOWER),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the liger-kernel to take."""
    return any(f"liger-kernel{which}" in finding for which in ("==0.8.4", "==0.5.10", ">=0.8.0"))
