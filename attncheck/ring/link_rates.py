"""The one-way rates of the links among GPUs, by the GPU's generation.

Sources, read 2026-11-21: NVIDIA's pages on NVLink (A100: 12 links, 600 GB/s both ways; H100: 18 links, 900 GB/s; B200:
18 links, 1.8 TB/s), so 25 GB/s a link one way from Volta to Hopper and 50 from Blackwell on; the whitepaper on Ampere
GA102 (four links of 14.0625 GB/s in each direction). PCI Express: 8 and 16 GT/s with 128b/130b, 16 lanes.
"""

from __future__ import annotations

import re

Capability = tuple[int, int]

NVLINK_GB_PER_S: dict[Capability, float] = {  # of one link, one way
    (6, 0): 20.0,
    (7, 0): 25.0,
    (7, 5): 25.0,
    (8, 0): 25.0,
    (8, 6): 14.0625,
    (9, 0): 25.0,
    (10, 0): 50.0,
    (10, 3): 50.0,
}
PCIE_3_X16, PCIE_4_X16 = 15.75, 31.5
# Below one host bridge; beyond it (NODE, SYS) the path between processors decides, whose rate is not reported.
PCIE_KINDS = ("PIX", "PXB", "PHB")


def one_way_gb_per_s(kind: str, capability: Capability) -> float:
    """Return GB/s one way of a link as `nvidia-smi topo -m` names it ("NV18", "PIX", …), 0 where it is not known.

    PCIe counts as the oldest generation whose slots the GPU is sold for: what the slot really has is not reported.
    """
    links = re.fullmatch(r"NV(\d+)", kind)
    if links:
        return int(links[1]) * NVLINK_GB_PER_S.get(capability, 0.0)
    if kind in PCIE_KINDS:
        return PCIE_4_X16 if capability >= (8, 0) else PCIE_3_X16
    return 0.0
