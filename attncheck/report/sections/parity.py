"""What parity measured: a table of errors, a heat map of cases, the verdicts in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attncheck.core.report import Report
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.verdicts import ANSWERS, Answer, BackendState, MeasuredOn, Verdict
from attncheck.report import scoreboard
from attncheck.report.lines import Line, Words, columns, sentence, style_of
from attncheck.report.markdown_text import table
from attncheck.report.sections import SectionView
from attncheck.report.testcases import TestCase, measurement

COLUMN = 9  # characters of a family
COUNTED: tuple[Answer, ...] = ("pass", "warn", "fail", "lost", "refused", "skipped")


def rows(report: Report, section: ParitySection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the measurements for a terminal `width` columns wide."""
    yield sentence(heading(section.measured_on, len({verdict.case for verdict in section.verdicts})))
    yield Line()
    backends = list(scoreboard.backend_rows(section.backends, section.verdicts))
    yield from _error_table(backends, scoreboard.families(section.verdicts), width)
    yield from _heat_map(backends, width)
    yield from missing_backends(section.backends, section.verdicts, section.measured_on.ring_size > 0)
    if verbose:
        yield from _every_verdict(section)


def heading(on: MeasuredOn, cases: int) -> str:
    """Return in one line on what was measured, how much, and how long it took."""
    seconds = f"{on.seconds:.0f} s" if on.seconds >= 10 else f"{on.seconds:.1f} s"
    parts = [on.name or on.device, f"torch {on.torch}", f"{on.suite} suite: {cases} cases" if on.suite else ""]
    if on.ring_size:
        parts.insert(1, f"{on.ring_size} ranks" + (", flash-attn's kernels emulated in plain torch" * on.emulated))
    parts += [f"seed {on.seed}", seconds]
    if on.not_reached:
        parts.append(f"{on.not_reached} runs not reached within --budget")
    return " · ".join(part for part in parts if part)


def _error_table(backends: list[scoreboard.Row], names: tuple[str, ...], width: int) -> Iterator[Line]:
    first = _name_width(backends)
    per_block = max(1, (width - first - 2) // COLUMN)
    used = [answer for answer in COUNTED if any(row.counts.get(answer) for row in backends)]
    yield sentence("worst error in units of its budget: up to 1 passes, over 3 fails; - where every case is refused")
    for start in range(0, len(names), per_block):
        block = names[start : start + per_block]
        heads = ((f"{name[: COLUMN - 1]:>{COLUMN}}", "bold") for name in block)
        yield columns((f"{'backend':<{first}} ", "bold"), *heads)
        for row in backends:
            cells = ((f"{cell.text:>{COLUMN}}", style_of(cell.answer)) for cell in row.cells[start : start + per_block])
            yield columns((f"{row.backend:<{first}} ", ""), *cells)
        yield Line()
    yield columns((f"{'cases':<{first}} ", "bold"), *((f"{answer:>{COLUMN}}", "bold") for answer in used))
    for row in backends:
        numbers = ((f"{row.counts.get(answer, 0):>{COLUMN}}", _count_style(answer, row)) for answer in used)
        yield columns((f"{row.backend:<{first}} ", ""), *numbers)


def _name_width(backends: list[scoreboard.Row]) -> int:
    return max([len(row.backend) for row in backends] + [7])


def _count_style(answer: Answer, row: scoreboard.Row) -> str:
    return style_of(answer) if row.counts.get(answer) else "dim"


def _heat_map(backends: list[scoreboard.Row], width: int) -> Iterator[Line]:
    first = _name_width(backends)
    room = max(20, width - first - 2)
    yield Line()
    marks = f"{scoreboard.HEAT} up to the budget, ! over it, X wrong"
    yield sentence(f"one mark a case, in the order of the families: {marks}")
    for row in backends:
        for start in range(0, len(row.heat), room):
            name = row.backend if start == 0 else ""
            yield columns((f"{name:<{first}}  ", ""), *_join_styles(row.heat[start : start + room]))


def _join_styles(heat: Sequence[tuple[str, Answer]]) -> Words:
    """Join neighbours of one style, so that a line has few changes of colour."""
    words: list[tuple[str, str]] = []
    for mark, answer in heat:
        style = style_of(answer)
        if words and words[-1][1] == style:
            words[-1] = (words[-1][0] + mark, style)
        else:
            words.append((mark, style))
    return tuple(words)


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
        yield columns(("not here  ", "dim"), (f"{', '.join(names)}: {reason}", "dim"))


def _every_verdict(section: ParitySection) -> Iterator[Line]:
    """Yield every verdict in words, refusals with their reasons once."""
    yield Line()
    runs = {(run.backend, run.case.name): run for run in section.runs}
    for verdict in section.verdicts:
        if verdict.answer in ("refused", "skipped"):
            continue
        run = runs[verdict.backend, verdict.case]
        ratio = max((score.eager_ratio for score in run.scores), default=0.0)
        seen = f" · {ratio:.2f} × eager's largest error" if ratio else ""
        seen += f" · ran {run.kernels[0][:60]}" if run.kernels else ""
        text = f"{verdict.backend} {verdict.case}: {verdict.reason}{seen}"
        yield columns((f"{verdict.answer:<5}", style_of(verdict.answer)), (text, ""))
    yield from _refusals(section.verdicts)


def _refusals(verdicts: Sequence[Verdict]) -> Iterator[Line]:
    counted: dict[tuple[str, str, str], int] = {}
    for verdict in verdicts:
        if verdict.answer in ("refused", "skipped"):
            key = (verdict.answer, verdict.backend, verdict.reason)
            counted[key] = counted.get(key, 0) + 1
    for (answer, backend, reason), count in counted.items():
        yield columns((f"{answer} ", "dim"), (f"{backend}, {count} case{'s' * (count > 1)}: {reason}", "dim"))


def markdown(report: Report, section: ParitySection) -> Iterator[str]:
    """Yield each backend's verdicts, counted."""
    yield from verdict_table(section.measured_on, section.verdicts)


def verdict_table(on: MeasuredOn, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a Markdown table of how many verdicts of each backend have which answer."""
    yield f"{on.name or on.device} · torch {on.torch}"
    yield ""
    used = [answer for answer in ANSWERS if any(verdict.answer == answer for verdict in verdicts)]
    names = dict.fromkeys(verdict.backend for verdict in verdicts)
    counts = [
        [str(sum(v.backend == name and v.answer == answer for v in verdicts)) for answer in used] for name in names
    ]
    yield from table(("backend", *used), [(name, *row) for name, row in zip(names, counts)])
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
        took = seconds.get((verdict.backend, verdict.case), 0.0)
        yield measurement(report, verdict.case, suite, verdict.answer, verdict.reason, evidence, took)


VIEW = SectionView(rows=rows, markdown=markdown, testcases=testcases)
