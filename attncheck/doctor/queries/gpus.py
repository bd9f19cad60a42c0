"""What rules ask about GPUs: which are visible, what to call them, and which torch build is right for them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attncheck.core.devices import Device, Link
from attncheck.core.facts import Absent, Known, need
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge import cuda

Capability = tuple[int, int]
BROKEN = "nvidia-smi: "  # how a reason begins where nvidia-smi is there and does not work


def devices(snapshot: Snapshot) -> tuple[Device, ...]:
    """Return every GPU, none where there is none. Raises `MissingFact` where nobody could look."""
    return () if isinstance(snapshot.devices, Absent) else need(snapshot.devices, "the list of GPUs")


def visible(snapshot: Snapshot) -> tuple[Device, ...]:
    """Return the GPUs that a job would see. Raises `MissingFact` where nobody could look."""
    return tuple(device for device in devices(snapshot) if device.visible)


def capabilities(gpus: Iterable[Device]) -> list[tuple[Device, Capability]]:
    """Return those of `gpus` whose compute capability is known, with it."""
    return [(gpu, gpu.compute_capability.value) for gpu in gpus if isinstance(gpu.compute_capability, Known)]


def told(gpus: Iterable[Device]) -> tuple[str, ...]:
    """Return one line of evidence for each kind of GPU among `gpus`."""
    kinds: dict[str, list[str]] = {}
    for gpu in gpus:
        kinds.setdefault(f"{gpu.name}, {gpu.sm}", []).append(str(gpu.index))
    return tuple(f"GPU{'s' * (len(seen) > 1)} {', '.join(seen)}: {kind}" for kind, seen in kinds.items())


def named(gpus: Iterable[Device]) -> str:
    """Return `gpus` in a few words: "GPU 0 (Tesla V100, sm_70)", "GPUs 0, 1 (Tesla V100, sm_70)"."""
    listed = list(gpus)
    first = listed[0]
    numbers = ", ".join(str(gpu.index) for gpu in listed)
    return f"GPU{'s' if len(listed) > 1 else ''} {numbers} ({first.name}, {first.sm})"


def alike(gpus: Iterable[Device]) -> list[list[Device]]:
    """Return `gpus` in groups of one generation, in the order met."""
    groups: dict[str, list[Device]] = {}
    for gpu in gpus:
        groups.setdefault(gpu.sm, []).append(gpu)
    return list(groups.values())


def driver_version(snapshot: Snapshot) -> tuple[int, ...]:
    """Return the driver's version as numbers, () where it is not known."""
    if not isinstance(snapshot.driver, Known) or not re.fullmatch(r"\d+(\.\d+)*", snapshot.driver.value.version):
        return ()
    return tuple(map(int, snapshot.driver.value.version.split(".")))


def torch_cuda(snapshot: Snapshot) -> tuple[int, int] | None:
    """Return the CUDA version that torch was built with, None for no torch or no CUDA build."""
    if not isinstance(snapshot.torch, Known) or not isinstance(snapshot.torch.value.cuda, Known):
        return None
    return _pair(snapshot.torch.value.cuda.value)


def driver_too_old(snapshot: Snapshot) -> str:
    """Return the oldest driver for torch's CUDA where the driver here is older, "" otherwise."""
    built, driver = torch_cuda(snapshot), driver_version(snapshot)
    minimum = cuda.MINIMUM_DRIVER.get(built[0], "") if built else ""
    return minimum if minimum and driver and driver < tuple(map(int, minimum.split("."))) else ""


def cuda_works(snapshot: Snapshot) -> bool | None:
    """Return whether torch started CUDA, None where it was not tried."""
    if not isinstance(snapshot.torch, Known) or not isinstance(snapshot.torch.value.cuda_available, Known):
        return None
    return snapshot.torch.value.cuda_available.value


def cuda_error(snapshot: Snapshot) -> str:
    """Return torch's words on why CUDA did not start, "" for none."""
    if isinstance(snapshot.torch, Known) and isinstance(snapshot.torch.value.cuda_error, Known):
        return snapshot.torch.value.cuda_error.value
    return ""


def _pair(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def links(snapshot: Snapshot) -> tuple[Link, ...]:
    """Return the links among the visible GPUs. Raises `MissingFact` where there are several and nobody could look."""
    seen = {gpu.index for gpu in visible(snapshot)}
    if len(seen) < 2:
        return ()
    topology = need(snapshot.topology, "the links among the GPUs")
    return tuple(link for link in topology.links if link.first in seen and link.second in seen)
