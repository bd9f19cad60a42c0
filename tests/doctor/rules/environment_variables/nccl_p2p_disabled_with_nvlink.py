"""Cases for ATN562."""

from dataclasses import replace

from attncheck.core.devices import Link, Topology
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_linked_gpus(kind: str, **variables: str) -> Snapshot:
    """Return two GPUs joined by a link of this kind."""
    snapshot = replace(s.with_gpus(s.h200(), (9, 0), (9, 0)), topology=s.Known(Topology((Link(0, 1, kind),))))
    return s.with_env(snapshot, **variables)


FIRES = {
    "NVLink": with_linked_gpus("NV18", NCCL_P2P_DISABLE="1"),
    "the recorded pair": s.with_env(s.h200x2(), NCCL_P2P_DISABLE="1"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "PCIe through the host": with_linked_gpus("SYS", NCCL_P2P_DISABLE="1"),
    "NUMA node": with_linked_gpus("NODE", NCCL_P2P_DISABLE="1"),
    "not set": with_linked_gpus("NV18"),
    "the recorded pair": s.h200x2(),
    "one of the pair is hidden": s.hide_gpus(s.with_env(s.h200x2(), NCCL_P2P_DISABLE="1"), 0),
    "it is 0": with_linked_gpus("NV18", NCCL_P2P_DISABLE="0"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset NCCL_P2P_DISABLE" in finding
