"""Runs a tiny torch kernel on each GPU: the cheapest proof that driver, torch and GPU work together.

After an error in a kernel, every later call in the same CUDA context fails with the same error. Therefore the caller
runs `run_kernel` in a separate child for every GPU, and `check_peer_access` in another. `merge_answers` is safe
anywhere.
"""

from __future__ import annotations

import os
import re

from ..facts import describe_error, known, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable

    Answer = Dict[str, Dict[str, Any]]

MATRIX_SIZE = 64
_PROC_GPUS = "/proc/driver/nvidia/gpus"


def run_kernel(ordinal: int) -> Answer:
    """Return, by nvidia-smi index, "devices" (how a kernel on torch's GPU `ordinal` ended) and "free" (free memory)."""
    import torch

    indices = _nvidia_smi_indices(torch)
    if ordinal >= len(indices):  # this process does not see the GPU
        return {"devices": {}, "free": {}}
    index = str(indices[ordinal])
    try:
        outcome = _check_matmul(torch, ordinal)
    except Exception as error:
        reason = _describe_cuda_error(error)
        return {"devices": {index: known(reason)}, "free": {index: unreadable("the kernel failed")}}
    return {"devices": {index: known(outcome)}, "free": {index: _read_free_memory(torch, ordinal)}}


def failed_child_answer(ordinal: int, reason: str) -> Answer:
    """Return the answer for a GPU whose child ended without one: "it hung", "it died with SIGSEGV"."""
    return {"devices": {str(ordinal): known(reason)}, "free": {}}


def _check_matmul(torch: Any, ordinal: int) -> str:
    """Return "ok", or how the sum of a 64 x 64 product differs from the CPU's."""
    device = torch.device("cuda", ordinal)
    # sm_80 and newer multiply bfloat16; older GPUs get float16, which attention uses on them.
    dtype = torch.bfloat16 if torch.cuda.get_device_capability(ordinal)[0] >= 8 else torch.float16
    # Values are -1, 0 and 1, so that every sum of 64 products is exact in all of these types.
    numbers = (torch.arange(MATRIX_SIZE * MATRIX_SIZE).reshape(MATRIX_SIZE, MATRIX_SIZE) % 3 - 1).to(torch.float32)
    expected = float((numbers @ numbers.t()).sum())
    matrix = numbers.to(device=device, dtype=dtype)
    actual = float((matrix @ matrix.t()).float().sum().cpu())
    torch.cuda.synchronize(ordinal)
    return "ok" if actual == expected else "a 64x64 product sums to %r, not %r" % (actual, expected)


def _read_free_memory(torch: Any, ordinal: int) -> dict[str, object]:
    try:
        return known(int(torch.cuda.mem_get_info(ordinal)[0]))
    except Exception as error:
        return unreadable(_describe_cuda_error(error))


def check_peer_access() -> Answer:
    """Return "peers": whether each pair of GPUs can read each other's memory, by nvidia-smi indices ("0-1")."""
    import torch

    indices = _nvidia_smi_indices(torch)
    access: dict[str, Any] = {}
    for first in range(len(indices)):
        for second in range(first + 1, len(indices)):
            pair = sorted((indices[first], indices[second]))
            try:
                directions = [
                    torch.cuda.can_device_access_peer(first, second),
                    torch.cuda.can_device_access_peer(second, first),
                ]
                access["%d-%d" % (pair[0], pair[1])] = known(all(directions))
            except Exception as error:
                access["%d-%d" % (pair[0], pair[1])] = unreadable(_describe_cuda_error(error))
    return {"peers": access}


def merge_answers(answers: Iterable[Answer]) -> Answer:
    """Return the answers of several children as one."""
    merged: Answer = {"devices": {}, "free": {}, "peers": {}}
    for answer in answers:
        for part, values in answer.items():
            merged.setdefault(part, {}).update(values)
    return merged


def _describe_cuda_error(error: Exception) -> str:
    """Return the first lines of a CUDA error, without the debugging advice that follows."""
    return " ".join(describe_error(error).split("Compile with")[0].split("For debugging")[0].split())[:300]


def _nvidia_smi_indices(torch: Any) -> list[int]:
    """Return the nvidia-smi index of each of torch's GPUs; nvidia-smi counts along the PCI bus."""
    total = int(torch.cuda.device_count())
    by_bus = _indices_by_pci_address(torch, total)
    if by_bus:
        return by_bus
    entries = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    numbers = [int(match.group(1)) for match in (re.match(r"\s*\+?(\d{1,4})", entry) for entry in entries) if match]
    return numbers[:total] if len(numbers) >= total else list(range(total))


def _indices_by_pci_address(torch: Any, total: int) -> list[int]:
    """Return the indices by PCI address, if both torch and the driver give it, because CUDA's order may differ."""
    try:
        entries = sorted(os.listdir(_PROC_GPUS))
        addresses = [tuple(int(part, 16) for part in entry.split(".")[0].split(":")) for entry in entries]
        indices = []
        for ordinal in range(total):
            properties = torch.cuda.get_device_properties(ordinal)
            indices.append(addresses.index((properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)))
    except Exception:  # an older torch, no /proc, or a MIG device: CUDA_VISIBLE_DEVICES decides
        return []
    return indices
