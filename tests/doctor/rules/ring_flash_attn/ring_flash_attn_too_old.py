"""Cases for ATN143."""

from tests import snapshots as s
from tests.doctor.rules.ring_flash_attn.ring_flash_attn_import import with_versions

FIRES = {
    "0.1.7 under 4.55.1, the first it cannot be imported under": with_versions("0.1.7", "4.55.1"),
    "0.1.6 under 4.54.0": with_versions("0.1.6", "4.54.0"),
    "0.1.5 under 4.53.0: 20 parameters": with_versions("0.1.5", "4.53.0"),
    "0.1.3 under 4.51.0": with_versions("0.1.3", "4.51.0"),
}
SILENT = {
    "the recorded machine: 0.1.8 is the newest": s.h200(),
    "no ring-flash-attn": s.laptop(),
    "0.1.7 under 4.55.0, the last it works with": with_versions("0.1.7", "4.55.0"),
    "0.1.6 under 4.53.3": with_versions("0.1.6", "4.53.3"),
    "0.1.5 under 4.52.4": with_versions("0.1.5", "4.52.4"),
    "0.1.3 under 4.46.3": with_versions("0.1.3", "4.46.3"),
    "somebody patched the import": s.with_import(with_versions("0.1.7", "4.57.6"), "ring_flash_attn", "ok"),
    "0.1.7 under 5.4.0: 0.1.8 does not work there either": with_versions("0.1.7", "5.4.0"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the release to take, and that nothing else moves."""
    return "ring-flash-attn==0.1.8" in finding and "--no-deps" in finding
