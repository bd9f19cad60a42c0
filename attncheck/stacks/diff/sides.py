"""A side of a comparison: its facts and its name."""

from dataclasses import dataclass, field

from attncheck.core.lock import Lock
from attncheck.core.report import Report
from attncheck.core.results.diff import ComparedSide
from attncheck.core.snapshot import NOT_ASKED, Absent, BuildTools, Fact, Host, Hub, Snapshot, Unreadable
from attncheck.doctor.probes.payload.packages.watched import is_watched
from attncheck.stacks.diff.facts import StackFact, list_lock_facts, list_snapshot_facts

NOT_INSTALLED = "not installed"
NOT_SET = "not set"
SUMMARY = ("python", "torch", "flash-attn", "transformers", "driver", "gpus")


@dataclass(frozen=True)
class StackSide:
    """One side. A lock has no snapshot; only a report has measurements."""

    name: ComparedSide
    facts: dict[tuple[str, str], StackFact] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    report: Report | None = None

    def read(self, kind: str, subject: str) -> str | None:
        """Return a fact as text; None if it is unknown on this side."""
        if (kind, subject) in self.facts:
            return self.facts[kind, subject].text
        if kind == "package":
            return NOT_INSTALLED if self._knows_package(subject) else None
        if kind == "variable" and self.snapshot is not None and not self.snapshot.environ_gap:
            return NOT_SET
        return "none" if kind == "shadow" and self.snapshot is not None else None

    def _knows_package(self, name: str) -> bool:
        if self.snapshot is None:
            return is_watched(name)  # a lock has no other variables
        return not isinstance(self.snapshot.package(name), Unreadable)


def make_snapshot_side(snapshot: Snapshot, source: str, kind: str = "snapshot") -> StackSide:
    """Return a side for a snapshot."""
    return _make_side(source, kind, tuple(list_snapshot_facts(snapshot)), snapshot)


def make_report_side(report: Report, source: str) -> StackSide:
    """Return a side for a report."""
    return _make_side(source, "report", tuple(list_snapshot_facts(report.snapshot)), report.snapshot, report)


def make_lock_side(lock: Lock, source: str) -> StackSide:
    """Return a side for a lock, which has facts but no findings."""
    return _make_side(source, "lock", tuple(list_lock_facts(lock)))


def _make_side(
    source: str,
    kind: str,
    facts: tuple[StackFact, ...],
    snapshot: Snapshot | None = None,
    report: Report | None = None,
) -> StackSide:
    by_key = {(fact.kind, fact.subject): fact for fact in facts}
    texts = {fact.subject: fact.text for fact in facts if fact.kind in ("package", "python", "driver", "gpu")}
    parts = [
        texts[subject] if subject == "gpus" else f"{subject} {texts[subject]}"
        for subject in SUMMARY
        if texts.get(subject, "none") != "none"
    ]
    return StackSide(ComparedSide(source, kind, " · ".join(parts)), by_key, snapshot, report)


def blank_snapshot() -> Snapshot:
    """Return the snapshot of an unknown environment, for a report on two locks."""
    unknown: Fact[str] = Unreadable("a lock does not contain it")
    number: Fact[int] = Unreadable("a lock does not contain it")
    nothing = Absent(NOT_ASKED)
    host = Host("", "", "", "", "", False, False, "", "", unknown, "", 0, number, number, number)
    tools = BuildTools(unknown, unknown, unknown, unknown, unknown, unknown, {}, False)
    return Snapshot(
        "", "", host, tools, (), (), (), (), nothing, nothing, nothing, nothing, nothing, nothing, nothing,
        Hub(False, ()), {},
    )  # fmt: skip


def any_snapshot(*sides: StackSide) -> Snapshot:
    """Return the last available snapshot."""
    return next((side.snapshot for side in reversed(sides) if side.snapshot is not None), blank_snapshot())
