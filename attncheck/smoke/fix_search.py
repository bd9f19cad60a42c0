"""Finds what mends a failing plan, by running it: change after change, each judged by the question it was to mend.

A change that mends one question is kept, and every question is asked again under it; then the next one that fails is
taken up. What a plan ends as has been run as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attncheck.core.plan import Change
from attncheck.core.results.smoke import PlanRun, answer
from attncheck.smoke import checks
from attncheck.smoke.trials import failing, proof_of

MOST = 8  # changes tried for one question
ROUNDS = 4  # changes made one after the other

# Run changes of an attempt's plan: each with the questions named, or all where none are.
Try = Callable[[PlanRun, Sequence[Change], tuple[str, ...]], list[PlanRun]]


@dataclass(frozen=True)
class Mended:
    """A change that was run and mends a question that a plan failed."""

    question: str
    change: Change


@dataclass(frozen=True)
class Search:
    """What was found for one model: the changes that mend, in order, and those that did not, by question."""

    mended: tuple[Mended, ...]
    tried: tuple[tuple[str, str], ...]  # (question, title of a change that does not mend it)
    last: PlanRun  # every question asked under all changes; the attempt as it was where nothing mends it

    @property
    def titles(self) -> str:
        """The changes in words."""
        return ", ".join(mended.change.title for mended in self.mended)


def search(before: PlanRun, attempt: Try) -> Search:
    """Return what mends the plan of an attempt, one question after another."""
    found = Search((), (), before)
    hopeless: set[str] = set()
    for _ in range(ROUNDS):
        wrong = [question for question in failing(found.last) if question not in hopeless]
        if not wrong:
            break
        changes = _changes(found.last, wrong[0])
        attempts = attempt(found.last, changes, (wrong[0],)) if changes else []
        best = next((number for number, one in enumerate(attempts) if passes(one, wrong[0])), None)
        titles = [(wrong[0], change.title) for change in changes[:best]]
        found = Search(found.mended, (*found.tried, *titles), found.last)
        if best is None:
            hopeless.add(wrong[0])
            continue
        mended = (*found.mended, Mended(wrong[0], changes[best]))
        [last] = attempt(found.last, [changes[best]], ())
        found = Search(mended, found.tried, last)
    return found


def _changes(attempt: PlanRun, question: str) -> list[Change]:
    proof = proof_of(attempt, question)
    assert proof is not None
    plans = {attempt.plan}
    found = []
    for change in checks.load()[0][question].changes(attempt.plan, proof):
        if change.plan not in plans:  # two ways to write one plan are tried once
            plans.add(change.plan)
            found.append(change)
    return found[:MOST]


def passes(attempt: PlanRun, question: str) -> bool:
    """Say whether a question no longer fails; one that does not arise any more, under no packing, is mended too."""
    proof = proof_of(attempt, question)
    return proof is None or answer(proof) in ("pass", "warn")
