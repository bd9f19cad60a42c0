"""What doctor observed on the nodes of a cluster. Nodes are numbers: host names are not recorded."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from attncheck.core.lists import group_values
from attncheck.core.node_ranges import format_nodes, name_nodes
from attncheck.core.report import OpenQuestion, Section


@dataclass(frozen=True)
class NodeGroup:
    """One value, and the nodes that have it."""

    value: str
    count: int
    nodes: str  # "0-31, 36-63"


@dataclass(frozen=True)
class NodeFact:
    """One fact in which nodes differ, with its values, the most common first."""

    kind: str  # "package", "torch", "driver", "variable", …
    subject: str
    relation: Literal["stack", "other"]  # whether it belongs to the attention stack or to other packages
    groups: tuple[NodeGroup, ...]

    @property
    def has_majority(self) -> bool:
        """Whether more than half of the nodes that know the fact share its first value."""
        return 2 * self.groups[0].count > sum(group.count for group in self.groups)


@dataclass(frozen=True)
class NodeFinding:
    """A finding of the report, and the nodes that have it."""

    code: str
    subject: str
    message: str
    count: int
    nodes: str  # "0-31, 36-63"


@dataclass(frozen=True)
class SilentNode:
    """A node that returned no snapshot, and why."""

    node: int
    reason: str


@dataclass(frozen=True)
class ClusterSection(Section):
    """The facts and findings of all nodes as one answer; the report's snapshot is that of the node `shown`."""

    name: ClassVar[str] = "cluster"
    launcher: str = ""  # "torchrun", "Slurm", "Ray", "ranks"
    size: int = 0  # number of nodes expected to answer
    shown: int = 0
    # the launcher's names for its nodes if they are not hosts: Ray's node ids; otherwise empty
    names: tuple[str, ...] = ()
    gpus: tuple[NodeGroup, ...] = ()  # visible GPUs per node
    gpu_count: int = 0  # total over all nodes
    gpus_per_node: int = 0  # GPUs that the job needs per node; 0: not known
    facts: tuple[NodeFact, ...] = ()  # the facts that differ between nodes
    findings: tuple[NodeFinding, ...] = ()
    silent: tuple[SilentNode, ...] = ()

    @property
    def answered(self) -> int:
        """The number of nodes that answered."""
        return self.size - len(self.silent)

    @property
    def is_uniform(self) -> bool:
        """Whether all nodes are like the one shown: none is silent, differs or has other findings."""
        alike = all(fact.relation == "other" for fact in self.facts)
        return alike and not self.silent and all(finding.count == self.size for finding in self.findings)

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """Nodes that returned no snapshot, so that nothing is known about them."""
        return tuple(
            OpenQuestion(self.name, "unanswered", f"{name_nodes(nodes)}: {reason}")
            for reason, nodes in group_silent(self.silent)
        )


def group_silent(silent: tuple[SilentNode, ...]) -> tuple[tuple[str, str], ...]:
    """Return each reason for silence with the nodes that it applies to."""
    by_reason = group_values((node.reason, node.node) for node in silent)
    return tuple((reason, format_nodes(nodes)) for reason, nodes in by_reason.items())


SECTION = ClusterSection
