"""Which node of a launch we are, and where its node 0 listens: read from the variables of torchrun or srun."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from attncheck.core.io.errors import BadUsage
from attncheck.workers.launcher_env import RankEnv, read_rank_env

KEY_VARIABLE = "ATTNCHECK_NODES_KEY"  # the user's secret, the same on every node
# below the ports that Linux gives to outgoing connections (by default 32768 and above)
FIRST_PORT, PORT_RANGE = 10000, 20000
CANDIDATES = 4  # ports that node 0 tries in turn
START = "start it on every node: torchrun --no-python attncheck doctor --nodes, or srun attncheck doctor --nodes"
# Variables that identify one launch, with the same value on all of its nodes.
LAUNCH_VARIABLES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
)


@dataclass(frozen=True)
class NodePlace:
    """One process among the nodes of a launch. `address` and `key` are never shown."""

    launcher: str  # "torchrun", "Slurm", "ranks"
    node: int
    nodes: int
    leads: bool  # whether this process of the node is the one that examines it
    local_size: int  # number of this launch's processes on a node; 0: not known
    address: str = field(repr=False)  # address of node 0
    ports: tuple[int, ...]  # ports on which node 0 may listen, in the order of its attempts
    key: bytes = field(repr=False)  # the key by which nodes of one launch recognise each other


def read_place(environ: Mapping[str, str], port: int | None = None) -> NodePlace:
    """Return our place. Raises `BadUsage` if no launcher started a process on every node."""
    rank = read_rank_env(environ)
    if rank is None:
        raise BadUsage(f"--nodes: no launcher started this process; {START}")
    launcher, node, nodes, local_size = _read_node(rank, environ)
    if not 0 <= node < nodes:
        raise BadUsage(f"--nodes: according to the launcher, this is node {node} of {nodes}; {START}")
    words = [environ.get(name, "") for name in LAUNCH_VARIABLES]
    secret = environ.get(KEY_VARIABLE, "").encode("utf-8", "surrogatepass")
    key = hmac.new(secret, json.dumps([launcher, nodes, *words]).encode(), hashlib.sha256).digest()
    leads = rank.environment["LOCAL_RANK"] == "0"
    ports = (port,) if port is not None else _derive_ports(key)
    return NodePlace(launcher, node, nodes, leads, local_size, rank.environment["MASTER_ADDR"], ports, key)


def _read_node(rank: RankEnv, environ: Mapping[str, str]) -> tuple[str, int, int, int]:
    """Return the launcher, our node, the number of nodes, and the number of ranks per node (0: not known).

    torchrun sets GROUP_RANK and GROUP_WORLD_SIZE for an agent, of which a node has one (torch 2.13.0
    distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers`). srun sets SLURM_NODEID and
    SLURM_STEP_NUM_NODES ("Output environment variables" of srun(1)). Other launchers state the number of ranks per
    node.
    """
    local_size = _read_number(environ, "LOCAL_WORLD_SIZE") or 0
    if "RANK" not in environ:
        node, nodes = _read_number(environ, "SLURM_NODEID"), _read_number(environ, "SLURM_STEP_NUM_NODES")
        nodes = nodes or _read_number(environ, "SLURM_NNODES")
        if node is None or not nodes:
            raise BadUsage("--nodes: SLURM_NODEID and SLURM_STEP_NUM_NODES are not set; start it with srun")
        return "Slurm", node, nodes, 0
    node, nodes = _read_number(environ, "GROUP_RANK"), _read_number(environ, "GROUP_WORLD_SIZE")
    if node is not None and nodes:
        return "torchrun", node, nodes, local_size
    if local_size:
        return "ranks", rank.rank // local_size, -(-rank.world_size // local_size), local_size
    raise BadUsage(f"--nodes: RANK is set, but not which node this is (LOCAL_WORLD_SIZE); {START}")


def _read_number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 9:
        raise BadUsage(f"--nodes: the launcher's {name} is not a number")
    return int(text)


def _derive_ports(key: bytes) -> tuple[int, ...]:
    """Return the ports of a launch: the same on every node, and rarely those of another launch."""
    numbers = hashlib.sha256(b"ports" + key).digest()
    pairs = (int.from_bytes(numbers[2 * index : 2 * index + 2], "big") for index in range(len(numbers) // 2))
    return tuple(dict.fromkeys(FIRST_PORT + pair % PORT_RANGE for pair in pairs))[:CANDIDATES]
