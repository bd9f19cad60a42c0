"""Two visible GPUs cannot read each other's memory.

What it checks: torch was queried `can_device_access_peer` for every pair of visible GPUs.

Why it matters: NCCL then copies through the host's memory. Ring attention passes keys and values to a neighbour at
every step, and becomes slower than one GPU when that is not hidden behind the computing.

What to do: keep the ring inside a group of GPUs that reach each other; on the user's own machine, see whether PCIe
access control (ACS), the IOMMU or a hypervisor switches peer access off. GeForce cards since the RTX 40 have none.

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
        message=f"GPUs {pairs} have no peer access: ring attention goes through the host's memory",
        subject="GPUs",
        evidence=tuple(f"GPU {link.first}-{link.second}: {link.kind}, no peer access" for link in links),
        fixes=(Fix("see why the driver refuses", "advice", "nvidia-smi topo -p2p rw"),),
    )


RULE = Rule("ATN215", "warning", check, needs=frozenset({"ring"}))
