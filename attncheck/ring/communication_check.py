"""The check that ranks can talk to each other, before anything is computed over them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from attncheck.core.errors import Following
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
    command: str, snapshot: Snapshot, ring: Ring, bench: ExecutionTarget, say: Callable[[str], None]
) -> Report:
    """Return the report of `command` with the check of communication, which comes before anything is computed."""
    report = Report(command, snapshot)
    if not ring.communication or ring.size == 1:
        return report
    found = communication.run(ring.size, bench, snapshot, say, rendezvous=ring.rendezvous)
    return report.with_section(RingSection(communication=found), findings=communication_findings.findings(found))


def add_communication(
    report: Report,
    ring: Ring,
    bench: ExecutionTarget,
    select: Sequence[str],
    ignore: Sequence[str],
    say: Callable[[str], None],
) -> Report:
    """Return doctor's report with what ranks find when they talk to each other."""
    checked = check_communication(report.command, report.snapshot, ring, bench, say)
    if read_rank_env(os.environ) is not None and not exchanges(checked):
        raise Following("")
    merged = replace(report, sections={**report.sections, **checked.sections})
    return engine.add_findings(merged, checked.findings, select, ignore)


def exchanges(report: Report) -> tuple[CollectiveResult, ...]:
    """Return the exchanges among ranks that a report holds."""
    section = report.section(RingSection)
    return section.communication.exchanges if section is not None else ()


def cannot_communicate(report: Report) -> bool:
    """Return whether ranks cannot exchange data, so that whatever they compute together would mean nothing."""
    return any(finding.code in ("ATN520", "ATN521") for finding in report.findings)
