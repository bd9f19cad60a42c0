"""Queries for rules about GPUs: the visible ones, their descriptions, torch's CUDA version, and whether CUDA works."""

import re
from collections.abc import Iterable

from attncheck.core.lists import group_values
from attncheck.core.snapshot import Absent, Device, Known, Link, Snapshot, Unreadable, need
from attncheck.doctor.knowledge import cuda

Capability = tuple[int, int]
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
NVIDIA_SMI_PREFIX = "nvidia-smi: "  # begins the reason if nvidia-smi is installed and fails


def all_gpus(snapshot: Snapshot) -> tuple[Device, ...]:
    """Return every GPU, empty if there is none. Raises `MissingFact` if the list is unknown."""
    return () if isinstance(snapshot.devices, Absent) else need(snapshot.devices, "the list of GPUs")


def visible_gpus(snapshot: Snapshot) -> tuple[Device, ...]:
    """Return the GPUs that a job would see. Raises `MissingFact` if the list is unknown."""
    return tuple(device for device in all_gpus(snapshot) if device.visible)


def known_capabilities(gpus: Iterable[Device]) -> list[tuple[Device, Capability]]:
    """Return the GPUs with a known compute capability, each with it."""
    return [(gpu, gpu.compute_capability.value) for gpu in gpus if isinstance(gpu.compute_capability, Known)]


def list_gpu_kinds(gpus: Iterable[Device]) -> tuple[str, ...]:
    """Return one line of evidence for each kind of GPU among `gpus`: "GPUs 0, 1: NVIDIA H100, sm_90"."""
    indices_by_kind = group_values((f"{gpu.name}, {gpu.sm}", str(gpu.index)) for gpu in gpus)
    return tuple(
        f"GPU{'s' * (len(indices) > 1)} {', '.join(indices)}: {kind}" for kind, indices in indices_by_kind.items()
    )


def describe_gpus(gpus: Iterable[Device]) -> str:
    """Return `gpus` in a few words: "GPU 0 (Tesla V100, sm_70)", "GPUs 0, 1 (Tesla V100, sm_70)"."""
    devices = list(gpus)
    first = devices[0]
    numbers = ", ".join(str(gpu.index) for gpu in devices)
    return f"GPU{'s' if len(devices) > 1 else ''} {numbers} ({first.name}, {first.sm})"


def group_by_capability(gpus: Iterable[Device]) -> list[list[Device]]:
    """Return `gpus` grouped by compute capability, in order of appearance."""
    return list(group_values((gpu.sm, gpu) for gpu in gpus).values())


def driver_version(snapshot: Snapshot) -> tuple[int, ...]:
    """Return the driver's version as numbers; () if unknown."""
    if not isinstance(snapshot.driver, Known) or not re.fullmatch(r"\d+(\.\d+)*", snapshot.driver.value.version):
        return ()
    return tuple(map(int, snapshot.driver.value.version.split(".")))


def lacks_expected_gpus(snapshot: Snapshot) -> bool:
    """Return whether GPUs are expected, because a driver or nvidia-smi exists, but none can be listed."""
    if isinstance(snapshot.devices, Known):
        return False
    reason = snapshot.devices.reason
    has_driver = isinstance(snapshot.driver, Known) or "on the PCI bus" in reason
    return isinstance(snapshot.devices, Unreadable) or has_driver or reason.startswith(NVIDIA_SMI_PREFIX)


def are_hidden_by_mistake(snapshot: Snapshot) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES leaves fewer GPUs visible than it names, or none."""
    setting = snapshot.env(VISIBLE_DEVICES)
    if not isinstance(setting, Known) or not all_gpus(snapshot):
        return False
    visible = visible_gpus(snapshot)
    entries = [entry for entry in setting.value.split(",") if entry.strip()]
    return not visible or (len(visible) < len(entries) and not setting.value.strip().startswith("MIG-"))


def torch_cuda_version(snapshot: Snapshot) -> tuple[int, int] | None:
    """Return the CUDA version that torch was built with; None without torch or without a CUDA build."""
    if not isinstance(snapshot.torch, Known) or not isinstance(snapshot.torch.value.cuda, Known):
        return None
    return parse_cuda_version(snapshot.torch.value.cuda.value)


def unmet_driver_minimum(snapshot: Snapshot) -> str:
    """Return the oldest driver that torch's CUDA needs, if the driver here is older; otherwise ""."""
    built, driver = torch_cuda_version(snapshot), driver_version(snapshot)
    minimum = cuda.MINIMUM_DRIVER.get(built[0], "") if built else ""
    return minimum if minimum and driver and driver < tuple(map(int, minimum.split("."))) else ""


def cuda_works(snapshot: Snapshot) -> bool | None:
    """Return whether torch started CUDA; None if it was not tried."""
    if not isinstance(snapshot.torch, Known) or not isinstance(snapshot.torch.value.cuda_available, Known):
        return None
    return snapshot.torch.value.cuda_available.value


def cuda_error(snapshot: Snapshot) -> str:
    """Return torch's error message if CUDA did not start; otherwise ""."""
    if isinstance(snapshot.torch, Known) and isinstance(snapshot.torch.value.cuda_error, Known):
        return snapshot.torch.value.cuda_error.value
    return ""


def parse_cuda_version(text: str) -> tuple[int, int] | None:
    """Return "12.8" as (12, 8); None for a text that does not start with a version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def visible_links(snapshot: Snapshot) -> tuple[Link, ...]:
    """Return the links among the visible GPUs. Raises `MissingFact` if there are several GPUs and unknown links."""
    indices = {gpu.index for gpu in visible_gpus(snapshot)}
    if len(indices) < 2:
        return ()
    topology = need(snapshot.topology, "the links among the GPUs")
    return tuple(link for link in topology.links if link.first in indices and link.second in indices)
