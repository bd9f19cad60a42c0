"""Chooses the pairs of ranks that exchange data in the communication check, and their order.

Ranks are assumed to be numbered node by node, as by torchrun and by srun's block distribution. If they are not, other
pairs are measured; the report counts the pairs that were.
"""

import re
from collections.abc import Iterator, Mapping

MAX_ALL_PAIRS_RANKS = 8  # with more ranks not every pair is tried
MAX_STAR_RANKS = 64  # with more ranks rank 0 is not paired with all; each pair costs it a communicator's memory
MAX_NODE_PAIRS = 120  # the most exchanges between nodes: enough for every pair of sixteen nodes
MIN_NODE_OFFSETS = 2  # with more nodes, each exchanges data with at least twice as many others
SLURM_TASKS = re.compile(r"(\d+)(?:\(x\d+\))?")  # "8(x4)"; "8(x3),4" if nodes differ

Pair = tuple[int, int]


def count_ranks_per_node(environ: Mapping[str, str], world_size: int) -> int:
    """Return the launcher's number of ranks per node; 0 if it is not given, or not the same on all nodes.

    torchrun sets LOCAL_WORLD_SIZE, srun SLURM_STEP_TASKS_PER_NODE (https://slurm.schedmd.com/srun.html). Without an
    external launcher all ranks are on this host.
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        text = environ.get("LOCAL_WORLD_SIZE", "" if "LOCAL_RANK" in environ else "1")
    elif "SLURM_PROCID" in environ and environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    else:
        return world_size
    match = SLURM_TASKS.fullmatch(text)
    count = int(match[1]) if match and len(match[1]) < 10 else 0
    return count if count and world_size % count == 0 else 0


def choose_pairs(world_size: int, ranks_per_node: int = 0) -> tuple[Pair, ...]:
    """Return the pairs to try: all if at most 8 ranks; otherwise ring neighbours, rank 0 with up to 64, and nodes.

    Every two of up to sixteen nodes have at least one pair of ranks. With more nodes, each is paired with some others.
    The pairs of a rank are spread over the check, so that a short disturbance does not look like a fault of that rank.
    """
    if world_size <= MAX_ALL_PAIRS_RANKS:
        return tuple((a, a + offset) for offset in range(1, world_size) for a in range(world_size - offset))
    neighbours = [(rank, rank + 1) for rank in range(world_size - 1)]
    with_rank_0 = (
        [(0, rank) for rank in range(2, world_size)] if world_size <= MAX_STAR_RANKS else [(0, world_size - 1)]
    )
    between_nodes = _choose_pairs_between_nodes(world_size, ranks_per_node) if ranks_per_node else ()
    return tuple(dict.fromkeys((*neighbours, *between_nodes, *with_rank_0)))


def _choose_pairs_between_nodes(world_size: int, ranks_per_node: int) -> Iterator[Pair]:
    """Yield pairs of ranks with the same local rank on two nodes, and therefore on the same network rail.

    If there is no room for every local rank, they take turns.
    """
    nodes = world_size // ranks_per_node
    if nodes < 2:
        return
    all_offsets = nodes * (nodes - 1) // 2
    if all_offsets <= MAX_NODE_PAIRS:
        offsets = list(range(1, nodes))
        has_room = all_offsets * ranks_per_node <= MAX_NODE_PAIRS
    else:
        count, has_room = max(MIN_NODE_OFFSETS, MAX_NODE_PAIRS // nodes), False
        offsets = [1 + index * (nodes // 2 - 1) // count for index in range(count)]
    wraps = all_offsets > MAX_NODE_PAIRS  # so that the last nodes have as many partners as the first
    for offset in offsets:
        for node in range(nodes if wraps else nodes - offset):
            other = (node + offset) % nodes
            places = range(ranks_per_node) if has_room else ((node + other) % ranks_per_node,)
            for place in places:
                ranks = sorted((node * ranks_per_node + place, other * ranks_per_node + place))
                yield ranks[0], ranks[1]
