"""Which GPUs a process sees under CUDA_VISIBLE_DEVICES, by CUDA's rules.

Read in torch 2.13.0 (torch/cuda/__init__.py, `_parse_visible_devices`, `_transform_uuid_to_ordinals`) and the CUDA C++
Programming Guide ("CUDA Environment Variables"): indices or unambiguous beginnings of UUIDs, as the first entry has
it; the first invalid entry hides itself and all that follow; an entry that is repeated hides everything.
NVIDIA_VISIBLE_DEVICES tells a container's runtime what to bring in, and is "void" where CDI has already brought GPUs
in; it hides nothing from a process, so that it plays no part here.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional


def order(setting: Optional[str], uuids: List[str], mig: Optional[Dict[str, int]] = None) -> List[int]:
    """Return the positions in `uuids` (one entry per GPU) that `setting` leaves visible, in CUDA's numbering.

    `mig` maps UUIDs of MIG devices to positions. CUDA numbers GPUs from the fastest on unless CUDA_DEVICE_ORDER is
    PCI_BUS_ID; where all GPUs are alike that makes no difference.
    """
    if setting is None:
        return list(range(len(uuids)))
    first = setting.strip()
    if first.startswith("MIG-"):
        found = _by_mig(setting, uuids, mig or {})
    elif first.startswith("GPU-"):
        found = _by_uuid(setting, uuids)
    else:
        found = _by_index(setting, len(uuids))
    return found


def _by_index(setting: str, count: int) -> List[int]:
    found: List[int] = []
    for word in setting.split(","):
        match = re.match(r"\s*\+?(\d{1,6})", word)  # as strtoul reads it: "1gpu2" is 1
        if not match or int(match.group(1)) >= count:
            break
        if int(match.group(1)) in found:
            return []
        found.append(int(match.group(1)))
    return found


def _by_uuid(setting: str, uuids: List[str]) -> List[int]:
    found: List[int] = []
    for word in setting.split(","):
        word = word.strip()
        meant = [position for position, uuid in enumerate(uuids) if uuid.startswith(word)]
        if not word.startswith("GPU-") or len(meant) != 1:
            break
        if meant[0] in found:
            return []
        found.append(meant[0])
    return found


def _by_mig(setting: str, uuids: List[str], mig: Dict[str, int]) -> List[int]:
    """Return the GPU behind the first MIG device: a process can use no more than one (CUDA enumerates a single one)."""
    word = setting.split(",")[0].strip()
    old = re.match(r"MIG-(GPU-[\w-]+)", word)  # before R470: MIG-GPU-<uuid>/<instance>/<instance>
    if old:
        return [position for position, uuid in enumerate(uuids) if uuid == old.group(1)][:1]
    return [position for uuid, position in mig.items() if uuid == word and position < len(uuids)][:1]
