"""Parity's measurements: each backend's answer, why others were not measured; with -v every family and case."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attncheck.core.results.parity import ParitySection
from attncheck.core.verdicts import CANCELLING_FAIL_FACTOR, HUGE
from attncheck.report import scoreboard
from attncheck.report.sections import (
    FAIL_FACTOR,
    Answer,
    BackendState,
    Block,
    Column,
    Fold,
    Items,
    Marks,
    MeasuredOn,
    Paragraph,
    Report,
    Row,
    Run,
    SectionView,
    Table,
    TestCase,
    Verdict,
    make_testcase,
    style_of_answer,
    text_table,
)

COUNTED_ANSWERS: tuple[Answer, ...] = ("pass", "warn", "fail", "lost", "refused", "skipped")
UNJUDGED = ("refused", "skipped")
ANSWER_WORDS: dict[Answer, str] = {"warn": "over budget", "fail": "wrong", "lost": "lost"}
NOT_INSTALLED = " is not installed"
CUDA_ONLY = "on CUDA only"
NEEDS_CUDA = "needs CUDA"
MAX_CASES = 40  # shown on the page


def blocks(report: Report, section: ParitySection) -> Iterator[Block]:
    """Yield each backend's answer and why others were not measured, then every case as details."""
    yield Paragraph(format_heading(section.measured_on, section.backends, section.verdicts))
    yield from show_verdicts(section.backends, section.verdicts, section.runs, section.measured_on.ring_size > 0)


def show_verdicts(
    states: Sequence[BackendState], verdicts: Sequence[Verdict], runs: Iterable[Run] = (), over_ranks: bool = False
) -> Iterator[Block]:
    """Yield the blocks that show these verdicts of parity."""
    rows = [row for row in scoreboard.backend_rows(states, verdicts) if set(row.counts) - set(UNJUDGED)]
    if rows:
        yield Items(tuple(_summarize_backend(row.backend, verdicts) for row in rows), ("", "backend", "answer"))
    yield from list_unmeasured(states, verdicts, over_ranks)
    if rows:
        details = (
            _error_table(rows, scoreboard.list_families(verdicts)),
            *_draw_cases(rows),
            _list_cases(verdicts, runs),
        )
        yield Fold("Every case", (*details, *_list_refusals(verdicts)), opened=True)


def format_heading(measured_on: MeasuredOn, states: Sequence[BackendState], verdicts: Sequence[Verdict]) -> str:
    """Return in one line the measured device, how many cases ran, and how long it took."""
    seconds = f"{measured_on.seconds:.0f} s" if measured_on.seconds >= 10 else f"{measured_on.seconds:.1f} s"
    cases, judged = (
        len({verdict.case for verdict in verdicts}),
        {v.backend for v in verdicts if v.answer not in UNJUDGED},
    )
    calls_flash_attn = any(state.name in judged and state.package != "torch" for state in states)
    emulated = ", flash-attn's kernels emulated in plain torch" * (measured_on.emulated and calls_flash_attn)
    cause = "before the interrupt" if measured_on.interrupted else "within --budget"
    parts = [
        measured_on.name or measured_on.device,
        f"{measured_on.ring_size} ranks{emulated}" if measured_on.ring_size else "",
        f"torch {measured_on.torch}",
        f"{measured_on.suite} suite: {cases} cases" if measured_on.suite else "",
        f"seed {measured_on.seed}",
        seconds,
        f"{measured_on.not_reached} runs not reached {cause}" if measured_on.not_reached else "",
    ]
    return " · ".join(filter(None, parts))


def count_right(verdicts: Sequence[Verdict]) -> str:
    """Return how many judged cases are right: "all 59 cases right", "57 of 59 cases right, 2 wrong"."""
    counts = Counter(verdict.answer for verdict in verdicts if verdict.answer not in UNJUDGED)
    total = sum(counts.values())
    plural = "s" * (total != 1)
    if counts["pass"] == total:
        return f"all {total} cases right" if total > 1 else "1 case right"
    others = (f"{counts[answer]} {word}" for answer, word in ANSWER_WORDS.items() if counts[answer])
    return ", ".join((f"{counts['pass']} of {total} case{plural} right", *others))


def verdict_sentence(states: Sequence[BackendState], verdicts: Sequence[Verdict], over_ranks: bool = False) -> str:
    """Return the verdict on all backends, "" if no case was judged: "all 59 cases right, 3 backends; 2 need CUDA"."""
    judged = {verdict.backend for verdict in verdicts if verdict.answer not in UNJUDGED}
    if not judged:
        return ""
    cuda = len(group_unmeasured(states, verdicts, over_ranks).get(NEEDS_CUDA, ()))
    need = f"; {cuda} need{'s' * (cuda == 1)} CUDA" if cuda else ""
    return f"{count_right(verdicts)}, {len(judged)} backend{'s' * (len(judged) != 1)}{need}"


def _summarize_backend(backend: str, verdicts: Sequence[Verdict]) -> tuple[str, str, str]:
    """Return the row of a backend: its worst answer, the number of right cases, and the error closest to its limit."""
    judged = [verdict for verdict in verdicts if verdict.backend == backend and verdict.answer not in UNJUDGED]
    refused = sum(verdict.backend == backend for verdict in verdicts) - len(judged)
    worst = max(judged, key=lambda verdict: verdict.budget_ratio)
    answers = {verdict.answer for verdict in judged}
    marks = {"fail": "wrong", "lost": "lost", "warn": "warn"}
    mark = next((word for answer, word in marks.items() if answer in answers), "right")
    parts = [count_right(judged)]
    if worst.budget_ratio >= HUGE:  # the size of such an error says nothing
        parts.append(f"worst in {worst.family}")
    elif worst.budget_ratio:
        parts.append(f"worst {scoreboard.format_ratio(worst.budget_ratio)} of the budget ({worst.family})")
    parts += [f"{refused} refused or skipped"] * bool(refused)
    return mark, backend, " · ".join(parts)


def group_unmeasured(
    states: Iterable[BackendState], verdicts: Iterable[Verdict], over_ranks: bool
) -> Mapping[str, list[str]]:
    """Return the backends without a judged case, by reason: "not installed", "needs CUDA", or the full text."""
    kept = list(verdicts)
    judged = {verdict.backend for verdict in kept if verdict.answer not in UNJUDGED}
    reasons: dict[str, str] = {}
    for state in states:
        if state.missing and state.over_ranks == over_ranks:
            reasons[state.name] = state.missing
    for verdict in kept:
        reasons.setdefault(verdict.backend, verdict.reason)
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if name in judged:
            continue
        if reason.endswith(NOT_INSTALLED):
            reason = "not installed"
        groups.setdefault(NEEDS_CUDA if reason.endswith(CUDA_ONLY) else reason, []).append(name)
    return groups


def list_unmeasured(states: Sequence[BackendState], verdicts: Iterable[Verdict], over_ranks: bool) -> Iterator[Block]:
    """Yield why backends were not measured, each reason once."""
    packages = {state.name: state.package for state in states}
    rows = []
    for reason, names in group_unmeasured(states, verdicts, over_ranks).items():
        if reason == "not installed":
            counts = Counter(packages.get(name, name) for name in names)
            rows.append(
                (
                    "-",
                    f"{reason} ({len(names)})",
                    ", ".join(f"{name} ({n})" if n > 1 else name for name, n in counts.items()),
                )
            )
        elif reason == NEEDS_CUDA:
            rows.append(("-", f"{reason} ({len(names)})", ", ".join(names)))
        else:
            rows.append(("-", "not measured", f"{', '.join(names)}: {reason}"))
    if rows:
        yield Items(tuple(rows))


def _error_table(rows: Sequence[scoreboard.Row], families: Sequence[str]) -> Table:
    """Return each backend's worst error by family, without families in which no case ran."""
    used = [i for i, _ in enumerate(families) if any(row.cells[i].text != "-" for row in rows)]
    caption = (
        f"Worst error by family, in units of its budget: up to 1 passes, over {FAIL_FACTOR:g} fails "
        f"({CANCELLING_FAIL_FACTOR:g} if sums cancel); - if no case was run"
    )
    cells = (
        Row(row.backend, tuple((row.cells[i].text, style_of_answer(row.cells[i].answer)) for i in used)) for row in rows
    )
    return Table(caption, "backend", tuple(Column(families[i]) for i in used), tuple(cells), heat=True)


def _draw_cases(rows: Sequence[scoreboard.Row]) -> Iterator[Block]:
    summaries = (", ".join(f"{row.counts[a]} {a}" for a in COUNTED_ANSWERS if a in row.counts) for row in rows)
    unjudged = ", ? not judged" * any(mark == "?" for row in rows for mark, _ in row.heat)
    legend = f"{scoreboard.HEAT_MARKS} up to the budget, ! over it, X wrong{unjudged}"
    drawn = tuple((row.backend, summary, row.heat) for row, summary in zip(rows, summaries))
    yield Marks(f"One mark per case, in the order of the families: {legend}", drawn)


def _list_cases(verdicts: Sequence[Verdict], runs: Iterable[Run]) -> Table:
    """Return every judged case, the worst first."""
    judged = [verdict for verdict in verdicts if verdict.answer not in UNJUDGED]
    runs_by_case = {(run.backend, run.case.name): run for run in runs}
    rows = (
        (
            verdict.backend,
            verdict.answer,
            verdict.case,
            _format_error(verdict),
            " · ".join((verdict.reason, *_describe_run(runs_by_case.get((verdict.backend, verdict.case))))),
        )
        for verdict in sorted(judged, key=lambda verdict: (verdict.answer == "pass", -verdict.budget_ratio))
    )
    table = text_table("Cases, the worst first", ("backend", "answer", "case", "error / budget", "why"), rows)
    return Table(table.caption, table.head, table.columns, table.rows, page_rows=MAX_CASES)


def _describe_run(run: Run | None) -> Iterator[str]:
    ratio = max((score.eager_ratio for score in run.scores), default=0.0) if run else 0.0
    if ratio:
        yield f"{ratio:.2f} × eager's largest error"
    if run and run.kernels:
        yield f"ran {run.kernels[0][:60]}"


def _format_error(verdict: Verdict) -> str:
    """Return the error in units of its budget; "noted" for a warning that is not about a number."""
    is_noted = verdict.answer == "warn" and not verdict.budget_ratio
    return "noted" if is_noted else scoreboard.format_ratio(verdict.budget_ratio)


def _list_refusals(verdicts: Sequence[Verdict]) -> Iterator[Block]:
    counts = Counter((v.backend, v.answer, v.reason) for v in verdicts if v.answer in UNJUDGED)
    if counts:
        rows = ((backend, answer, str(count), reason) for (backend, answer, reason), count in counts.most_common())
        yield text_table("Refused or skipped", ("backend", "answer", "cases", "why"), rows)


def verdict(report: Report, section: ParitySection) -> str:
    """Return how many cases are right."""
    return verdict_sentence(section.backends, section.verdicts, section.measured_on.ring_size > 0)


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


VIEW = SectionView("Parity", blocks, verdict=verdict, testcases=testcases)
