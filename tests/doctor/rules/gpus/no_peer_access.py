"""Cases for ATN215."""

from dataclasses import replace

from attncheck.core.devices import Link, Topology
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

NO_ACCESS, ACCESS = s.Known(False), s.Known(True)


def with_links(count: int, *links: Link) -> Snapshot:
    """Join `count` GPUs by these links."""
    return replace(s.with_gpus(s.h200(), *[(9, 0)] * count), topology=s.Known(Topology(links, (0,) * count)))


FIRES = {
    "two cards without peer access": with_links(2, Link(0, 1, "PHB", NO_ACCESS)),
    "one pair of three": with_links(
        3, Link(0, 1, "NV4", ACCESS), Link(0, 2, "SYS", NO_ACCESS), Link(1, 2, "SYS", NO_ACCESS)
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "they reach each other": with_links(2, Link(0, 1, "NV18", ACCESS)),
    "nobody requested it": with_links(2, Link(0, 1, "PHB")),
    "one GPU": with_links(1),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the pair."""
    return "peer access" in finding and "topo -p2p" in finding
