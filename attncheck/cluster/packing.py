"""Packs a node's snapshot for transport to node 0, and unpacks thousands of them without duplicating data.

Each field of a snapshot is sent as JSON text. Fields with the same text become one object, so that rules and
comparisons see immediately what is the same on all nodes. Values that naturally differ between nodes and minutes are
made equal first: the duration of an import, bytes of free memory, a rank's own variables.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

from attncheck.core import codec
from attncheck.core.codec import BadDocument
from attncheck.core.io.outgoing import mask
from attncheck.core.snapshot import SCHEMA_VERSION, Device, Fact, ImportOutcome, Known, Snapshot
from attncheck.ring.topology import HOST_SPECIFIC_SETTINGS

GIB = 1 << 30
MAX_UNPACKED = 256 << 20  # bytes
TAKEN_MEMORY = 2 * GIB  # used memory of a GPU up to which the rules consider it free (ATN211)
PLENTY_GIB = 64  # free memory above this is rounded down in steps of the same size
RANK_VARIABLES = frozenset(
    ["RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "SLURM_PROCID", "SLURM_LOCALID", "MASTER_PORT"]
).union(HOST_SPECIFIC_SETTINGS)


@dataclass(frozen=True)
class Failure:
    """Why a node has no snapshot to send."""

    reason: str


def pack_snapshot(snapshot: Snapshot) -> bytes:
    """Return a snapshot as a document without secrets."""
    levelled = mask(level_snapshot(snapshot))
    texts = {spec.name: json.dumps(codec.to_plain(getattr(levelled, spec.name))) for spec in fields(levelled)}
    return _pack({"fields": texts})


def pack_failure(reason: str) -> bytes:
    """Return why there is no snapshot, as a document."""
    return _pack({"failure": mask(reason)})


def _pack(document: Mapping[str, object]) -> bytes:
    return zlib.compress(json.dumps(document).encode("utf-8", "surrogatepass"), 1)


@dataclass
class Unpacker:
    """Reads documents; `values` are the fields read before, by name and text."""

    values: dict[tuple[str, str], Any] = field(default_factory=dict)
    kinds: dict[str, Any] = field(default_factory=lambda: get_type_hints(Snapshot))

    def unpack(self, data: bytes) -> Snapshot | Failure:
        """Return the contents of a document; a `Failure` if it cannot be read."""
        try:
            document = json.loads(_decompress(data))
            if isinstance(document, dict) and isinstance(document.get("failure"), str):
                return Failure(document["failure"])
            texts = document.get("fields") if isinstance(document, dict) else None
            if not isinstance(texts, dict):
                raise BadDocument("$: it has no fields")
            return self._read_snapshot(texts)
        except (ValueError, RecursionError, zlib.error) as error:  # BadDocument is a ValueError
            return Failure(f"its snapshot cannot be read: {error}")

    def _read_snapshot(self, texts: Mapping[str, object]) -> Snapshot:
        values = {}
        for name, text in texts.items():
            if name in self.kinds and isinstance(text, str):  # a newer attncheck may send more
                if (name, text) not in self.values:
                    self.values[name, text] = codec.loads(self.kinds[name], text)
                values[name] = self.values[name, text]
        missing = [spec.name for spec in fields(Snapshot) if spec.name not in values]
        if missing:
            raise BadDocument(f"$: {missing[0]} is missing")
        if values["schema_version"] > SCHEMA_VERSION:
            raise BadDocument(f"attncheck {values['attncheck']} wrote it: use the same attncheck on all nodes")
        return Snapshot(**values)


def _decompress(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(data, MAX_UNPACKED)
    if unpacker.unconsumed_tail:
        raise BadDocument("it is too long")
    return text


def level_snapshot(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without values that differ among healthy nodes; the rules report the same for it."""
    host = replace(
        snapshot.host,
        memory_total_bytes=_floor_memory(snapshot.host.memory_total_bytes, 1),
        memory_available_bytes=_floor_memory(snapshot.host.memory_available_bytes, PLENTY_GIB),
        shm_bytes=_floor_memory(snapshot.host.shm_bytes, PLENTY_GIB),
    )
    imports, devices = snapshot.imports, snapshot.devices
    if isinstance(imports, Known):
        imports = Known(tuple(map(_level_import, imports.value)))
    if isinstance(devices, Known):
        devices = Known(tuple(map(_level_device, devices.value)))
    environ = {name: text for name, text in sorted(snapshot.environ.items()) if name not in RANK_VARIABLES}
    return replace(snapshot, host=host, imports=imports, devices=devices, environ=environ)


def _floor_memory(memory: Fact[int], step_gib: int) -> Fact[int]:
    """Return memory in whole GiB, above `PLENTY_GIB` in steps of `step_gib`; less than one GiB is unchanged."""
    if not isinstance(memory, Known) or memory.value < GIB:
        return memory
    gib = memory.value // GIB
    return Known((gib - gib % step_gib if gib >= PLENTY_GIB else gib) * GIB)


def _level_import(outcome: ImportOutcome) -> ImportOutcome:
    """Return an import's outcome without its duration, unless it took too long."""
    return replace(outcome, seconds=float(round(outcome.seconds)) if outcome.outcome == "hung" else 0.0)


def _level_device(device: Device) -> Device:
    total, free = device.memory_total_bytes, device.memory_free_bytes
    if not isinstance(total, Known) or not isinstance(free, Known):
        return device
    taken = total.value - free.value
    return replace(device, memory_free_bytes=total if taken <= TAKEN_MEMORY else Known(free.value // GIB * GIB))
