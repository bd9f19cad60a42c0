"""Runs one tiny torch kernel on one GPU: the cheapest proof that driver, torch and GPU work together.

An error in a kernel leaves a CUDA context that answers every later call with the same error. So the caller runs
`run_one` in a child of its own for every GPU, and `peers` in another; `count` and `merge` are safe anywhere.
"""

from __future__ import annotations

import os
import re

from ..facts import failure, known, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List

    Answer = Dict[str, Dict[str, Any]]

SIZE = 64
_PCI = "/proc/driver/nvidia/gpus"


def count() -> int:
    """Return how many GPUs torch sees; CUDA may be started by asking."""
    import torch

    return int(torch.cuda.device_count())


def run_one(ordinal: int) -> Answer:
    """Return "devices" and "free" by nvidia-smi index: how a kernel on torch's GPU `ordinal` went, and free memory."""
    import torch

    places = _places(torch)
    if ordinal >= len(places):  # hidden from this process
        return {"devices": {}, "free": {}}
    place = str(places[ordinal])
    try:
        outcome = _matmul(torch, ordinal)
    except Exception as error:
        return {"devices": {place: known(_words(error))}, "free": {place: unreadable("the kernel failed")}}
    return {"devices": {place: known(outcome)}, "free": {place: _free(torch, ordinal)}}


def died(ordinal: int, how: str) -> Answer:
    """Return the answer for a GPU whose child did not live to give one: "it hung", "it died with SIGSEGV"."""
    return {"devices": {str(ordinal): known(how)}, "free": {}}


def _matmul(torch: Any, ordinal: int) -> str:
    """Return "ok", or what is wrong with the sum of a 64 x 64 product against the CPU's."""
    device = torch.device("cuda", ordinal)
    # sm_80 and newer multiply bfloat16; before, float16 is what attention would use.
    kind = torch.bfloat16 if torch.cuda.get_device_capability(ordinal)[0] >= 8 else torch.float16
    # -1, 0 and 1: every sum of 64 products is exact in all of these types.
    numbers = (torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 3 - 1).to(torch.float32)
    expected = float((numbers @ numbers.t()).sum())
    there = numbers.to(device=device, dtype=kind)
    found = float((there @ there.t()).float().sum().cpu())
    torch.cuda.synchronize(ordinal)
    return "ok" if found == expected else "a 64x64 product sums to %r, not %r" % (found, expected)


def _free(torch: Any, ordinal: int) -> Dict[str, object]:
    try:
        return known(int(torch.cuda.mem_get_info(ordinal)[0]))
    except Exception as error:
        return unreadable(_words(error))


def peers() -> Answer:
    """Return "peers": whether each pair of GPUs can read each other's memory, by nvidia-smi indices ("0-1")."""
    import torch

    places = _places(torch)
    found: Dict[str, Any] = {}
    for first in range(len(places)):
        for second in range(first + 1, len(places)):
            pair = sorted((places[first], places[second]))
            try:
                both = [
                    torch.cuda.can_device_access_peer(first, second),
                    torch.cuda.can_device_access_peer(second, first),
                ]
                found["%d-%d" % (pair[0], pair[1])] = known(all(both))
            except Exception as error:
                found["%d-%d" % (pair[0], pair[1])] = unreadable(_words(error))
    return {"peers": found}


def merge(answers: Iterable[Answer]) -> Answer:
    """Return the answers of several children as one."""
    whole: Answer = {"devices": {}, "free": {}, "peers": {}}
    for answer in answers:
        for part, found in answer.items():
            whole.setdefault(part, {}).update(found)
    return whole


def _words(error: Exception) -> str:
    """Return an error's first lines: CUDA's are followed by advice for debugging."""
    return " ".join(failure(error).split("Compile with")[0].split("For debugging")[0].split())[:300]


def _places(torch: Any) -> List[int]:
    """Return for each of torch's GPUs its index in nvidia-smi, which counts along the PCI bus."""
    total = int(torch.cuda.device_count())
    by_bus = _by_bus(torch, total)
    if by_bus:
        return by_bus
    words = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    numbers = [int(match.group(1)) for match in (re.match(r"\s*\+?(\d{1,4})", word) for word in words) if match]
    return numbers[:total] if len(numbers) >= total else list(range(total))


def _by_bus(torch: Any, total: int) -> List[int]:
    """Return the places by PCI address, where both this torch and the driver tell it; CUDA's own order may differ."""
    try:
        entries = sorted(os.listdir(_PCI))
        addresses = [tuple(int(part, 16) for part in entry.split(".")[0].split(":")) for entry in entries]
        found = []
        for ordinal in range(total):
            told = torch.cuda.get_device_properties(ordinal)
            found.append(addresses.index((told.pci_domain_id, told.pci_bus_id, told.pci_device_id)))
    except Exception:  # an older torch, no /proc, a MIG device: CUDA_VISIBLE_DEVICES decides
        return []
    return found
