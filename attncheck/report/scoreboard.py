"""Verdicts arranged by backend: each backend's worst error in each family of cases, and a heat map of single cases."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attncheck.core.verdicts import HUGE, Answer, BackendState, Verdict

HEAT_MARKS = "·▁▂▃▄▅▆▇"  # by eighths of the budget; "!" is above the budget, "X" is wrong


@dataclass(frozen=True)
class Cell:
    """The worst of a backend's verdicts in one family."""

    text: str  # "0.53", "fail", "-" if every case was refused or skipped, "lost" if time ran out
    answer: Answer


@dataclass(frozen=True)
class Row:
    """One backend: the number of cases by answer, its cells by family, its row of the heat map."""

    backend: str
    counts: dict[Answer, int]
    cells: tuple[Cell, ...]
    heat: tuple[tuple[str, Answer], ...]  # one (character, answer) per case


def list_families(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the families of cases in the order of the cases."""
    return tuple(dict.fromkeys(verdict.family for verdict in verdicts))


def backend_rows(states: Sequence[BackendState], verdicts: Sequence[Verdict]) -> Iterator[Row]:
    """Yield one row for each backend that was measured."""
    families = list_families(verdicts)
    for state in states:
        own_verdicts = [verdict for verdict in verdicts if verdict.backend == state.name]
        if not own_verdicts:
            continue
        counts = Counter(verdict.answer for verdict in own_verdicts)
        cells = tuple(
            _worst_cell([verdict for verdict in own_verdicts if verdict.family == family]) for family in families
        )
        heat = tuple((heat_mark(verdict), verdict.answer) for verdict in own_verdicts)
        yield Row(state.name, counts, cells, heat)


def _worst_cell(verdicts: list[Verdict]) -> Cell:
    measured = [verdict for verdict in verdicts if verdict.answer not in ("refused", "skipped")]
    judged = [verdict for verdict in measured if not _ran_out_of_time(verdict)]
    if not judged:
        return Cell("lost", "lost") if measured else Cell("-", "refused")
    worst = max(
        judged,
        key=lambda verdict: (verdict.answer in ("fail", "lost"), _has_warning(verdict), verdict.budget_ratio),
    )
    if _has_warning(worst):
        return Cell("noted", "warn")
    return Cell(format_ratio(worst.budget_ratio) if worst.budget_ratio else "exact", worst.answer)


def _has_warning(verdict: Verdict) -> bool:
    """Return whether a verdict has a warning that is not about a numerical error."""
    return verdict.answer == "warn" and not verdict.budget_ratio


def _ran_out_of_time(verdict: Verdict) -> bool:
    """Return whether a verdict is not a judgement: its case was lost, and no backend is at fault."""
    return verdict.answer == "lost" and not verdict.budget_ratio


def format_ratio(ratio: float) -> str:
    """Return an error in units of its budget, in at most five characters."""
    if ratio >= HUGE:
        return "wrong"
    if ratio >= 1000:
        return f"{ratio:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def heat_mark(verdict: Verdict) -> str:
    """Return the one character that represents a case."""
    if verdict.answer in ("refused", "skipped"):
        return " "
    if _ran_out_of_time(verdict):
        return "?"
    if verdict.answer in ("fail", "lost"):
        return "X"
    if verdict.answer == "warn":
        return "!"
    return HEAT_MARKS[min(len(HEAT_MARKS) - 1, int(verdict.budget_ratio * len(HEAT_MARKS)))]
