"""The check that ranks can talk to each other, before anything is computed over them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from attncheck.core.errors import Following
from attncheck.core.report import Report
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.ring import communication, communication_findings
from attncheck.ring.group import Ring
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.launcher_env import rank_env


def check_communication(snapshot: Snapshot, ring: Ring, bench: ExecutionTarget, say: Callable[[str], None]) -> Report:
    """Return what the check of communication says, which comes before anything is computed over ranks."""
    asked = Report(snapshot, (), (), (), command="communication")
    if not ring.communication or ring.size == 1:
        return asked
    found = communication.run(ring.size, bench, snapshot, say, rendezvous=ring.rendezvous)
    return replace(asked, findings=communication_findings.findings(found), communication=found)


def add_communication(
    report: Report,
    ring: Ring,
    bench: ExecutionTarget,
    select: Sequence[str],
    ignore: Sequence[str],
    say: Callable[[str], None],
) -> Report:
    """Return doctor's report with what ranks find when they talk to each other."""
    talk = check_communication(report.snapshot, ring, bench, say)
    if rank_env(os.environ) is not None and not talk.communication.exchanges:
        raise Following("")
    return engine.added(replace(report, communication=talk.communication), talk.findings, select, ignore)


def cannot_communicate(talk: Report) -> bool:
    """Say whether ranks cannot talk, so that whatever they compute together would mean nothing."""
    return any(finding.code in ("ATN520", "ATN521") for finding in talk.findings)
