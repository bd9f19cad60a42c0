"""Many nodes of recorded snapshots, some of them changed, as node 0 gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from attncheck.cluster.merge import GatheredNodes, merge_nodes
from attncheck.cluster.packing import pack_snapshot
from attncheck.cluster.placement import NOTHING_REQUESTED, PlacementRequest
from attncheck.core.facts import Known
from attncheck.core.report import Report
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

Change = Callable[[Snapshot], Snapshot]
GIB = 1 << 30


def vary(snapshot: Snapshot, node: int) -> Snapshot:
    """Return a snapshot as another minute and another healthy node would give it."""
    host = replace(
        snapshot.host,
        memory_available_bytes=Known(900 * GIB + node * 12345),
        memory_total_bytes=Known(1000 * GIB + node * 4096),
    )
    return replace(s.with_env(snapshot, RANK=str(node), GROUP_RANK=str(node)), host=host, taken=f"2026-11-2{node % 10}")


def gather(
    size: int,
    changes: Mapping[int, Change] | None = None,
    silent: Mapping[int, str] | None = None,
    base: Snapshot | None = None,
) -> GatheredNodes:
    """Return `size` nodes of a recording, each varied; `changes` by node, `silent` those without an answer."""
    base, changes, silent = base or s.h200(), changes or {}, silent or {}
    documents = {
        node: pack_snapshot(changes.get(node, lambda snapshot: snapshot)(vary(base, node)))
        for node in range(size)
        if node not in silent
    }
    return GatheredNodes("torchrun", size, documents, silent)


def merge(gathered: GatheredNodes, request: PlacementRequest = NOTHING_REQUESTED) -> Report:
    """Return the report on nodes, judged for all."""
    return merge_nodes(gathered, request, "all")
