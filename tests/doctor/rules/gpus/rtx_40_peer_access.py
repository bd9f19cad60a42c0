"""Cases for ATN220."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_rtx_40(count: int, driver: str, name: str = "NVIDIA GeForce RTX 4090") -> Snapshot:
    """Put `count` cards and accelerate on a machine with this driver."""
    machine = s.with_package(s.with_gpus(s.h200(), *[(8, 9)] * count, name=name), "accelerate", "1.15.0")
    return s.with_driver(machine, version=driver)


FIRES = {
    "two RTX 4090 on R535": with_rtx_40(2, "535.161.08"),
    "the last driver below": with_rtx_40(2, "550.40.06"),
    "one variable is not enough": s.with_env(with_rtx_40(2, "535.161.08"), NCCL_P2P_DISABLE="1"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "the first driver that will do": with_rtx_40(2, "550.40.07"),
    "one card": with_rtx_40(1, "535.161.08"),
    "another card": with_rtx_40(2, "535.161.08", name="NVIDIA GeForce RTX 3090"),
    "both are set": s.with_env(with_rtx_40(2, "535.161.08"), NCCL_P2P_DISABLE="1", NCCL_IB_DISABLE="1"),
    "no accelerate": s.without_packages(with_rtx_40(2, "535.161.08"), "accelerate"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text sets what is missing."""
    return "export NCCL_IB_DISABLE=1" in finding
