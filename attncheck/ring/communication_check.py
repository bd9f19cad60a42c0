"""Checks that ranks can communicate, before anything is computed across them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from attncheck.core.io.errors import Following
from attncheck.core.report import Report
from attncheck.core.results.collectives import CollectiveResult
from attncheck.core.results.ring import RingSection
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.ring import communication, communication_findings
from attncheck.ring.group import Ring
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.launcher_env import read_rank_env


def check_communication(
    command: str, snapshot: Snapshot, ring: Ring, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> Report:
    """Return the report of `command` with the communication check, which runs before anything is computed."""
    report = Report(command, snapshot)
    if not ring.checks_communication or ring.size == 1:
        return report
    result = communication.run(ring.size, target, snapshot, report_progress, rendezvous_seconds=ring.rendezvous_seconds)
    return report.with_section(RingSection(communication=result), findings=communication_findings.make_findings(result))


def add_communication(
    report: Report,
    ring: Ring,
    target: ExecutionTarget,
    select: Sequence[str],
    ignore: Sequence[str],
    report_progress: Callable[[str], None],
) -> Report:
    """Return doctor's report with the findings of communication among ranks."""
    communication_report = check_communication(report.command, report.snapshot, ring, target, report_progress)
    if read_rank_env(os.environ) is not None and not list_exchanges(communication_report):
        raise Following("")
    merged = replace(report, sections={**report.sections, **communication_report.sections})
    return engine.add_findings(merged, communication_report.findings, select, ignore)


def list_exchanges(report: Report) -> tuple[CollectiveResult, ...]:
    """Return the exchanges among ranks in a report."""
    section = report.section(RingSection)
    return section.communication.exchanges if section is not None else ()


def cannot_communicate(report: Report) -> bool:
    """Return whether ranks cannot exchange data, which makes anything that they compute together meaningless."""
    return any(finding.code in ("ATN520", "ATN521") for finding in report.findings)
