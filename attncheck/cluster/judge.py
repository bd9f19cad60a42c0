"""Merges the rules' findings on each node: one finding on sixty nodes becomes one finding that names them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from attncheck.core.node_ranges import format_nodes, name_nodes
from attncheck.core.records import list_fields
from attncheck.core.report import Finding, Report, Skip, by_severity
from attncheck.core.results.cluster import NodeFinding
from attncheck.core.results.doctor import DoctorSection
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.memory import RuleMemory
from attncheck.doctor.profile import Profile, needs_of_profile
from attncheck.report.fingerprints import compute_fingerprint

MAX_WORDINGS = 3  # wordings of one finding whose messages differ by a number between nodes


@dataclass(frozen=True)
class JudgedNodes:
    """The rules' findings on all nodes."""

    findings: tuple[Finding, ...]
    rows: tuple[NodeFinding, ...]
    skips: tuple[Skip, ...]
    passed: tuple[str, ...]
    suppressed: tuple[str, ...]
    doctor: DoctorSection


def judge_nodes(
    snapshots: Mapping[int, Snapshot], profile: Profile, select: Collection[str], ignore: Collection[str]
) -> JudgedNodes:
    """Return the rules' findings on all nodes together, with all of their needs; there is at least one node."""
    nodes_by_identity: dict[tuple[int, ...], list[int]] = {}
    for node, snapshot in snapshots.items():
        identity = tuple(id(getattr(snapshot, name)) for name in list_fields(Snapshot) if name != "taken")
        nodes_by_identity.setdefault(identity, []).append(node)
    groups = [tuple(nodes) for nodes in nodes_by_identity.values()]
    needs = frozenset[str]().union(*(needs_of_profile(profile, snapshots[nodes[0]]) for nodes in groups))
    memory: RuleMemory[engine.RuleAnswer] = RuleMemory()
    reports = {
        nodes: engine.run_rules(snapshots[nodes[0]], needs, select, ignore, memory)  # type: ignore[arg-type]
        for nodes in groups
    }
    findings, rows = merge_findings({nodes: report.findings for nodes, report in reports.items()}, len(snapshots))
    codes = {finding.code for finding in findings}
    skips = merge_skips({nodes: report.skips for nodes, report in reports.items()}, len(snapshots), codes)
    first = reports[groups[0]]
    open_codes = codes | {skip.code for skip in skips}
    passed = sorted({code for report in reports.values() for code in report.passed} - open_codes)
    doctor = DoctorSection(tuple(sorted(needs)), _merge_lost(reports))
    return JudgedNodes(findings, rows, skips, tuple(passed), first.suppressed, doctor)


def merge_findings(
    findings_by_nodes: Mapping[tuple[int, ...], Iterable[Finding]], size: int
) -> tuple[tuple[Finding, ...], tuple[NodeFinding, ...]]:
    """Return the findings of groups of nodes, each once, and which of all `size` nodes has it.

    Findings with the same fingerprint and severity are the same: measured numbers and folders may differ.
    """
    fingerprints: dict[int, str] = {}
    merged: dict[tuple[str, str], list[tuple[tuple[int, ...], Finding]]] = {}
    for nodes, findings in findings_by_nodes.items():
        for finding in findings:
            if id(finding) not in fingerprints:  # the caller keeps them all alive, so that ids stay unique
                fingerprints[id(finding)] = compute_fingerprint(finding)
            merged.setdefault((finding.severity, fingerprints[id(finding)]), []).append((nodes, finding))
    rows: dict[tuple[str, str, str], NodeFinding] = {}
    joined = []
    for copies in merged.values():
        numbers = format_nodes(node for nodes, _ in copies for node in nodes)
        count = sum(len(nodes) for nodes, _ in copies)
        finding = _join_copies(copies, count, numbers, size)
        joined.append(finding)
        key = (finding.code, finding.subject, finding.message)
        rows[key] = NodeFinding(*key, count, numbers)
    ordered = by_severity(joined)
    return ordered, tuple(rows[finding.code, finding.subject, finding.message] for finding in ordered)


def _join_copies(copies: list[tuple[tuple[int, ...], Finding]], count: int, nodes: str, size: int) -> Finding:
    """Return one finding for its copies: the first one, with its nodes and the other wordings as evidence."""
    copies = sorted(copies, key=lambda copy: min(copy[0]))
    first = copies[0][1]
    where = f"on every node, {size} of {size}" if count == size else f"on {count} of {size} nodes: {name_nodes(nodes)}"
    nodes_by_message: dict[str, list[int]] = {}
    for group, finding in copies:
        nodes_by_message.setdefault(finding.message, []).extend(group)
    others = [message for message in nodes_by_message if message != first.message]
    wordings = [f"{name_nodes(format_nodes(nodes_by_message[m]))}: {m}" for m in others[:MAX_WORDINGS]]
    more = [f"and {len(others) - MAX_WORDINGS} more wordings"] if len(others) > MAX_WORDINGS else []
    locations = tuple(dict.fromkeys(place for _, finding in copies for place in finding.locations))
    return replace(first, evidence=(where, *first.evidence, *wordings, *more), locations=locations)


def merge_skips(
    skips_by_nodes: Mapping[tuple[int, ...], Iterable[Skip]], size: int, codes: Collection[str]
) -> tuple[Skip, ...]:
    """Return the rules that could not judge some nodes and reported nothing on the others, with those nodes."""
    nodes_by_skip: dict[Skip, list[int]] = {}
    for nodes, skips in skips_by_nodes.items():
        for skip in skips:
            nodes_by_skip.setdefault(skip, []).extend(nodes)
    first: dict[str, Skip] = {}
    for skip, numbers in sorted(nodes_by_skip.items(), key=lambda item: -len(item[1])):
        if skip.code not in codes and skip.code not in first:
            where = "" if len(numbers) == size else f"on {name_nodes(format_nodes(numbers))}: "
            first[skip.code] = replace(skip, reason=f"{where}{skip.reason}")
    return tuple(first[code] for code in sorted(first))


def _merge_lost(reports: Mapping[tuple[int, ...], Report]) -> tuple[str, ...]:
    """Return what could not be examined, and on which nodes."""
    nodes_by_loss: dict[str, list[int]] = {}
    for nodes, report in reports.items():
        section = report.section(DoctorSection)
        for loss in section.lost if section is not None else ():
            nodes_by_loss.setdefault(loss, []).extend(nodes)
    return tuple(f"{name_nodes(format_nodes(nodes))}: {loss}" for loss, nodes in nodes_by_loss.items())
