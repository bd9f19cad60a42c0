"""Gathers every node's snapshot, using torchrun, srun or Ray, and makes one report of them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attncheck.cluster import over_ray
from attncheck.cluster.merge import GatheredNodes, merge_nodes
from attncheck.cluster.over_nodes import TIMEOUT_SECONDS, gather_nodes
from attncheck.cluster.place import read_place
from attncheck.cluster.placement import PlacementRequest
from attncheck.core.report import Report
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.probes.collect import Lane
from attncheck.gate.policy import Policy
from attncheck.gate.run import read_policy_sources

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
