"""The options of `attncheck doctor` for the nodes of a cluster, and their report."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from attncheck.cli.measuring import collect_lanes
from attncheck.cli.options import NODES, option
from attncheck.cli.progress import with_progress
from attncheck.cli.settings import parse_lanes, refuse_options, select_interpreter
from attncheck.core.io.errors import BadUsage

if TYPE_CHECKING:
    from attncheck.core.report import Report
    from attncheck.core.snapshot import Snapshot
    from attncheck.gate.policy import Policy


@dataclass(frozen=True)
class NodesOptions:
    """Whether doctor examines one machine or the nodes of a cluster, and how it finds them."""

    nodes: Annotated[
        bool,
        option(
            NODES,
            "--nodes",
            help="Examine every node that torchrun or srun started this on, and report once. Default: this machine.",
        ),
    ] = False
    ray: Annotated[
        str | None,
        option(
            NODES,
            "--ray",
            metavar="ADDRESS",
            help="Examine every node of this Ray cluster: auto, HOST:PORT or ray://HOST:PORT. Default: no cluster.",
        ),
    ] = None
    ray_runtime_env: Annotated[
        str | None,
        option(
            NODES,
            "--ray-runtime-env",
            metavar="FILE|JSON",
            help="Examine nodes in this runtime environment, as a job's. Default: each node's own interpreter.",
        ),
    ] = None
    gpus_per_node: Annotated[
        int | None,
        option(
            NODES,
            "--gpus-per-node",
            min=1,
            max=1024,
            metavar="N",
            help=(
                "Report nodes with fewer GPUs. Default: the GPUs that the policy's launch files use, or "
                "torchrun's ranks per "
                "node."
            ),
        ),
    ] = None
    nodes_timeout: Annotated[
        float | None,
        option(
            NODES,
            "--nodes-timeout",
            min=1,
            max=86400,
            metavar="SECONDS",
            help="Report without nodes that have not answered after this many seconds. Default: 180.",
        ),
    ] = None
    nodes_port: Annotated[
        int | None,
        option(
            NODES,
            "--nodes-port",
            min=1,
            max=65535,
            metavar="PORT",
            help="Let nodes connect to this port of node 0. Default: one of four, by the launch's id.",
        ),
    ] = None

    @property
    def is_cluster(self) -> bool:
        """Whether to examine a cluster. Raises `BadUsage` for options that need one, and if two clusters are given."""
        if self.nodes and self.ray is not None:
            raise BadUsage("--nodes and --ray are two ways to reach the nodes: choose one")
        if not self.nodes:
            refuse_options("{} is for --nodes", nodes_port=self.nodes_port)
            if self.ray is None:
                refuse_options(
                    "{} is for --nodes or --ray", gpus_per_node=self.gpus_per_node, nodes_timeout=self.nodes_timeout
                )
        if self.ray is None:
            refuse_options("{} is for --ray", ray_runtime_env=self.ray_runtime_env is not None)
        return self.nodes or self.ray is not None


def examine_nodes(
    options: NodesOptions, python: str | None, lanes: Sequence[str], model: str | None, policy: "Policy"
) -> "Report":
    """Return the report on all nodes. Raises `Following` on a node that does not report."""
    from attncheck.cluster import over_ray
    from attncheck.cluster.gather import ClusterRequest, examine_cluster

    cluster = None
    if options.ray is not None:
        runtime_env = over_ray.read_runtime_env(options.ray_runtime_env)
        cluster = over_ray.RayCluster(over_ray.check_address(options.ray), runtime_env, python or sys.executable)
    request = ClusterRequest(cluster, options.nodes_port, options.gpus_per_node, options.nodes_timeout)

    def collect() -> "Snapshot":
        return collect_lanes(select_interpreter(python), lanes, model, False, policy)

    return examine_cluster(request, parse_lanes(lanes), model, policy, collect, with_progress)
