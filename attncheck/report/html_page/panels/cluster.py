"""The nodes of a cluster: who answered, facts that differ, and a matrix of nodes by facts.

Nodes that have the same value of every fact share a row, so that thousands of nodes are a few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attncheck.core.node_ranges import MAX_NODES, format_nodes, parse_nodes, shorten_nodes
from attncheck.core.report import Report
from attncheck.core.results.cluster import ClusterSection, NodeFact
from attncheck.report.html_page.elements import Markup, bullet_list, element
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.room import clip
from attncheck.report.html_page.tables import cell, make_table, row_head, text_table
from attncheck.report.sections.cluster import (
    choose_facts,
    describe_gpus,
    describe_group,
    describe_nodes,
    describe_subject,
    list_names,
    list_silent,
)

MAX_COLUMNS = 24  # facts in the matrix
MAX_CELLS = 1200
MAX_GROUPS = 8  # values of one fact
MAX_VALUE = 80  # characters of a value in a cell


def show(report: Report, section: ClusterSection) -> Iterator[Markup]:
    """Yield who answered, the matrix, and the facts that differ."""
    gpus = [f"GPUs: {describe_gpus(section)}"] if section.gpus else []
    lines = [describe_nodes(section), *list_names(section), *gpus]
    yield bullet_list(clip(line) for line in lines)
    if section.silent:
        yield element("p", "without an answer, so that nothing is known of them:")
        yield bullet_list(clip(line) for line in list_silent(section))
    facts = choose_facts(section, True)
    if facts:
        yield _make_matrix(section, facts[:MAX_COLUMNS])
        rows = [(describe_subject(fact), describe_group(fact.groups[0]), _describe_others(fact)) for fact in facts]
        yield text_table("Facts that differ", ("what differs", "most nodes", "other nodes"), rows)


def _make_matrix(section: ClusterSection, facts: Sequence[NodeFact]) -> Markup:
    """Return the table of nodes by facts; what is not the most common value is marked, in colour and in bold."""
    rows, limit = _group_rows(section, facts), MAX_CELLS // (1 + len(facts))
    head = ("nodes", *(clip(describe_subject(fact), MAX_VALUE) for fact in facts))
    written = ([row_head(_describe_row(nodes)), *map(_write_cell, indices, facts)] for nodes, indices in rows[:limit])
    return make_table("Nodes by facts that differ", head, written, omitted=max(0, len(rows) - limit))


def _group_rows(section: ClusterSection, facts: Sequence[NodeFact]) -> list[tuple[list[int], tuple[int, ...]]]:
    """Return nodes with the index of their value in each fact (-1: not known), the most common row first."""
    silent = {node.node for node in section.silent}
    indices: dict[int, list[int]] = {
        node: [-1] * len(facts) for node in range(min(section.size, MAX_NODES)) if node not in silent
    }
    for column, fact in enumerate(facts):
        for index, group in enumerate(fact.groups):
            for node in parse_nodes(group.nodes):
                if node in indices:
                    indices[node][column] = index
    nodes_by_row: dict[tuple[int, ...], list[int]] = {}
    for node, row in indices.items():
        nodes_by_row.setdefault(tuple(row), []).append(node)
    return sorted(((nodes, row) for row, nodes in nodes_by_row.items()), key=lambda item: (-len(item[0]), item[0][0]))


def _describe_row(nodes: Sequence[int]) -> str:
    count = f" ({len(nodes)})" if len(nodes) > 1 else ""
    return f"{shorten_nodes(format_nodes(nodes))}{count}"


def _write_cell(index: int, fact: NodeFact) -> Markup:
    if index < 0:
        return cell("not known", "dim")
    value = clip(fact.groups[index].value, MAX_VALUE)
    return cell(element("strong", value), "warn") if index else cell(value)


def _describe_others(fact: NodeFact) -> str:
    left = sum(group.count for group in fact.groups[MAX_GROUPS:])
    shown = "; ".join(map(describe_group, fact.groups[1:MAX_GROUPS]))
    return f"{shown}; other values on {left} nodes" if left else shown


PANEL = Panel("Nodes", show)
