"""Tries other versions of packages on what a plan fails: doctor's own fixes, installed into a temporary folder.

Workers find that folder before the environment's packages; the environment itself is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from attncheck.core.errors import Unanswered
from attncheck.core.findings import Fix
from attncheck.core.results.smoke import PlanRun, deciding_reason
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.profile import needs_of_profile
from attncheck.smoke import fix_search
from attncheck.smoke.trials import failing, proof_of
from attncheck.smoke.unmet_requirements import unmet
from attncheck.workers.overlay import package_overlay, parse_fix_requirements

MOST = 4  # sets of packages tried

# Ask an attempt's questions again with a folder of packages first on the path.
Ask = Callable[[PlanRun, tuple[str, ...], str], PlanRun]


@dataclass(frozen=True)
class Tried:
    """A fix that installs packages, and what it makes of the questions that failed; or why it could not be tried."""

    fix: Fix
    attempt: PlanRun | None
    reason: str = ""

    def mends(self, question: str) -> bool:
        """Say whether a question that failed passes with these packages."""
        asked = self.attempt is not None and any(p.check == question for p in self.attempt.results)
        return asked and self.attempt is not None and fix_search.passes(self.attempt, question)


def tried(before: PlanRun, snapshot: Snapshot, python: str, ask: Ask, say: Callable[[str], None]) -> tuple[Tried, ...]:
    """Return what doctor's package fixes make of the questions that an attempt fails."""
    wrong = failing(before)
    if not wrong:
        return ()
    work = partial(ask, before, wrong)
    return tuple(_tried(fix, snapshot, python, work, say) for fix in fixes(snapshot)[:MOST])


def fixes(snapshot: Snapshot) -> list[Fix]:
    """Return doctor's fixes that install packages which an overlay can show, each once."""
    report = engine.run_rules(snapshot, needs_of_profile("all", snapshot))
    found = {
        parse_fix_requirements(fix): fix
        for finding in report.findings
        for fix in finding.fixes
        if parse_fix_requirements(fix)
    }
    return list(found.values())


def _tried(
    fix: Fix, snapshot: Snapshot, python: str, work: Callable[[str], PlanRun], say: Callable[[str], None]
) -> Tried:
    """Return what one fix makes of it: its packages, and what these require that the environment lacks."""
    packages = parse_fix_requirements(fix)
    try:
        with package_overlay(python, packages, say) as folder:
            more = unmet(folder, snapshot)
            if not more:
                return Tried(fix, work(str(folder)))
        with package_overlay(python, (*packages, *more), say) as folder:
            return Tried(fix, work(str(folder)))
    except Unanswered as error:
        return Tried(fix, None, str(error))


def told(found: tuple[Tried, ...], question: str) -> Iterator[str]:
    """Yield, as evidence, what did not help a question."""
    for one in found:
        if not one.mends(question):
            yield f"{one.fix.title}, in a temporary folder: {one.reason or _still(one, question)}"


def _still(one: Tried, question: str) -> str:
    assert one.attempt is not None
    proof = proof_of(one.attempt, question)
    return f"still wrong: {deciding_reason(proof)}" if proof is not None else "still wrong"
