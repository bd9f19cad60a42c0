"""GPUs, their driver and their links: plain data."""

from dataclasses import dataclass

from attncheck.core.facts import Absent, Fact, Known, Unreadable


@dataclass(frozen=True)
class Driver:
    """The NVIDIA kernel driver, as nvidia-smi or /proc reports it."""

    version: str  # "580.159.04"
    cuda: Fact[str]  # the highest CUDA version it supports, "13.0"
    fabric: Fact[str] = Absent()  # fabric manager's state on NVSwitch machines: "Completed", "In Progress", …


@dataclass(frozen=True)
class Device:
    """One GPU."""

    index: int
    name: str
    compute_capability: Fact[tuple[int, int]]
    memory_total_bytes: Fact[int]
    memory_free_bytes: Fact[int]
    mig: Fact[bool] = Unreadable()
    ecc: Fact[bool] = Unreadable()
    visible: bool = True  # whether a process that honours CUDA_VISIBLE_DEVICES sees it
    kernel: Fact[str] = Unreadable("no kernel was run")  # "ok", or the error of one tiny torch kernel

    @property
    def sm(self) -> str:
        """Return the GPU generation as text: "sm_90", or "sm_?" if it is not known."""
        if isinstance(self.compute_capability, Known):
            return "sm_{}{}".format(*self.compute_capability.value)
        return "sm_?"


@dataclass(frozen=True)
class Link:
    """How two GPUs are connected: NVLink ("NV18"), or PCIe from near to far ("PIX", "PXB", "PHB", "NODE", "SYS")."""

    first: int
    second: int
    kind: str
    peer_access: Fact[bool] = Unreadable("torch was not queried")


@dataclass(frozen=True)
class Topology:
    """The links among the GPUs, and each GPU's NUMA node (-1: not reported)."""

    links: tuple[Link, ...]
    numa_nodes: tuple[int, ...] = ()
