"""Cases for ATN145."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s
from tests.doctor.rules.ring_flash_attn.ring_flash_attn_import import with_versions


def with_openrlhf(transformers: str, **fields: tuple[str, ...]) -> Snapshot:
    """Return OpenRLHF 0.11.2 with ring-flash-attn 0.1.8 and this transformers."""
    return s.with_package(with_versions("0.1.8", transformers), "openrlhf", "0.11.2", **fields)


FIRES = {
    "transformers 5.4.0": with_openrlhf("5.4.0"),
    "with its pin": with_openrlhf("5.4.0", requires=("transformers==5.15.0",)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "5.3.0": with_openrlhf("5.3.0"),
    "5.5.0": with_openrlhf("5.5.0"),
    "without ring-flash-attn": s.without_packages(with_openrlhf("5.4.0"), "ring-flash-attn"),
    "without OpenRLHF: ATN140": with_versions("0.1.8", "5.4.0"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the version to leave and one to go to."""
    return "5.4.0" in finding and ("<5.19" in finding or "transformers==5.15.0" in finding)
