"""The nodes of a cluster: which ones answered, and the facts in which they differ."""

from collections.abc import Iterator, Sequence

from attncheck.core.lists import group_values
from attncheck.core.node_ranges import MAX_NODES, format_nodes, name_nodes, parse_nodes, shorten_nodes
from attncheck.core.results.cluster import ClusterSection, NodeFact, NodeGroup, group_silent
from attncheck.report.sections import Block, Column, Fold, Heading, Items, Report, Row, SectionView, Table, TestCase

MAX_OTHERS = 10  # facts shown that do not belong to the attention stack; JSON contains all
MAX_GROUPS = 5  # values shown of one fact
MAX_COLUMNS = 24  # facts in the table of nodes
MAX_CELLS = 1200
MAX_VALUE = 80  # characters of a value in a cell


def blocks(report: Report, section: ClusterSection) -> Iterator[Block]:
    """Yield which nodes answered, the GPUs, the facts that differ, and a table of nodes by facts."""
    rows = [("", "nodes", describe_nodes(section)), *(("", "", line) for line in list_names(section))]
    rows += [("", "gpus", describe_gpus(section))] if section.gpus else []
    rows += [("lost", "no answer", line) for line in list_silent(section)]
    yield Items(tuple(rows))
    shown, all_facts = choose_facts(section, False), choose_facts(section, True)
    yield from _list_facts("Facts that differ", shown)
    if others := all_facts[len(shown) :]:
        title = f"{len(others)} more facts differ"
        yield Fold(title, tuple(_list_facts(title, others)), f"{title} (-v lists them)")
    if all_facts:
        facts = all_facts[:MAX_COLUMNS]
        yield Fold("Nodes by facts that differ", (_make_matrix(section, facts),))


def _list_facts(title: str, facts: Sequence[NodeFact]) -> Iterator[Block]:
    if facts:
        yield Heading(title)
        rows = (("", describe_subject(fact), describe_groups(fact, False)) for fact in facts)
        yield Items(tuple(rows), ("", "fact", "values and nodes"))


def _make_matrix(section: ClusterSection, facts: Sequence[NodeFact]) -> Table:
    """Return the table of nodes by facts; nodes with the same values share a row, and rare values are marked."""
    columns = tuple(Column(describe_subject(fact)[:MAX_VALUE], 2, left=True) for fact in facts)

    def make_cell(index: int, fact: NodeFact) -> tuple[str, str]:
        return (fact.groups[index].value[:MAX_VALUE], "yellow" * (index > 0)) if index >= 0 else ("not known", "dim")

    rows = [
        Row(_name_row(nodes), tuple(map(make_cell, indices, facts))) for nodes, indices in _group_rows(section, facts)
    ]
    limit = MAX_CELLS // (1 + len(facts))
    return Table("Nodes by facts that differ", "nodes", columns, tuple(rows), page_rows=limit)


def _group_rows(section: ClusterSection, facts: Sequence[NodeFact]) -> list[tuple[list[int], tuple[int, ...]]]:
    """Return nodes with the index of their value in each fact (-1: not known), the most common row first."""
    silent = {node.node for node in section.silent}
    indices = {node: [-1] * len(facts) for node in range(min(section.size, MAX_NODES)) if node not in silent}
    for column, fact in enumerate(facts):
        for index, group in enumerate(fact.groups):
            for node in parse_nodes(group.nodes):
                if node in indices:
                    indices[node][column] = index
    nodes_by_row = group_values((tuple(row), node) for node, row in indices.items())
    return sorted(((nodes, row) for row, nodes in nodes_by_row.items()), key=lambda item: (-len(item[0]), item[0][0]))


def _name_row(nodes: Sequence[int]) -> str:
    return shorten_nodes(format_nodes(nodes)) + (f" ({len(nodes)})" if len(nodes) > 1 else "")


def testcases(report: Report, section: ClusterSection) -> Iterator[TestCase]:
    """Yield a test case for whether all nodes answered, and one for each fact that differs; findings have their own."""
    reason = "; ".join(list_silent(section))
    yield TestCase("all nodes answered", "cluster", "error" if reason else "passed", reason, reason, "silent")
    for fact in section.facts:
        yield TestCase(f"differs: {describe_subject(fact)}", "cluster", "passed", "", describe_groups(fact, True))


def properties(report: Report, section: ClusterSection) -> Iterator[tuple[str, str]]:
    """Yield the launcher and the number of nodes."""
    yield "launcher", section.launcher
    yield "nodes", f"{section.answered} of {section.size}"


def describe_nodes(section: ClusterSection) -> str:
    """Return in one line how many nodes answered, and which one is shown."""
    answered = (
        f"all {section.size} answered" if not section.silent else f"{section.answered} of {section.size} answered"
    )
    count = len(section.facts)
    differing = f"{count} fact{'s' * (count != 1)} differ{'s' * (count == 1)}" if count else "nothing differs"
    shown = f"node {section.shown} is shown above" if section.size > 1 else ""
    return " · ".join(filter(None, (f"under {section.launcher}", answered, differing, shown)))


def list_names(section: ClusterSection) -> Iterator[str]:
    """Yield the launcher's names of nodes that differ or are silent, if these are not host names."""
    if not section.names:
        return
    outlying = {node.node for node in section.silent}
    for fact in section.facts:
        if fact.relation == "stack":
            outlying.update(number for group in fact.groups[1:] for number in parse_nodes(group.nodes))
    for node in sorted(outlying)[:MAX_OTHERS]:
        if node < len(section.names):
            yield f"node {node} is {section.launcher}'s {section.names[node]}"


def describe_gpus(section: ClusterSection) -> str:
    """Return the GPUs of the nodes in one line."""
    needed = f" · the job takes {section.gpus_per_node} of each node" if section.gpus_per_node else ""
    if [group.value for group in section.gpus] == ["not known"]:
        return f"{section.gpu_count}, as {section.launcher} counts them{needed}"
    groups = [describe_group(group) for group in section.gpus[:MAX_GROUPS]]
    left = sum(group.count for group in section.gpus[MAX_GROUPS:])
    more = [f"others on {left} nodes"] if left else []
    return f"{section.gpu_count} on {section.answered} nodes: {'; '.join([*groups, *more])}{needed}"


def list_silent(section: ClusterSection) -> Iterator[str]:
    """Yield a line for each reason for which nodes did not answer."""
    for reason, nodes in group_silent(section.silent):
        yield f"{name_nodes(nodes)}: {reason}"


def choose_facts(section: ClusterSection, verbose: bool) -> tuple[NodeFact, ...]:
    """Return the facts to show: those of the attention stack, and some of the rest."""
    facts = [fact for fact in section.facts if fact.groups]  # a document from elsewhere may contain one without groups
    stack = [fact for fact in facts if fact.relation == "stack"]
    others = [fact for fact in facts if fact.relation != "stack"]
    return (*stack, *(others if verbose else others[:MAX_OTHERS]))


def describe_subject(fact: NodeFact) -> str:
    """Return what differs, with its kind if the name alone is ambiguous."""
    if fact.kind in ("package", "torch", "variable") or fact.kind in fact.subject:
        return fact.subject
    return f"{fact.kind} {fact.subject}"


def describe_groups(fact: NodeFact, verbose: bool) -> str:
    """Return the values with their nodes in one line."""
    limit = len(fact.groups) if verbose else MAX_GROUPS
    return " · ".join(map(describe_group, fact.groups[:limit])) + describe_rest(fact, limit)


def describe_rest(fact: NodeFact, shown: int) -> str:
    """Return how many nodes have values that are not shown; "" if there are none."""
    left = sum(group.count for group in fact.groups[shown:])
    return f" · different values on {left} node{'s' * (left > 1)}" if left else ""


def describe_group(group: NodeGroup) -> str:
    """Return a value with its nodes: "5.17.0 on 61 nodes: 0-1, 5-63"."""
    count = "" if group.count == 1 else f"{group.count} "
    return f"{group.value} on {count}{name_nodes(group.nodes).replace(' ', ': ' if group.count > 1 else ' ', 1)}"


VIEW = SectionView("Nodes", blocks, testcases=testcases, properties=properties)
