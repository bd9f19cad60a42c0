"""Cases for ATN551."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_vllm_and_nccl(vllm: str, nccl: str, value: str = "0") -> Snapshot:
    """Return a machine whose OpenRLHF syncs weights to this vllm over this NCCL."""
    snapshot = s.with_package(s.h200(), "openrlhf", "0.11.2")
    snapshot = s.with_torch(s.with_package(snapshot, "vllm", vllm), nccl=s.Known(nccl))
    return s.with_env(snapshot, NCCL_CUMEM_ENABLE=value)


FIRES = {
    "vllm 0.16.0, NCCL 2.27": with_vllm_and_nccl("0.16.0", "2.27.3"),
    "vllm 0.29.0": with_vllm_and_nccl("0.29.0", "2.28.9"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "vllm 0.15.1 needs it": with_vllm_and_nccl("0.15.1", "2.27.3"),
    "NCCL 2.26": with_vllm_and_nccl("0.16.0", "2.26.2"),
    "verl wants it so": s.with_package(
        s.without_packages(with_vllm_and_nccl("0.24.0", "2.28.9"), "openrlhf"), "verl", "0.9.1"
    ),
    "it is 1": with_vllm_and_nccl("0.29.0", "2.28.9", "1"),
    "no vllm": s.without_packages(with_vllm_and_nccl("0.29.0", "2.28.9"), "vllm"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset NCCL_CUMEM_ENABLE" in finding
