"""Determines which GPUs a process sees under CUDA_VISIBLE_DEVICES, by CUDA's rules.

The rules were read in torch 2.13.0 (torch/cuda/__init__.py, `_parse_visible_devices`, `_transform_uuid_to_ordinals`)
and the CUDA C++ Programming Guide ("CUDA Environment Variables"). Entries are indices or unambiguous UUID prefixes, in
the style of the first entry. The first invalid entry hides itself and all that follow. A repeated entry hides
everything. NVIDIA_VISIBLE_DEVICES is ignored here: it tells a container's runtime which GPUs to add, and is "void" if
CDI has already added them, but it hides none from a process.
"""

from __future__ import annotations

import re


def visible_positions(setting: str | None, uuids: list[str], mig: dict[str, int] | None = None) -> list[int]:
    """Return the positions in `uuids` (one entry per GPU) that `setting` leaves visible, in CUDA's numbering.

    `mig` maps UUIDs of MIG devices to positions. CUDA numbers GPUs by speed, fastest first, unless CUDA_DEVICE_ORDER is
    PCI_BUS_ID. If all GPUs are identical, the order makes no difference.
    """
    if setting is None:
        return list(range(len(uuids)))
    text = setting.strip()
    if text.startswith("MIG-"):
        positions = _positions_by_mig(setting, uuids, mig or {})
    elif text.startswith("GPU-"):
        positions = _positions_by_uuid(setting, uuids)
    else:
        positions = _positions_by_index(setting, len(uuids))
    return positions


def _positions_by_index(setting: str, count: int) -> list[int]:
    positions: list[int] = []
    for entry in setting.split(","):
        match = re.match(r"\s*\+?(\d{1,6})", entry)  # like strtoul: "1gpu2" is 1
        if not match or int(match.group(1)) >= count:
            break
        if int(match.group(1)) in positions:
            return []
        positions.append(int(match.group(1)))
    return positions


def _positions_by_uuid(setting: str, uuids: list[str]) -> list[int]:
    positions: list[int] = []
    for entry in setting.split(","):
        entry = entry.strip()
        matching = [position for position, uuid in enumerate(uuids) if uuid.startswith(entry)]
        if not entry.startswith("GPU-") or len(matching) != 1:
            break
        if matching[0] in positions:
            return []
        positions.append(matching[0])
    return positions


def _positions_by_mig(setting: str, uuids: list[str], mig: dict[str, int]) -> list[int]:
    """Return the GPU of the first MIG device; CUDA lets a process use only one."""
    entry = setting.split(",")[0].strip()
    old = re.match(r"MIG-(GPU-[\w-]+)", entry)  # before R470: MIG-GPU-<uuid>/<instance>/<instance>
    if old:
        return [position for position, uuid in enumerate(uuids) if uuid == old.group(1)][:1]
    return [position for uuid, position in mig.items() if uuid == entry and position < len(uuids)][:1]
