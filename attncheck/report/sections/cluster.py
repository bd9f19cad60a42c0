"""The nodes of a cluster: who answered, and the facts in which nodes differ."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.node_ranges import name_nodes
from attncheck.core.report import Report
from attncheck.core.results.cluster import ClusterSection, NodeFact, NodeGroup, group_silent
from attncheck.report.lines import Line, column_line, text_line
from attncheck.report.markdown_text import escape_line, format_table
from attncheck.report.sections import SectionView
from attncheck.report.testcases import TestCase

MAX_OTHERS = 10  # facts shown that are not of the attention stack; JSON holds all
MAX_GROUPS = 5  # values shown of one fact


def beside(report: Report, section: ClusterSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield who answered, the GPUs, and the facts that differ."""
    yield Line()
    yield Line((("nodes   ", "bold"),), describe_nodes(section))
    for line in list_names(section):
        yield Line((("        ", ""),), line)
    if section.gpus:
        yield Line((("gpus    ", "bold"),), describe_gpus(section))
    for line in list_silent(section):
        yield Line((("silent  ", "bold red"),), line)
    shown = choose_facts(section, verbose)
    if shown:
        yield column_line(("differs:", "bold"))
    for fact in shown:
        yield Line((("  ", ""), (describe_subject(fact) + "  ", "bold")), describe_groups(fact, verbose))
    if len(shown) < len(section.facts):
        yield text_line(f"  and {len(section.facts) - len(shown)} facts more, of the rest (-v lists them)")


def markdown(report: Report, section: ClusterSection) -> Iterator[str]:
    """Yield who answered, and the facts that differ as a table."""
    yield from ("## Nodes", "")
    gpus = (f"GPUs: {describe_gpus(section)}",) if section.gpus else ()
    silent = (f"no answer: {line}" for line in list_silent(section))
    lines = (describe_nodes(section), *list_names(section), *gpus, *silent)
    yield from (f"- {escape_line(line)}" for line in lines)
    yield ""
    if section.facts:
        rows = []
        for fact in choose_facts(section, False):
            first, others = fact.groups[0], fact.groups[1 : MAX_GROUPS + 1]
            outliers = "; ".join(map(describe_group, others)) + describe_rest(fact, MAX_GROUPS + 1)
            rows.append((describe_subject(fact), f"{first.value} ({first.count} of {section.answered})", outliers))
        yield from format_table(("differs", "most nodes", "other nodes"), rows)
        yield ""
        if len(rows) < len(section.facts):
            yield from (f"{len(section.facts) - len(rows)} facts more differ; the JSON report has them.", "")


def testcases(report: Report, section: ClusterSection) -> Iterator[TestCase]:
    """Yield a test case that all nodes answered, and one for each fact that differs; findings have their own."""
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
    shown = f"what stands above is node {section.shown}" if section.size > 1 else ""
    return " · ".join(filter(None, (f"under {section.launcher}", answered, differing, shown)))


def list_names(section: ClusterSection) -> Iterator[str]:
    """Yield what the launcher calls the nodes that differ or are silent, where it has names that are no hosts."""
    if not section.names:
        return
    from attncheck.core.node_ranges import parse_nodes

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
    facts = [fact for fact in section.facts if fact.groups]  # a foreign document may hold one without
    stack = [fact for fact in facts if fact.relation == "stack"]
    others = [fact for fact in facts if fact.relation != "stack"]
    return (*stack, *(others if verbose else others[:MAX_OTHERS]))


def describe_subject(fact: NodeFact) -> str:
    """Return what differs, with its kind where the subject alone does not say it."""
    if fact.kind in ("package", "torch", "variable") or fact.kind in fact.subject:
        return fact.subject
    return f"{fact.kind} {fact.subject}"


def describe_groups(fact: NodeFact, verbose: bool) -> str:
    """Return the values with their nodes in one line."""
    limit = len(fact.groups) if verbose else MAX_GROUPS
    return " · ".join(map(describe_group, fact.groups[:limit])) + describe_rest(fact, limit)


def describe_rest(fact: NodeFact, shown: int) -> str:
    """Return how many nodes have other values than those shown; "" where there are none."""
    left = sum(group.count for group in fact.groups[shown:])
    return f" · other values on {left} node{'s' * (left > 1)}" if left else ""


def describe_group(group: NodeGroup) -> str:
    """Return a value with its nodes: "5.17.0 on 61 nodes: 0-1, 5-63"."""
    count = "" if group.count == 1 else f"{group.count} "
    return f"{group.value} on {count}{name_nodes(group.nodes).replace(' ', ': ' if group.count > 1 else ' ', 1)}"


VIEW = SectionView(beside=beside, markdown=markdown, testcases=testcases, properties=properties)
