"""The facts in which nodes differ: each fact once, with the nodes that have each value.

The time is linear in the number of nodes. A group of facts that is one object on all nodes is skipped, and one that has
few versions is compared version by version.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from attncheck.core.node_ranges import format_nodes
from attncheck.core.results.cluster import NodeFact, NodeGroup
from attncheck.core.snapshot import Snapshot, Unreadable
from attncheck.doctor.memory import RuleMemory
from attncheck.stacks.diff.facts import StackFact, list_fact_sources
from attncheck.stacks.diff.rank import KINDS, is_of_stack
from attncheck.stacks.diff.sides import NOT_INSTALLED, NOT_SET

EMPTY = "empty"
Key = tuple[str, str]  # kind and subject of a fact
SHARED_VARIABLES = ("NCCL_", "TORCH_NCCL_", "CUBLAS_WORKSPACE_CONFIG", "FLASH_ATTENTION_DETERMINISTIC")
# these name a node's hardware
LOCAL_VARIABLES = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")


@dataclass(frozen=True)
class NodeVariant:
    """Nodes with identical facts from one source, and a snapshot that contains them."""

    facts: Mapping[Key, str]
    snapshot: Snapshot
    nodes: tuple[int, ...]

    def read(self, key: Key) -> str | None:
        """Return a fact as text; None if it is not known for these nodes."""
        if key in self.facts:
            return self.facts[key] or EMPTY
        kind, subject = key
        if kind == "package":
            return None if isinstance(self.snapshot.package(subject), Unreadable) else NOT_INSTALLED
        if kind == "variable":
            return None if self.snapshot.environ_gap else NOT_SET
        return "none" if kind == "shadow" else None


def find_differences(snapshots: Mapping[int, Snapshot]) -> tuple[NodeFact, ...]:
    """Return the facts in which nodes differ, those of the attention stack first."""
    memory: RuleMemory[tuple[StackFact, ...]] = RuleMemory()
    differing: dict[Key, NodeFact] = {}
    for number, source in enumerate(list_fact_sources()):
        variants = _list_variants(str(number), source, snapshots, memory)
        if len(variants) > 1:
            differing.update({(fact.kind, fact.subject): fact for fact in _compare_variants(variants)})
    moved = {subject for kind, subject in differing if kind in ("package", "wheel")}
    facts = [
        fact
        for fact in differing.values()
        if not (fact.kind in ("wheel", "content", "files") and ("package", fact.subject) in differing)
        and not (fact.kind == "content" and fact.subject in moved)
    ]
    facts.sort(key=lambda fact: (fact.relation != "stack", KINDS.index(fact.kind), fact.subject))
    return tuple(facts)


def _list_variants(
    name: str,
    source: Callable[[Snapshot], Iterator[StackFact]],
    snapshots: Mapping[int, Snapshot],
    memory: RuleMemory[tuple[StackFact, ...]],
) -> list[NodeVariant]:
    """Return the different facts of one source, each with its nodes."""
    nodes_by_facts: dict[tuple[StackFact, ...], list[int]] = {}
    known: dict[int, list[int]] = {}  # by the identity of objects that the memory keeps alive as long as we use them
    kept: list[tuple[StackFact, ...]] = []
    for node, snapshot in snapshots.items():
        facts = memory.recall(name, snapshot, lambda recorded: tuple(source(recorded)))
        if id(facts) not in known:
            kept.append(facts)
            known[id(facts)] = nodes_by_facts.setdefault(facts, [])
        known[id(facts)].append(node)
    return [
        NodeVariant({(fact.kind, fact.subject): fact.text for fact in facts}, snapshots[nodes[0]], tuple(nodes))
        for facts, nodes in nodes_by_facts.items()
    ]


def _compare_variants(variants: Sequence[NodeVariant]) -> Iterator[NodeFact]:
    for key in sorted({key for variant in variants for key in variant.facts}):
        nodes_by_value: dict[str, list[int]] = {}
        for variant in variants:
            value = variant.read(key)
            if value is not None:
                nodes_by_value.setdefault(value, []).extend(variant.nodes)
        if len(nodes_by_value) > 1:
            kind, subject = key
            matters = is_of_stack(kind, subject) or kind in ("python", "platform") or _is_shared(kind, subject)
            yield NodeFact(kind, subject, "stack" if matters else "other", group_nodes(nodes_by_value))


def _is_shared(kind: str, subject: str) -> bool:
    """Return whether a fact is a setting of communication or determinism that all ranks must share (ATN523)."""
    return kind == "variable" and subject.startswith(SHARED_VARIABLES) and subject not in LOCAL_VARIABLES


def group_nodes(nodes_by_value: Mapping[str, Sequence[int]]) -> tuple[NodeGroup, ...]:
    """Return values with their nodes, the most common first, then by the lowest node."""
    groups = sorted(nodes_by_value.items(), key=lambda item: (-len(item[1]), min(item[1])))
    return tuple(NodeGroup(value, len(nodes), format_nodes(nodes)) for value, nodes in groups)
