"""Parity: the worst error of each backend by family, a mark for every case, the worst cases in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from attncheck.core.report import Report
from attncheck.core.results.parity import ParitySection
from attncheck.core.verdicts import FAIL_FACTOR, Answer, BackendState, Verdict
from attncheck.report import scoreboard
from attncheck.report.html_page.charts import draw_strip
from attncheck.report.html_page.elements import Markup, badge, bullet_list, element, fold, join
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.room import clip
from attncheck.report.html_page.tables import cell, make_table, row_head, text_table
from attncheck.report.sections.parity import COUNTED_ANSWERS, format_heading

UNJUDGED = ("refused", "skipped")
HEAT_STEPS = 4  # shades up to the budget
MAX_WORST, MAX_REFUSALS = 40, 60
LEGEND = (("pass-0", "far below the budget"), ("pass-3", "near it"), ("warn", "over it"), ("bad", "wrong or lost"))


def show(report: Report, section: ParitySection) -> Iterator[Markup]:
    """Yield the heat map and the worst cases."""
    yield element("p", format_heading(section.measured_on, len({verdict.case for verdict in section.verdicts})))
    yield from show_verdicts(section.backends, section.verdicts)
    yield from _list_missing(section)


def show_verdicts(backends: Sequence[BackendState], verdicts: Sequence[Verdict]) -> Iterator[Markup]:
    """Yield the heat map of verdicts, and the worst of them."""
    rows = list(scoreboard.backend_rows(backends, verdicts))
    families = scoreboard.list_families(verdicts)
    if rows:
        yield _make_heat_map(rows, families)
        yield _make_strips(rows, verdicts)
    yield from _list_worst(verdicts)
    yield from _list_refusals(verdicts)


def _make_heat_map(rows: Sequence[scoreboard.Row], families: Sequence[str]) -> Markup:
    caption = (
        f"Worst error by family, in units of its budget: up to 1 passes, over {FAIL_FACTOR:g} fails; "
        "- where no case was run"
    )
    cells = (
        [row_head(row.backend), *(cell(item.text, f"heat {_heat_style(item)}") for item in row.cells)] for row in rows
    )
    return make_table(caption, ["backend", *families], cells)


def _heat_style(item: scoreboard.Cell) -> str:
    if item.answer != "pass":
        return {"warn": "warn", "fail": "bad", "lost": "bad"}.get(item.answer, "none")
    try:
        return f"pass-{min(HEAT_STEPS - 1, int(float(item.text) * HEAT_STEPS))}"
    except ValueError:  # "exact"
        return "pass-0"


def _make_strips(rows: Sequence[scoreboard.Row], verdicts: Sequence[Verdict]) -> Markup:
    used = [answer for answer in COUNTED_ANSWERS if any(row.counts.get(answer) for row in rows)]
    styles = {(verdict.backend, verdict.case): _mark_style(verdict) for verdict in verdicts}
    cases = dict.fromkeys(verdict.case for verdict in verdicts)

    def write_row(row: scoreboard.Row) -> list[Markup]:
        counts = [cell(str(row.counts.get(answer, 0)), _count_style(answer, row)) for answer in used]
        name = ", ".join(f"{row.counts[answer]} {answer}" for answer in used if answer in row.counts)
        strip = draw_strip([styles.get((row.backend, case), "") for case in cases], f"{row.backend}: {name}")
        return [row_head(row.backend), *counts, cell(strip, "marks")]

    table = make_table(
        "Every case, a mark each, in the order of the families", ["backend", *used, "cases"], map(write_row, rows)
    )
    keys = [join([element("span", class_=f"key ground-{style}"), f" {text}"]) for style, text in LEGEND]
    return element("div", table, element("p", join(keys, " · "), " · a gap: refused, or not run", class_="dim"))


def _count_style(answer: Answer, row: scoreboard.Row) -> str:
    styles: dict[Answer, str] = {"warn": "warn", "fail": "bad", "lost": "bad"}
    return f"number {styles.get(answer, '')}".strip() if row.counts.get(answer) else "number dim"


def _mark_style(verdict: Verdict) -> str:
    """Return the class of one case's mark, "" where it was refused."""
    mark = scoreboard.heat_mark(verdict)
    if mark in " ?":
        return "" if mark == " " else "none"
    if mark in "!X":
        return "warn" if mark == "!" else "bad"
    return f"pass-{scoreboard.HEAT_MARKS.index(mark) * HEAT_STEPS // len(scoreboard.HEAT_MARKS)}"


def _list_worst(verdicts: Sequence[Verdict]) -> Iterator[Markup]:
    """Yield the verdicts that are no pass, the worst first; where all pass, those nearest to their budget."""
    judged = [verdict for verdict in verdicts if verdict.answer not in UNJUDGED]
    wrong = [verdict for verdict in judged if verdict.answer != "pass"]
    worst = sorted(wrong or judged, key=lambda verdict: -verdict.budget_ratio)[: None if wrong else 10]
    if not worst:
        return
    rows = (
        (
            row_head(verdict.backend),
            cell(badge(verdict.answer)),
            cell(verdict.case, "case"),
            cell(_format_error(verdict), "number"),
            cell(join([element("p", clip(line, 400)) for line in (verdict.reason, *verdict.evidence[:2])])),
        )
        for verdict in worst[:MAX_WORST]
    )
    caption = "Cases that do not pass, the worst first" if wrong else "All pass; the cases nearest to their budget"
    yield make_table(
        caption, ("backend", "answer", "case", "error / budget", "why"), rows, max(0, len(worst) - MAX_WORST)
    )


def _format_error(verdict: Verdict) -> str:
    """Return the error in units of its budget; "noted" where a warning is of no number."""
    is_noted = verdict.answer == "warn" and not verdict.budget_ratio
    return "noted" if is_noted else scoreboard.format_ratio(verdict.budget_ratio)


def _list_refusals(verdicts: Sequence[Verdict]) -> Iterator[Markup]:
    counts = Counter((v.backend, v.answer, v.reason) for v in verdicts if v.answer in UNJUDGED)
    if counts:
        rows = (
            (backend, answer, str(count), clip(reason, 400))
            for (backend, answer, reason), count in counts.most_common()
        )
        table = text_table("Refused or skipped", ("backend", "answer", "cases", "why"), rows, MAX_REFUSALS)
        yield fold(f"{sum(counts.values())} refused or skipped, by reason", table)


def _list_missing(section: ParitySection) -> Iterator[Markup]:
    measured = {verdict.backend for verdict in section.verdicts}
    over_ranks = section.measured_on.ring_size > 0
    missing = [
        clip(f"{state.name}: {state.missing}", 400)
        for state in section.backends
        if state.missing and state.name not in measured and state.over_ranks == over_ranks
    ]
    if missing:
        yield fold(f"{len(missing)} backends that are not here", bullet_list(missing))


PANEL = Panel("Parity", show)
