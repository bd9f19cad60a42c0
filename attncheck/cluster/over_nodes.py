"""Connects the nodes of a launch by torchrun or srun: node 0 leads, the others follow."""

import time
from collections.abc import Callable
from typing import Any

from attncheck.cluster.follower import follow
from attncheck.cluster.leader import Leader
from attncheck.cluster.merge import GatheredNodes
from attncheck.cluster.packing import pack_failure, pack_snapshot
from attncheck.cluster.place import NodePlace
from attncheck.core.io.errors import AttncheckError, Following, Interrupted
from attncheck.core.snapshot import Snapshot
from attncheck.gate.node_leader import hide_rank

TIMEOUT_SECONDS = 180.0
WithProgress = Callable[[Callable[[Callable[[str], None]], Any]], Any]


def gather_nodes(
    place: NodePlace, seconds: float, collect: Callable[[], Snapshot], with_progress: WithProgress
) -> GatheredNodes:
    """Return the results of all nodes within `seconds`. `collect` examines this node.

    Raises `Following` on every process but node 0's, after node 0 received its result; `Unanswered` if that fails.
    """
    deadline = time.monotonic() + seconds
    if not place.leads:
        raise Following("")
    if place.node != 0:
        follow(place, deadline, lambda: _make_document(collect))
        raise Following(f"this is node {place.node} of {place.nodes}; node 0 reports")
    if place.nodes == 1:
        return GatheredNodes(place.launcher, 1, {0: _make_document(collect)}, {})
    with Leader(place) as leader:
        own = _make_document(collect)
        with_progress(lambda report_progress: leader.wait(deadline, report_progress))
        documents, silent = leader.collect()
    return GatheredNodes(place.launcher, place.nodes, {0: own, **documents}, silent)


def _make_document(collect: Callable[[], Snapshot]) -> bytes:
    """Return the document that this node sends: its snapshot, or why there is none."""
    try:
        with hide_rank():
            return pack_snapshot(collect())
    except Interrupted:
        raise
    except AttncheckError as error:
        return pack_failure(str(error))
