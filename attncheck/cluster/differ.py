"""The finding ATN580: nodes have different attention stacks."""

from collections.abc import Iterator, Mapping, Sequence

from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.lock import LockedPackage
from attncheck.core.node_ranges import name_nodes, shorten_nodes
from attncheck.core.results.cluster import NodeFact, NodeGroup
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.torch_builds import INDEX_URL
from attncheck.doctor.queries.requirements import avoid_faulty
from attncheck.stacks.lock.make import list_packages

CODE = "ATN580"
MAX_SUBJECTS = 4  # how many a message names
MAX_VALUES = 6  # how many of one fact the evidence shows
MUST_AGREE = ("torch", "CUDA of torch", "HIP of torch", "NCCL", "flash-attn", "flash-attn-3", "flash-attn-4")
MUST_AGREE_PREFIX = "nvidia-nccl-"
IMAGE = Fix("start all nodes the same way", "manual", "use one image, or one lock file, for all nodes")
SETTINGS = Fix(
    "set them identically for every rank", "manual", "export them in the job's script, not in a node's profile"
)
Partition = tuple[bool, tuple[str, ...]]  # whether there is a majority, and the nodes with the first value


def find_differing_nodes(facts: Sequence[NodeFact], snapshots: Mapping[int, Snapshot]) -> Iterator[Finding]:
    """Yield a finding for each set of nodes that differs from the others in something relevant.

    It is an error if ranks would compute or communicate with different code: torch, its CUDA, NCCL, flash-attn.
    """
    by_partition: dict[Partition, list[NodeFact]] = {}
    for fact in facts:
        if fact.relation == "stack":
            partition = (fact.has_majority, tuple(group.nodes for group in fact.groups[1:]))
            by_partition.setdefault(partition, []).append(fact)
    for differing in by_partition.values():
        yield engine.make_finding_by_code(CODE, _describe_difference(differing, snapshots))


def _describe_difference(facts: Sequence[NodeFact], snapshots: Mapping[int, Snapshot]) -> Problem:
    subjects = list(dict.fromkeys(fact.subject for fact in facts))
    shown = ", ".join(subjects[:MAX_SUBJECTS])
    more = f" and {len(subjects) - MAX_SUBJECTS} more" if len(subjects) > MAX_SUBJECTS else ""
    first = facts[0]
    others = first.groups[1:]
    if first.has_majority and len(others) == 1:
        rest = f"the other {first.groups[0].count}" if first.groups[0].count > 1 else "the other node"
        message = f"{name_nodes(others[0].nodes)} differ{'s' * (others[0].count == 1)} from {rest} in {shown}{more}"
    else:
        message = f"nodes differ in {shown}{more}"
    return Problem(
        message=message,
        evidence=tuple(describe_fact(fact) for fact in facts),
        fixes=tuple(_list_fixes(facts, snapshots)),
        subject=", ".join(subjects[:MAX_SUBJECTS]),
        predicted=not any(map(_must_agree, facts)),
    )


def describe_fact(fact: NodeFact) -> str:
    """Return a fact with its values in one line: "torch: 2.11.0 on 61 nodes; 2.9.0 on nodes 2-4"."""
    name = fact.subject if fact.kind in ("package", "variable") else f"{fact.kind} {fact.subject}"
    name = fact.subject if fact.kind in fact.subject else name
    return f"{name}: {describe_groups(fact.groups)}"


def describe_groups(groups: Sequence[NodeGroup]) -> str:
    """Return values with their nodes; if the most common value has many nodes, only their count."""
    parts = []
    for index, group in enumerate(groups[:MAX_VALUES]):
        is_counted = index == 0 and group.count > 2
        parts.append(f"{group.value} on {f'{group.count} nodes' if is_counted else name_nodes(group.nodes)}")
    left = sum(group.count for group in groups[MAX_VALUES:])
    return "; ".join([*parts, *([f"different values on {left} nodes"] if left else [])])


def _must_agree(fact: NodeFact) -> bool:
    return fact.kind in ("package", "torch") and (
        fact.subject in MUST_AGREE or fact.subject.startswith(MUST_AGREE_PREFIX)
    )


def _list_fixes(facts: Sequence[NodeFact], snapshots: Mapping[int, Snapshot]) -> Iterator[Fix]:
    """Yield fixes that make the nodes identical: install the majority's versions on the nodes that differ."""
    if any(fact.kind != "variable" for fact in facts):
        if facts[0].has_majority and len(facts[0].groups) == 2:
            yield from _install_majority(facts, snapshots)
        yield IMAGE
    if any(fact.kind == "variable" for fact in facts):
        yield SETTINGS


def _install_majority(facts: Sequence[NodeFact], snapshots: Mapping[int, Snapshot]) -> Iterator[Fix]:
    majority, outliers = facts[0].groups[0], facts[0].groups[1]
    wanted = [fact.subject for fact in facts if fact.kind == "package"]
    packages = [
        package
        for package in list_packages(snapshots[_first_node(majority)])
        if package.name in wanted and package.from_index and not ("torch" in wanted and package.name[:7] == "nvidia-")
    ]
    snapshot = snapshots[_first_node(outliers)]
    title = f"on {'node' if outliers.count == 1 else 'nodes'} {shorten_nodes(outliers.nodes)}: install what the other"
    title += f" {majority.count} nodes have" if majority.count > 1 else " node has"
    plain = [package for package in packages if "+" not in package.version]
    if not all(avoid_faulty(f"{package.name}=={package.version}") for package in packages):
        return  # the version on most nodes is known to be faulty
    for index, group in enumerate(filter(None, ([p for p in packages if p not in plain], plain))):
        requirements = [f"{package.name}=={package.version}" for package in group]
        yield install.install_packages(
            snapshot, *requirements, options=_index_options(group), title=title, follows=index > 0
        )


def _index_options(packages: Sequence[LockedPackage]) -> tuple[str, ...]:
    local = packages[0].version.partition("+")[2]
    return ("--index-url", f"{INDEX_URL}/{local}") if local else ()


def _first_node(group: NodeGroup) -> int:
    return int(group.nodes.partition(",")[0].partition("-")[0])
