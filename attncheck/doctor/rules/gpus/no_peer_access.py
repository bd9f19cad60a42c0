"""Two visible GPUs cannot read each other's memory.

What it checks: torch's `can_device_access_peer` for every pair of visible GPUs.

Why it matters: NCCL then copies through the host's memory. Ring attention passes keys and values to a neighbour at
every step, and becomes slower than one GPU if the transfer is not hidden behind computation.

What to do: keep the ring inside a group of GPUs with peer access. On your own machine, check whether PCIe access
control (ACS), the IOMMU or a hypervisor disables it. GeForce cards since the RTX 40 series do not have it.

Source: ring-flash-attention README ("NVLink between GPUs are required for high performance"); NVIDIA NCCL User Guide,
"Troubleshooting", "PCI Access Control Services"; NVIDIA/nccl-tests#117.
"""

from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    links = [link for link in gpus.visible_links(snapshot) if link.peer_access == Known(False)]
    if not links:
        return
    pairs = ", ".join(f"{link.first}-{link.second}" for link in links)
    yield Problem(
        message=f"GPUs {pairs} have no peer access: ring attention goes through host memory",
        subject="GPUs",
        evidence=tuple(f"GPU {link.first}-{link.second}: {link.kind}, no peer access" for link in links),
        fixes=(Fix("see why the driver refuses", "advice", "nvidia-smi topo -p2p rw"),),
    )


RULE = Rule("ATN215", "warning", check, needs=frozenset({"ring"}))
