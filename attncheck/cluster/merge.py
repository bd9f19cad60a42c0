"""Makes one report from the snapshots of all nodes."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from attncheck.cluster.differ import find_differing_nodes
from attncheck.cluster.differences import find_differences, group_nodes
from attncheck.cluster.judge import judge_nodes
from attncheck.cluster.packing import Failure, Unpacker
from attncheck.cluster.placement import (
    NOTHING_REQUESTED,
    PlacementRequest,
    choose_placement,
    count_gpus,
    find_lacking_nodes,
)
from attncheck.core.io.errors import Unanswered
from attncheck.core.node_ranges import parse_nodes
from attncheck.core.report import Report, by_severity, is_selected
from attncheck.core.results.cluster import ClusterSection, NodeFact, SilentNode
from attncheck.core.snapshot import Known, Snapshot
from attncheck.doctor.profile import Profile


@dataclass(frozen=True)
class GatheredNodes:
    """The results of all nodes: packed snapshots by node, and why the others sent none."""

    launcher: str
    size: int
    documents: Mapping[int, bytes]
    silent: Mapping[int, str]
    names: tuple[str, ...] = ()
    # GPUs that the launcher offers to jobs, if it counts them
    registered_gpus: Mapping[int, int] = field(default_factory=dict)


def merge_nodes(
    gathered: GatheredNodes,
    request: PlacementRequest = NOTHING_REQUESTED,
    profile: Profile = "auto",
    select: Collection[str] = (),
    ignore: Collection[str] = (),
) -> Report:
    """Return doctor's report on all nodes. Raises `Unanswered` if none of them sent a snapshot."""
    snapshots, silent = _unpack(gathered)
    if not snapshots:
        raise Unanswered(f"no node answered: {next(iter(silent.values()), 'there is none')}")
    judged = judge_nodes(snapshots, profile, select, ignore)
    facts = find_differences(snapshots)
    counts = _count_gpus(snapshots, gathered.registered_gpus)
    shown = _choose_shown(snapshots, facts)
    placement = choose_placement(request, snapshots[shown], counts)
    own = [
        *find_differing_nodes(facts, snapshots),
        *find_lacking_nodes(counts, placement, len(counts) == gathered.size),
    ]
    section = ClusterSection(
        gathered.launcher,
        gathered.size,
        shown,
        gathered.names,
        group_nodes(_group_gpus(snapshots)) if counts else (),
        sum(counts.values()),
        placement.gpus_per_node,
        facts,
        judged.rows,
        tuple(SilentNode(node, reason) for node, reason in sorted(silent.items())),
    )
    return Report(
        "doctor",
        snapshots[shown],
        by_severity((*judged.findings, *(f for f in own if is_selected(f.code, select, ignore)))),
        judged.skips,
        judged.passed,
        judged.suppressed,
        sections={"doctor": judged.doctor, "cluster": section},
    )


def _unpack(gathered: GatheredNodes) -> tuple[dict[int, Snapshot], dict[int, str]]:
    unpacker, snapshots, silent = Unpacker(), {}, dict(gathered.silent)
    for node, data in sorted(gathered.documents.items()):
        content = unpacker.unpack(data)
        if isinstance(content, Failure):
            silent[node] = content.reason
        else:
            snapshots[node] = content
    return snapshots, silent


def _count_gpus(snapshots: Mapping[int, Snapshot], registered: Mapping[int, int]) -> dict[int, int]:
    """Return how many GPUs a job would get on each node; nodes where that is not known are omitted."""
    counts = {}
    for node, snapshot in snapshots.items():
        known = [count for count in (count_gpus(snapshot), registered.get(node)) if count is not None]
        if known:
            counts[node] = min(known)
    return counts


def _group_gpus(snapshots: Mapping[int, Snapshot]) -> dict[str, list[int]]:
    """Return the nodes grouped by a description of their visible GPUs: "8 × NVIDIA H200 (sm_90)"."""
    described: dict[int, str] = {}
    nodes_by_gpus: dict[str, list[int]] = {}
    for node, snapshot in snapshots.items():
        if id(snapshot.devices) not in described:
            described[id(snapshot.devices)] = _describe_gpus(snapshot)
        nodes_by_gpus.setdefault(described[id(snapshot.devices)], []).append(node)
    return nodes_by_gpus


def _describe_gpus(snapshot: Snapshot) -> str:
    if not isinstance(snapshot.devices, Known):
        return "none" if count_gpus(snapshot) == 0 else "not known"
    kinds = Counter(f"{device.name} ({device.sm})" for device in snapshot.visible_devices())
    return ", ".join(f"{count} × {kind}" for kind, count in sorted(kinds.items())) or "none"


def _choose_shown(snapshots: Mapping[int, Snapshot], facts: tuple[NodeFact, ...]) -> int:
    """Return the lowest node among those most similar to the others."""
    outlying: Counter[int] = Counter()
    for fact in facts:
        for group in fact.groups[1:]:
            outlying.update(parse_nodes(group.nodes))
    return min(snapshots, key=lambda node: (outlying[node], node))
