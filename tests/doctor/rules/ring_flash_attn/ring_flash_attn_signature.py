"""Cases for ATN141."""

from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.ring_flash_attn import FORWARD_FUNCTION
from tests import snapshots as s
from tests.doctor.rules.ring_flash_attn.ring_flash_attn_import import with_versions


def with_parameter_count(snapshot: Snapshot, count: int) -> Snapshot:
    """Return `snapshot` if transformers' function has `count` parameters."""
    return s.with_interfaces(snapshot, signatures={FORWARD_FUNCTION: tuple(f"p{index}" for index in range(count))})


FIRES = {
    "5.19.0, the first with 23": with_versions("0.1.8", "5.19.0"),
    "5.23.0, measured": with_parameter_count(with_versions("0.1.8", "5.23.0"), 23),
    "a later one, predicted": with_versions("0.1.8", "5.99.0"),
    "4.43.0 with 12": with_versions("0.1.8", "4.43.0"),
    "0.1.3 under 4.47.0: 18 parameters, and 0.1.8 does not work there either": with_versions("0.1.3", "4.47.0"),
    "under OpenRLHF, which puts the name back itself": s.with_package(
        with_versions("0.1.8", "5.19.0"), "openrlhf", "0.11.2"
    ),
}
SILENT = {
    "the recorded machine: 20 parameters": s.h200(),
    "no ring-flash-attn": s.laptop(),
    "5.18.0, the last with 20": with_versions("0.1.8", "5.18.0"),
    "4.44.0, the first with 13": with_versions("0.1.8", "4.44.0"),
    "a patched 5.19 with 20, measured": with_parameter_count(with_versions("0.1.8", "5.19.0"), 20),
    "0.1.5 under 4.53.0: ATN143 says to take 0.1.8": with_versions("0.1.5", "4.53.0"),
    "0.1.6 under 4.53.0": with_versions("0.1.6", "4.53.0"),
    "an unknown ring-flash-attn": with_versions("0.1.9", "5.19.0"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names both counts and a release to go to, and never upgrades."""
    return "parameters" in finding and "install 'transformers" in finding.replace("transformers==", "'transformers")
