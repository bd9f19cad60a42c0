"""Cases for ATN116."""

from dataclasses import replace

from attncheck.core.environment import Distribution
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def beside(name: str, version: str, location: str = "", problem: str = "") -> Snapshot:
    """Return the recorded machine with one more record of a package, by default in the same place."""
    place = next(d.location for d in s.h200().distributions if d.name == name)
    more = Distribution(name=name, version=version, location=location or place, problem=problem)
    return replace(s.h200(), distributions=(*s.h200().distributions, more))


FIRES = {
    "two versions of flash-attn": beside("flash-attn", "2.7.4.post1"),
    "two versions of transformers": beside("transformers", "4.57.6"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "an environment over the system's packages": beside("torch", "2.8.0", location="/usr/lib/python3/dist-packages"),
    "what an uninstall left is ATN117": beside("transformers", "4.57.6", problem="left behind by an uninstall"),
    "the same version twice": beside("transformers", "5.17.0"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "versions in one folder" in finding and "uninstall" in finding
