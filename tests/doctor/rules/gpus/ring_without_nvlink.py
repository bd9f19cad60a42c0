"""Cases for ATN216."""

from dataclasses import replace

from attncheck.core.devices import Link, Topology
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_links(count: int, *links: Link) -> Snapshot:
    """Join `count` GPUs by these links."""
    return replace(s.with_gpus(s.h200(), *[(9, 0)] * count), topology=s.Known(Topology(links, (0,) * count)))


FIRES = {
    "two cards over PCIe": with_links(2, Link(0, 1, "PHB")),
    "two bridged pairs": with_links(
        4,
        Link(0, 1, "NV12"),
        Link(0, 2, "SYS"),
        Link(0, 3, "SYS"),
        Link(1, 2, "SYS"),
        Link(1, 3, "SYS"),
        Link(2, 3, "NV12"),
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "NVSwitch": with_links(3, Link(0, 1, "NV18"), Link(0, 2, "NV18"), Link(1, 2, "NV18")),
    "no peer access: another rule's": with_links(2, Link(0, 1, "PHB", s.Known(False))),
    "the slow one is hidden": replace(
        with_links(2, Link(0, 1, "SYS")), devices=s.with_gpus(s.h200(), (9, 0), (9, 0), visible=False).devices
    ),
    "the links could not be read": replace(
        s.with_gpus(s.h200(), (9, 0), (9, 0)), topology=s.Unreadable("no nvidia-smi")
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the link, and the group if there is one."""
    return "NVLink" in finding and ("PHB" in finding or "export CUDA_VISIBLE_DEVICES=0,1" in finding)
