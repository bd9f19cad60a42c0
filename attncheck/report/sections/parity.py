"""Parity's measurements: a table of errors, a heat map of cases, the verdicts in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attncheck.core.report import Report
from attncheck.core.results.parity import ParitySection
from attncheck.core.verdicts import ANSWERS, Answer, BackendState, MeasuredOn, Verdict
from attncheck.report import scoreboard
from attncheck.report.lines import Line, StyledText, column_line, style_of_answer, text_line
from attncheck.report.markdown_text import escape_line, format_table
from attncheck.report.sections import SectionView
from attncheck.report.testcases import TestCase, make_testcase

COLUMN_WIDTH = 10  # characters of a family's column, two of them between it and the one before
COUNTED_ANSWERS: tuple[Answer, ...] = ("pass", "warn", "fail", "lost", "refused", "skipped")


def rows(report: Report, section: ParitySection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the measurements for a terminal `width` columns wide."""
    yield text_line(format_heading(section.measured_on, len({verdict.case for verdict in section.verdicts})))
    yield Line()
    backends = list(scoreboard.backend_rows(section.backends, section.verdicts))
    yield from _error_table(backends, scoreboard.list_families(section.verdicts), width)
    yield from _heat_map(backends, width)
    yield from missing_backends(section.backends, section.verdicts, section.measured_on.ring_size > 0)
    if verbose:
        yield from _format_verdicts(section)


def format_heading(measured_on: MeasuredOn, cases: int) -> str:
    """Return in one line the device that was measured on, how many cases ran, and how long it took."""
    seconds = f"{measured_on.seconds:.0f} s" if measured_on.seconds >= 10 else f"{measured_on.seconds:.1f} s"
    parts = [
        measured_on.name or measured_on.device,
        f"torch {measured_on.torch}",
        f"{measured_on.suite} suite: {cases} cases" if measured_on.suite else "",
    ]
    if measured_on.ring_size:
        parts.insert(
            1,
            f"{measured_on.ring_size} ranks"
            + (", flash-attn's kernels emulated in plain torch" * measured_on.emulated),
        )
    parts += [f"seed {measured_on.seed}", seconds]
    if measured_on.not_reached:
        cause = "before the interrupt" if measured_on.interrupted else "within --budget"
        parts.append(f"{measured_on.not_reached} runs not reached {cause}")
    return " · ".join(part for part in parts if part)


def _error_table(backends: list[scoreboard.Row], families: tuple[str, ...], width: int) -> Iterator[Line]:
    name_width = _name_width(backends)
    per_block = max(1, (width - name_width - 2) // COLUMN_WIDTH)
    used = [answer for answer in COUNTED_ANSWERS if any(row.counts.get(answer) for row in backends)]
    yield text_line("worst error in units of its budget: up to 1 passes, over 3 fails; - where no case was run")
    for start in range(0, len(families), per_block):
        block = families[start : start + per_block]
        header = ((f"{name[: COLUMN_WIDTH - 2]:>{COLUMN_WIDTH}}", "bold") for name in block)
        yield column_line((f"{'backend':<{name_width}} ", "bold"), *header)
        for row in backends:
            cells = (
                (f"{cell.text:>{COLUMN_WIDTH}}", style_of_answer(cell.answer))
                for cell in row.cells[start : start + per_block]
            )
            yield column_line((f"{row.backend:<{name_width}} ", ""), *cells)
        yield Line()
    yield column_line(
        (f"{'cases':<{name_width}} ", "bold"), *((f"{answer:>{COLUMN_WIDTH}}", "bold") for answer in used)
    )
    for row in backends:
        numbers = ((f"{row.counts.get(answer, 0):>{COLUMN_WIDTH}}", _count_style(answer, row)) for answer in used)
        yield column_line((f"{row.backend:<{name_width}} ", ""), *numbers)


def _name_width(backends: list[scoreboard.Row]) -> int:
    return max([len(row.backend) for row in backends] + [7])


def _count_style(answer: Answer, row: scoreboard.Row) -> str:
    return style_of_answer(answer) if row.counts.get(answer) else "dim"


def _heat_map(backends: list[scoreboard.Row], width: int) -> Iterator[Line]:
    name_width = _name_width(backends)
    room = max(20, width - name_width - 2)
    yield Line()
    marks = f"{scoreboard.HEAT_MARKS} up to the budget, ! over it, X wrong"
    marks += ", ? not judged" * any(mark == "?" for row in backends for mark, _ in row.heat)
    yield text_line(f"one mark a case, in the order of the families: {marks}")
    for row in backends:
        for start in range(0, len(row.heat), room):
            name = row.backend if start == 0 else ""
            yield column_line((f"{name:<{name_width}}  ", ""), *_join_styles(row.heat[start : start + room]))


def _join_styles(heat: Sequence[tuple[str, Answer]]) -> StyledText:
    """Join neighbours of one style, so that a line has few changes of colour."""
    pieces: list[tuple[str, str]] = []
    for mark, answer in heat:
        style = style_of_answer(answer)
        if pieces and pieces[-1][1] == style:
            pieces[-1] = (pieces[-1][0] + mark, style)
        else:
            pieces.append((mark, style))
    return tuple(pieces)


def missing_backends(states: Iterable[BackendState], verdicts: Iterable[Verdict], over_ranks: bool) -> Iterator[Line]:
    """Yield why backends that were not measured are missing, each reason once."""
    measured = {verdict.backend for verdict in verdicts}
    reasons: dict[str, list[str]] = {}
    for state in states:
        if state.missing and state.name not in measured and state.over_ranks == over_ranks:
            reasons.setdefault(state.missing, []).append(state.name)
    if reasons:
        yield Line()
    for reason, names in reasons.items():
        yield column_line(("not here  ", "dim"), (f"{', '.join(names)}: {reason}", "dim"))


def _format_verdicts(section: ParitySection) -> Iterator[Line]:
    """Yield every verdict in words, refusals with their reasons once."""
    yield Line()
    runs = {(run.backend, run.case.name): run for run in section.runs}
    for verdict in section.verdicts:
        if verdict.answer in ("refused", "skipped"):
            continue
        run = runs[verdict.backend, verdict.case]
        ratio = max((score.eager_ratio for score in run.scores), default=0.0)
        details = f" · {ratio:.2f} × eager's largest error" if ratio else ""
        details += f" · ran {run.kernels[0][:60]}" if run.kernels else ""
        text = f"{verdict.backend} {verdict.case}: {verdict.reason}{details}"
        yield column_line((f"{verdict.answer:<5}", style_of_answer(verdict.answer)), (text, ""))
    yield from _format_refusals(section.verdicts)


def _format_refusals(verdicts: Sequence[Verdict]) -> Iterator[Line]:
    counts: dict[tuple[str, str, str], int] = {}
    for verdict in verdicts:
        if verdict.answer in ("refused", "skipped"):
            key = (verdict.answer, verdict.backend, verdict.reason)
            counts[key] = counts.get(key, 0) + 1
    for (answer, backend, reason), count in counts.items():
        yield column_line((f"{answer} ", "dim"), (f"{backend}, {count} case{'s' * (count > 1)}: {reason}", "dim"))


def markdown(report: Report, section: ParitySection) -> Iterator[str]:
    """Yield each backend's verdicts, counted."""
    yield from verdict_table(section.measured_on, section.verdicts)


def verdict_table(measured_on: MeasuredOn, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a Markdown table of how many verdicts of each backend have which answer."""
    yield escape_line(f"{measured_on.name or measured_on.device} · torch {measured_on.torch}")
    yield ""
    used = [answer for answer in ANSWERS if any(verdict.answer == answer for verdict in verdicts)]
    names = dict.fromkeys(verdict.backend for verdict in verdicts)
    counts = [
        [str(sum(v.backend == name and v.answer == answer for v in verdicts)) for answer in used] for name in names
    ]
    yield from format_table(("backend", *used), [(name, *row) for name, row in zip(names, counts)])
    yield ""


def testcases(report: Report, section: ParitySection) -> Iterator[TestCase]:
    """Yield a test case for each verdict; its time is that of one call."""
    seconds = {(run.backend, run.case.name): run.call_ms / 1000 for run in section.runs}
    yield from verdict_testcases(report, section.verdicts, seconds)


def verdict_testcases(
    report: Report, verdicts: Sequence[Verdict], seconds: dict[tuple[str, str], float]
) -> Iterator[TestCase]:
    """Yield a test case for each verdict; `seconds` are by backend and case."""
    for verdict in verdicts:
        suite = f"{verdict.question}: {verdict.backend}"
        evidence = "\n".join(verdict.evidence)
        case_seconds = seconds.get((verdict.backend, verdict.case), 0.0)
        yield make_testcase(report, verdict.case, suite, verdict.answer, verdict.reason, evidence, case_seconds)


VIEW = SectionView(rows=rows, markdown=markdown, testcases=testcases)
