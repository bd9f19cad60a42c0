"""Searches changes that fix a failing plan by running them; each is judged by the check that proposed it.

A change that fixes one check is accepted, and every check is run again with it; then the next failing check follows.
The final plan has been run with all checks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from attncheck.core.plan import Change
from attncheck.core.results.smoke import PlanRun, judge_result
from attncheck.smoke import checks
from attncheck.smoke.trials import failed_checks, find_result

MAX_CHANGES = 8  # the most changes tried for one check
MAX_ROUNDS = 4  # the most searches one after another, each for one failed check

# Tries changes of a plan, each with the named checks, or with all of them.
RunChanges = Callable[[PlanRun, Sequence[Change], tuple[str, ...]], list[PlanRun]]


@dataclass(frozen=True)
class AcceptedChange:
    """A change that was run, and the check that fails without it and passes with it.

    If it shows that a kernel is at fault, `alternative` is another implementation that also passes, with its run.
    """

    check_name: str
    change: Change
    alternative: tuple[Change, PlanRun] | None = None


@dataclass(frozen=True)
class SearchResult:
    """The result of a search on one model: the changes that fix a failed check, in order, and the rejected ones."""

    accepted: tuple[AcceptedChange, ...]
    rejected: tuple[tuple[str, str], ...]  # (name of a check, title of a change that does not fix it)
    final_run: PlanRun  # all checks with all accepted changes; the first run if none is accepted

    @property
    def titles(self) -> str:
        """The titles of the accepted changes, separated by commas."""
        return ", ".join(accepted.change.title for accepted in self.accepted)


def search_changes(first_run: PlanRun, run_changes: RunChanges) -> SearchResult:
    """Return the changes that fix the failed checks of a plan run, one check after another."""
    result = SearchResult((), (), first_run)
    unfixable: set[str] = set()
    for _ in range(MAX_ROUNDS):
        check_name = next((name for name in failed_checks(result.final_run) if name not in unfixable), None)
        if check_name is None:
            break
        changes = _propose_changes(result.final_run, check_name)
        plan_runs = run_changes(result.final_run, changes, (check_name,)) if changes else []
        best = next((index for index, plan_run in enumerate(plan_runs) if passes_check(plan_run, check_name)), None)
        rejected = [(check_name, change.title) for change in changes[:best]]
        result = SearchResult(result.accepted, (*result.rejected, *rejected), result.final_run)
        if best is None:
            unfixable.add(check_name)
            continue
        alternative = _find_alternative(changes[best], zip(changes[best + 1 :], plan_runs[best + 1 :]), check_name)
        accepted = (*result.accepted, AcceptedChange(check_name, changes[best], alternative))
        [final_run] = run_changes(result.final_run, [changes[best]], ())
        result = SearchResult(accepted, result.rejected, final_run)
    return result


def _propose_changes(plan_run: PlanRun, check_name: str) -> list[Change]:
    result = find_result(plan_run, check_name)
    assert result is not None
    plans = {plan_run.plan}
    changes = []
    for change in checks.load()[0][check_name].changes(plan_run.plan, result):
        if change.plan not in plans:  # two changes to the same plan are tried once
            plans.add(change.plan)
            changes.append(change)
    return changes[:MAX_CHANGES]


def _find_alternative(
    accepted: Change, later: Iterable[tuple[Change, PlanRun]], check_name: str
) -> tuple[Change, PlanRun] | None:
    """Return the first other implementation that passes the check, if the accepted change shows a faulty kernel."""
    if not accepted.culprit:
        return None
    implementation = accepted.plan.attn_implementation
    passing = ((change, plan_run) for change, plan_run in later if passes_check(plan_run, check_name))
    return next(((c, r) for c, r in passing if c.plan.attn_implementation != implementation), None)


def passes_check(plan_run: PlanRun, check_name: str) -> bool:
    """Return whether a check no longer fails, including one that no longer applies, as without packing."""
    result = find_result(plan_run, check_name)
    return result is None or judge_result(result) in ("pass", "warn")
