"""Cases for ATN116."""

from dataclasses import replace

from attncheck.core.environment import Distribution
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_second_record(name: str, version: str, location: str = "", problem: str = "") -> Snapshot:
    """Return the recorded machine with one more record of a package, by default in the same place."""
    first_location = next(distribution.location for distribution in s.h200().distributions if distribution.name == name)
    second = Distribution(name=name, version=version, location=location or first_location, problem=problem)
    return replace(s.h200(), distributions=(*s.h200().distributions, second))


FIRES = {
    "two versions of flash-attn": with_second_record("flash-attn", "2.7.4.post1"),
    "two versions of transformers": with_second_record("transformers", "4.57.6"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "an environment over the system's packages": with_second_record(
        "torch", "2.8.0", location="/usr/lib/python3/dist-packages"
    ),
    "what an uninstall left is ATN117": with_second_record(
        "transformers", "4.57.6", problem="left behind by an uninstall"
    ),
    "the same version twice": with_second_record("transformers", "5.17.0"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "versions in one folder" in finding and "uninstall" in finding
