"""The finding ATN581: a node has fewer GPUs than the job uses there."""

from collections.abc import Iterator, Mapping

from attncheck.cluster.placement import Placement
from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.lists import group_values
from attncheck.core.node_ranges import format_nodes, name_nodes
from attncheck.core.snapshot import NOT_ASKED, Absent, Known, Snapshot
from attncheck.doctor import engine

CODE = "ATN581"


def count_gpus(snapshot: Snapshot) -> int | None:
    """Return how many GPUs a job on this node would see; None if that could not be examined."""
    if isinstance(snapshot.devices, Known):
        return len(snapshot.visible_devices())
    return 0 if isinstance(snapshot.devices, Absent) and snapshot.devices.reason != NOT_ASKED else None


def find_lacking_nodes(counts: Mapping[int, int], placement: Placement, knows_all: bool) -> Iterator[Finding]:
    """Yield a finding if some nodes have fewer GPUs than the job uses there, or all nodes have fewer than it needs.

    `counts` are the GPUs of each node; `knows_all` is whether it covers every node.
    """
    required, total = placement.gpus_per_node, sum(counts.values())
    lacking = {node: count for node, count in counts.items() if count < required}
    if lacking:
        yield engine.make_finding_by_code(CODE, _describe_lacking(lacking, counts, placement))
    elif knows_all and total < placement.gpus:
        message = f"the nodes have {total} GPUs in total, fewer than the {placement.gpus} that {placement.wanted_by}"
        fix = Fix("add nodes, or request fewer GPUs", "manual", f"{placement.gpus - total} GPUs are missing")
        evidence = _list_counts(counts)
        yield engine.make_finding_by_code(CODE, Problem(message, evidence, (fix,), "GPUs of nodes"))


def _describe_lacking(lacking: Mapping[int, int], counts: Mapping[int, int], placement: Placement) -> Problem:
    required, is_one = placement.gpus_per_node, len(lacking) == 1
    total = f"{sum(counts.values())} GPUs on {len(counts)} nodes; {required * len(counts)} are needed"
    have = f"{len(counts) - len(lacking)} of {len(counts)} nodes have {required} or more"
    return Problem(
        message=f"{name_nodes(format_nodes(lacking))} {'has' if is_one else 'have'} fewer than the {required} "
        f"GPU{'s' * (required > 1)} that {placement.wanted_by}",
        evidence=(*_list_counts(lacking), total),
        fixes=(
            Fix("list the remaining GPUs there", "advice", "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES"),
            Fix(f"exclude {'that node' if is_one else 'those nodes'}, or request fewer", "manual", have),
        ),
        subject="GPUs of nodes",
    )


def _list_counts(counts: Mapping[int, int]) -> tuple[str, ...]:
    nodes_by_count = group_values((count, node) for node, count in counts.items())
    return tuple(
        f"{'no GPU' if count == 0 else '1 GPU' if count == 1 else f'{count} GPUs'} on {name_nodes(format_nodes(nodes))}"
        for count, nodes in sorted(nodes_by_count.items())
    )
