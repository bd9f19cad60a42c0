"""Cases for ATN215."""

from dataclasses import replace

from attncheck.core.devices import Link, Topology
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

NO, YES = s.Known(False), s.Known(True)


def linked(count: int, *links: Link) -> Snapshot:
    """Join `count` GPUs by these links."""
    return replace(s.gpus(s.h200(), *[(9, 0)] * count), topology=s.Known(Topology(links, (0,) * count)))


FIRES = {
    "two cards without peer access": linked(2, Link(0, 1, "PHB", NO)),
    "one pair of three": linked(3, Link(0, 1, "NV4", YES), Link(0, 2, "SYS", NO), Link(1, 2, "SYS", NO)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "they reach each other": linked(2, Link(0, 1, "NV18", YES)),
    "nobody asked": linked(2, Link(0, 1, "PHB")),
    "one GPU": linked(1),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names the pair."""
    return "peer access" in finding and "topo -p2p" in finding
