"""Parses the output of nvidia-smi with pure functions; the text may be damaged, localised or from any driver.

The formats are those of drivers 367 to 615: CSV of `--query-gpu`, `-q`, `-L` and `topo -m` (newer drivers underline its
header with escape codes). Since driver 610, "CUDA Version" is called "CUDA UMD Version".
"""

from __future__ import annotations

import re
from typing import Any

from ..facts import absent, known, unreadable

FIELDS = (
    "index",
    "name",
    "compute_cap",
    "memory.total",
    "memory.free",
    "mig.mode.current",
    "ecc.mode.current",
    "driver_version",
    "uuid",
)
# Drivers before R450 and R470 cannot report MIG and compute_cap.
OLD_FIELDS = tuple(field for field in FIELDS if field not in ("compute_cap", "mig.mode.current"))
MAX_CHARACTERS = 1 << 20  # per output; the rest is ignored
MAX_GPUS = 256
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_UNAVAILABLE = ("", "n/a", "not supported", "unknown error", "not found", "insufficient permissions", "gpu is lost")
_VERSION = re.compile(r"\d+(\.\d+)*\Z")
_MAX_LINE_LENGTH = 1000
_MIB = 1 << 20


def parse_gpus(text: str, fields: tuple[str, ...] = FIELDS) -> list[dict[str, Any]]:
    """Return the GPUs in the CSV of `--query-gpu`, as `core.devices.Device` records with "driver" and "uuid" added."""
    gpus: dict[int, dict[str, Any]] = {}
    for line in text[:MAX_CHARACTERS].splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        extra_cells = len(cells) - len(fields)
        if extra_cells < 0 or len(line) > _MAX_LINE_LENGTH or not _is_number(cells[0]):
            continue
        cells[1 : 2 + extra_cells] = [", ".join(cells[1 : 2 + extra_cells])]  # a name may contain commas
        values = dict(zip(fields, cells))
        index = int(values["index"])
        if index < MAX_GPUS and values["name"] and _VERSION.match(values["driver_version"]):
            gpus.setdefault(index, _device_record(index, values))
    return [gpus[index] for index in sorted(gpus)]


def _device_record(index: int, values: dict[str, str]) -> dict[str, Any]:
    return {
        "index": index,
        "name": values["name"][:200],
        "compute_capability": parse_capability(values.get("compute_cap")),
        "memory_total_bytes": _parse_memory(values["memory.total"]),
        "memory_free_bytes": _parse_memory(values["memory.free"]),
        "mig": _parse_switch(values.get("mig.mode.current")),
        "ecc": _parse_switch(values["ecc.mode.current"]),
        "visible": True,
        "kernel": unreadable("no kernel was run"),
        "driver": values["driver_version"],
        "uuid": values["uuid"],
    }


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 16


def field_value(text: str) -> str:
    """Return a field's value; "" if nvidia-smi reports it as unknown in any of its wordings."""
    text = text.strip().strip("[]").strip()
    return "" if text.lower() in _UNAVAILABLE else text


def parse_capability(text: object) -> dict[str, object]:
    """Return the compute capability in "9.0" as a fact."""
    if not isinstance(text, str):
        return unreadable("this driver's nvidia-smi does not report compute_cap")
    match = re.match(r"(\d{1,2})\.(\d{1,2})\Z", field_value(text))
    if not match:
        return unreadable("nvidia-smi says %r" % text[:40])
    return known([int(match.group(1)), int(match.group(2))])


def _parse_memory(text: str) -> dict[str, object]:
    value = field_value(text).split()[:1]
    if value and _is_number(value[0]):
        return known(int(value[0]) * _MIB)
    return unreadable("nvidia-smi says %r" % text[:40])


def _parse_switch(text: object) -> dict[str, object]:
    if not isinstance(text, str):
        return unreadable("this driver's nvidia-smi does not report")
    value = field_value(text).lower()
    if value in ("enabled", "disabled"):
        return known(value == "enabled")
    return unreadable("nvidia-smi says %r" % text[:40]) if value else absent("not supported by this GPU")


def parse_header(text: str) -> dict[str, Any]:
    """Return "version", "cuda" and "fabric" from `nvidia-smi -q` or plain `nvidia-smi`; "" for missing ones."""
    text = text[:MAX_CHARACTERS]
    version = re.search(r"(?:Driver|KMD) Version {0,60}: {0,4}(\d[\d.]{0,30})", text)
    cuda = re.search(r"CUDA (?:UMD )?Version {0,60}: {0,4}(\d{1,3}\.\d{1,3})", text)
    fabric = re.search(r"^ {0,20}Fabric[ \t]{0,20}\r?\n {0,20}State {0,60}: {0,4}(\S[^\r\n]{0,60})", text, re.MULTILINE)
    return {
        "version": version.group(1).rstrip(".") if version else "",
        "cuda": cuda.group(1) if cuda else "",
        "fabric": field_value(fabric.group(1)) if fabric else "",
    }


def parse_topology(text: str) -> dict[str, Any]:
    """Return the `core.devices.Topology` in the matrix of `topo -m`: one link per pair of GPUs, a NUMA node per GPU."""
    lines = _ESCAPES.sub("", text[:MAX_CHARACTERS]).splitlines()
    columns: list[str] = []
    numa_column = -1
    links: dict[tuple[int, int], str] = {}
    nodes: dict[int, int] = {}
    for line in lines:
        cells = _split_cells(line)
        if not columns:
            if cells and cells[0] == "GPU0":
                columns, numa_column = _parse_columns(cells)
        elif cells and _gpu_index(cells[0]) >= 0:
            _read_row(cells, columns, numa_column, links, nodes)
    count = max(nodes) + 1 if nodes else 0
    return {
        "links": [
            {"first": first, "second": second, "kind": links[first, second], "peer_access": unreadable("not asked")}
            for first, second in sorted(links)
        ],
        "numa_nodes": [nodes.get(index, -1) for index in range(count)],
    }


def _split_cells(line: str) -> list[str]:
    """Return the cells of one row: columns are separated by tabs, or by spaces if the text was pasted."""
    parts = line.split("\t") if "\t" in line else re.split(r" {2,}", line)
    cells = [part.strip() for part in parts]
    return [cell for cell in cells if cell]


def _parse_columns(cells: list[str]) -> tuple[list[str], int]:
    """Return the names of the matrix's columns, and the offset of the NUMA affinity after them (-1 for none)."""
    matrix = [cell for cell in cells if not cell.lower().endswith(("affinity", "numa id"))]
    rest = [cell.lower() for cell in cells[len(matrix) :]]
    return matrix, rest.index("numa affinity") if "numa affinity" in rest else -1


def _read_row(
    cells: list[str], columns: list[str], numa_column: int, links: dict[tuple[int, int], str], nodes: dict[int, int]
) -> None:
    row = _gpu_index(cells[0])
    nodes[row] = -1
    for name, kind in zip(columns, cells[1:]):
        other = _gpu_index(name)
        if other >= 0 and other != row and re.match(r"(?:NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|C2C)\Z", kind):
            links.setdefault((min(row, other), max(row, other)), kind)
    rest = cells[1 + len(columns) :]
    # A GPU without an affinity omits its cells, which can be detected only if all other cells are present.
    if 0 <= numa_column < len(rest) and _is_number(rest[numa_column]):
        nodes[row] = int(rest[numa_column][:4])


def _gpu_index(name: str) -> int:
    match = re.match(r"GPU(\d{1,3})\Z", name)
    return int(match.group(1)) if match and int(match.group(1)) < MAX_GPUS else -1


def parse_mig(text: str) -> dict[str, int]:
    """Return, for every MIG device in `nvidia-smi -L` (by UUID), the index of the GPU that it belongs to."""
    gpu_by_uuid: dict[str, int] = {}
    gpu = -1
    for line in text[:MAX_CHARACTERS].splitlines():
        match = re.match(r"GPU (\d{1,3}):", line)
        if match:
            gpu = int(match.group(1))
        mig_match = re.match(r" +MIG .{0,80}\(UUID: (MIG-[\w/-]{1,120})\)", line)
        if mig_match and gpu >= 0:
            gpu_by_uuid[mig_match.group(1)] = gpu
    return gpu_by_uuid
