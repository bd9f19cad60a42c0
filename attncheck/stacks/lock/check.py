"""Compares an environment with its lock, and makes the report."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from attncheck.core.io.errors import BadUsage
from attncheck.core.lock import Lock
from attncheck.core.report import Finding, Fix, Report
from attncheck.core.results.lock import LockSection
from attncheck.core.snapshot import Known, Snapshot, Unreadable
from attncheck.doctor import engine
from attncheck.stacks.lock import judged, machine, measured, numbers, packages
from attncheck.stacks.lock.judged import JudgedMove
from attncheck.stacks.lock.make import list_packages, make_lock

MAX_SUSPECTS = 5  # the most packages named with a changed number


def check_lock(
    locked: Lock,
    path: str,
    snapshot: Snapshot,
    reports: tuple[Report, ...],
    select: Collection[str] = (),
    ignore: Collection[str] = (),
) -> Report:
    """Return the report on the changes since `locked` was made, from data alone."""
    now = make_lock(snapshot, reports, "")
    comparison = numbers.compare_numbers(locked, now, measured.missing_backends(reports))
    is_worse = any(judgement.move.code for judgement in comparison.moves)
    measured_since = _describe_measured(comparison, is_worse)
    moved = (
        *machine.compare_machine(locked, now),
        *packages.compare_packages(locked, now, snapshot, measured_since, bool(comparison.compared) and not is_worse),
    )
    every = (*comparison.moves, *moved)
    section = LockSection(
        path,
        locked.date,
        len(locked.packages),
        comparison.compared,
        tuple(judgement.move for judgement in every),
        (*machine.list_unseen(locked, now), *comparison.not_compared),
        (*snapshot.lost, *_list_unreadable(locked, now)),
    )
    report = Report("lock", snapshot, sections={"lock": section})
    return engine.add_findings(report, _make_findings(every), select, ignore)


def _describe_measured(comparison: numbers.Comparison, is_worse: bool) -> str:
    if not comparison.compared:
        return "nothing was measured on both sides, so the effect is unknown"
    count = f"{comparison.compared} measured number{'s' * (comparison.compared != 1)}"
    if is_worse:
        return f"some of {count} are worse than in the lock; see their findings"
    return f"{count} compared, none is worse than in the lock"


def _list_unreadable(locked: Lock, now: Lock) -> Iterator[str]:
    """Yield the facts about the machine that the lock has and that cannot be read here."""
    for name, before, after in (("GPUs", locked.gpus, now.gpus), ("driver", locked.driver, now.driver)):
        if isinstance(before, Known) and isinstance(after, Unreadable):
            yield f"{name}: {after.reason or 'they cannot be read'}"


def _make_findings(judgements: Iterable[JudgedMove]) -> Iterator[Finding]:
    """Yield the findings; one about a number also names the changed packages, and how to restore them."""
    judgements = tuple(judgements)
    suspects, fixes = _list_suspects(judgements)
    for judgement in judgements:
        problem = judgement.problem
        if problem is None:
            continue
        if judgement.move.code in judged.MEASURED_CODES:
            problem = replace(problem, evidence=(*problem.evidence, *suspects), fixes=(*problem.fixes, *fixes))
        yield engine.make_finding_by_code(judgement.move.code, problem)


def _list_suspects(judgements: tuple[JudgedMove, ...]) -> tuple[tuple[str, ...], tuple[Fix, ...]]:
    """Return the changes in the stack as evidence, and the commands that revert them."""
    stack_codes = (judged.PACKAGE_MISSING, judged.STACK_MOVED, judged.STACK_MOVED_UNMEASURED, judged.DRIVER_OLDER)
    moved = [judgement for judgement in judgements if judgement.move.code in stack_codes]
    texts = [f"{j.move.subject} {j.move.before} → {j.move.now}" for j in moved[:MAX_SUSPECTS]]
    more = [f"{len(moved) - MAX_SUSPECTS} more"] if len(moved) > MAX_SUSPECTS else []
    fixes = [
        fix for j in moved[:MAX_SUSPECTS] if j.problem is not None for fix in j.problem.fixes if fix.kind == "command"
    ]
    if not moved:
        return ("no package, Python or driver changed since the lock",), ()
    return (f"changed since the lock: {'; '.join([*texts, *more])}",), tuple(fixes)


def check_report(report: Report, path: str, snapshot: Snapshot) -> None:
    """Raise `BadUsage` for a report without data for a lock, or from another environment."""
    if not measured.has_measurements(report):
        raise BadUsage(f"{path} contains no measurement of parity, determinism or bench")
    here = {package.name: package.version for package in list_packages(snapshot)}
    there = {package.name: package.version for package in list_packages(report.snapshot)}
    for name in sorted(here.keys() | there.keys(), key=lambda name: (name != "torch", name)):
        before, now = there.get(name, packages.GONE), here.get(name, packages.GONE)
        if before != now and (before.partition("+")[0] != now.partition("+")[0] or ("+" in before and "+" in now)):
            raise BadUsage(
                f"{path} was measured in another environment: {name} {before} there, {now} here; measure again here"
            )
