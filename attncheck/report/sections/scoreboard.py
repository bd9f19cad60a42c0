"""The measured verdicts laid out: each backend's worst error for each family of cases, and a map of single cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attncheck.core.report import Report
from attncheck.core.results.verdicts import FAIL_FACTOR, HUGE, Answer, Verdict

HEAT = "·▁▂▃▄▅▆▇"  # by eighths of the budget; beyond it "!", wrong "X"


@dataclass(frozen=True)
class Cell:
    """The worst of a backend's verdicts in one family."""

    text: str  # "0.53", "fail", "-" where every case was refused or skipped
    answer: Answer


@dataclass(frozen=True)
class Line:
    """One backend: how many cases got which answer, its cells by family, its map."""

    backend: str
    counts: dict[Answer, int]
    cells: tuple[Cell, ...]
    heat: tuple[tuple[str, Answer], ...]  # one (character, answer) a case


def families(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the families in the order of the cases."""
    return tuple(dict.fromkeys(verdict.family for verdict in verdicts))


def lines(report: Report) -> Iterator[Line]:
    """Yield one line for each backend that was measured."""
    columns = families(report.verdicts)
    for state in report.backends:
        mine = [verdict for verdict in report.verdicts if verdict.backend == state.name]
        if not mine:
            continue
        counts: dict[Answer, int] = {}
        for verdict in mine:
            counts[verdict.answer] = counts.get(verdict.answer, 0) + 1
        cells = tuple(_cell([verdict for verdict in mine if verdict.family == family]) for family in columns)
        heat = tuple((spot(verdict), verdict.answer) for verdict in mine)
        yield Line(state.name, counts, cells, heat)


def _cell(verdicts: list[Verdict]) -> Cell:
    judged = [verdict for verdict in verdicts if verdict.answer not in ("refused", "skipped")]
    if not judged:
        return Cell("-", "refused")
    worst = max(judged, key=lambda verdict: verdict.budget_ratio)
    return Cell(number(worst.budget_ratio) if worst.budget_ratio else "exact", worst.answer)


def number(excess: float) -> str:
    """Return an excess in at most five characters."""
    if excess >= HUGE:
        return "wrong"
    if excess >= 1000:
        return f"{excess:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{excess:.2f}" if excess < 10 else f"{excess:.0f}"


def spot(verdict: Verdict) -> str:
    """Return one character for one case."""
    if verdict.answer in ("refused", "skipped"):
        return " "
    if verdict.answer in ("fail", "lost") or verdict.budget_ratio > FAIL_FACTOR:
        return "X"
    if verdict.budget_ratio > 1.0:
        return "!"
    return HEAT[min(len(HEAT) - 1, int(verdict.budget_ratio * len(HEAT)))]
