"""Gathers every node's snapshot, using torchrun, srun or Ray, and makes one report of them.

Of the nodes that torchrun or srun started, node 0 leads and the others follow.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attncheck.cluster import over_ray
from attncheck.cluster.follower import follow
from attncheck.cluster.leader import Leader
from attncheck.cluster.merge import GatheredNodes, merge_nodes
from attncheck.cluster.packing import pack_failure, pack_snapshot
from attncheck.cluster.place import NodePlace, read_place
from attncheck.cluster.placement import PlacementRequest
from attncheck.core.io.errors import AttncheckError, Following, Interrupted
from attncheck.core.report import Report
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.probes.collect import Lane
from attncheck.gate.node_leader import hide_rank
from attncheck.gate.policy import Policy
from attncheck.gate.run import read_policy_sources

TIMEOUT_SECONDS = 180.0
WithProgress = Callable[[Callable[[Callable[[str], None]], Any]], Any]


@dataclass(frozen=True)
class ClusterRequest:
    """Which nodes to examine, and with which interpreter; with torchrun or srun, "" is the one of `collect`."""

    ray: over_ray.RayCluster | None  # None: the nodes of the launcher that started this process
    port: int | None
    gpus_per_node: int | None
    timeout: float | None  # seconds


def examine_cluster(
    request: ClusterRequest,
    lanes: Sequence[Lane],
    model: str | None,
    policy: Policy,
    collect: Callable[[], Snapshot],
    with_progress: WithProgress,
) -> Report:
    """Return the report on all nodes; `collect` examines this one. Raises `Following` if node 0 reports."""
    seconds, local_size = request.timeout or TIMEOUT_SECONDS, 0
    gathered: GatheredNodes
    if request.ray is not None:
        cluster = request.ray
        gathered = with_progress(
            lambda progress: over_ray.gather_ray(cluster, lanes, model, policy.timeout, seconds, progress)
        )
    else:
        place = read_place(os.environ, request.port)
        gathered, local_size = gather_nodes(place, seconds, collect, with_progress), place.local_size
    sources = () if request.gpus_per_node else read_policy_sources(policy)
    placement = PlacementRequest(request.gpus_per_node or 0, sources, local_size)
    report: Report = with_progress(
        lambda progress: merge_nodes(gathered, placement, policy.profile, policy.select, policy.ignore)
    )
    return report


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
