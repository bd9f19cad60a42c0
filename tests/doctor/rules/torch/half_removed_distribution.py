"""Cases for ATN117."""

from dataclasses import replace

from attncheck.core.environment import Distribution
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

LEFT_BEHIND = "left behind by an interrupted uninstall"


def with_remains(name: str, base: Snapshot) -> Snapshot:
    """Return `base` with what an interrupted uninstall left of a package."""
    remains = Distribution(
        name=name, version="2.8.0", location="~/env/lib/python3.12/site-packages", problem=LEFT_BEHIND
    )
    return replace(base, distributions=(*base.distributions, remains))


FIRES = {
    "METADATA no longer exists": s.with_package(s.h200(), "flash-attn", "", problem="METADATA is missing"),
    "the files no longer exist": s.with_package(
        s.h200(), "transformers", "5.17.0", problem="its files no longer exist; only its metadata is left"
    ),
    "torch was half removed": with_remains("~orch", s.without_packages(s.h200(), "torch")),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "a leftover alongside a whole package": with_remains("~orch", s.h200()),
    "RECORD alone is missing": s.with_package(s.h200(), "transformers", "5.17.0", problem="RECORD is missing"),
    "a package that has nothing to do with attention": s.with_package(
        s.h200(), "boto3", "", problem="METADATA is missing"
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "is damaged" in finding and "install" in finding
