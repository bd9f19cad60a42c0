"""What parity and determinism measured, as lines of text: a table of errors, a heat map, the verdicts in words.

Not a format of its own: `text` prints it above the findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attncheck.core.report import Report
from attncheck.core.results.error_growth import describe_growth
from attncheck.core.results.verdicts import Answer, Repeats, Verdict
from attncheck.report.sections import scoreboard
from attncheck.report.sections.scoreboard import Cell

Words = tuple[tuple[str, str], ...]  # (text, style) side by side
STYLES: dict[Answer, str] = {"pass": "green", "warn": "yellow", "fail": "bold red", "lost": "bold red"}
MODES = {"default": "", "deterministic": "deterministic", "warn_only": "warn_only=True"}
COLUMN = 9  # of a family
TENSORS = ("out", "dq", "dk", "dv")


@dataclass(frozen=True)
class Row:
    """One line of output, in styled pieces."""

    words: Words = ()


def rows(report: Report, verbose: bool, width: int) -> Iterator[Row]:
    """Yield the measurements of a report for a terminal `width` columns wide."""
    yield Row(((_heading(report), "bold"),))
    yield Row()
    if report.command == "parity":
        found = list(scoreboard.lines(report))
        yield from _table(found, scoreboard.families(report.verdicts), width)
        yield from _map(found, width)
        yield from _growth(report)
        yield from _absent(report)
        if verbose:
            yield from _each(report)
    else:
        yield from _repeats(report, verbose)
        yield from _absent(report)


def _heading(report: Report) -> str:
    on = report.measured_on
    cases = len({verdict.case for verdict in report.verdicts})
    seconds = f"{on.seconds:.0f} s" if on.seconds >= 10 else f"{on.seconds:.1f} s"
    parts = [on.name or on.device, f"torch {on.torch}", f"{on.suite} suite: {cases} cases" if on.suite else ""]
    if on.ring_size:
        parts.insert(1, f"{on.ring_size} ranks" + (", flash-attn's kernels emulated in plain torch" * on.emulated))
    parts += [f"seed {on.seed}", seconds]
    if on.not_reached:
        parts.append(f"{on.not_reached} runs not reached within --budget")
    return " · ".join(part for part in parts if part)


def _table(found: list[scoreboard.Line], names: tuple[str, ...], width: int) -> Iterator[Row]:
    first = max([len(line.backend) for line in found] + [7])
    each = max(1, (width - first - 2) // COLUMN)
    counts: tuple[Answer, ...] = ("pass", "warn", "fail", "lost", "refused", "skipped")
    used = [answer for answer in counts if any(line.counts.get(answer) for line in found)]
    yield Row(
        (("worst error in units of its budget: up to 1 passes, over 3 fails; - where every case is refused", "dim"),)
    )
    for start in range(0, len(names), each):
        block = names[start : start + each]
        yield Row(
            ((f"{'backend':<{first}} ", "bold"), *((f"{name[: COLUMN - 1]:>{COLUMN}}", "bold") for name in block))
        )
        for line in found:
            cells = line.cells[start : start + each]
            yield Row(((f"{line.backend:<{first}} ", ""), *(_painted(cell) for cell in cells)))
        yield Row()
    yield Row(((f"{'cases':<{first}} ", "bold"), *((f"{answer:>{COLUMN}}", "bold") for answer in used)))
    for line in found:
        numbers = ((f"{line.counts.get(answer, 0):>{COLUMN}}", _count_style(answer, line)) for answer in used)
        yield Row(((f"{line.backend:<{first}} ", ""), *numbers))


def _count_style(answer: Answer, line: scoreboard.Line) -> str:
    return STYLES.get(answer, "dim") if line.counts.get(answer) else "dim"


def _painted(cell: Cell) -> tuple[str, str]:
    return f"{cell.text:>{COLUMN}}", STYLES.get(cell.answer, "dim")


def _map(found: list[scoreboard.Line], width: int) -> Iterator[Row]:
    first = max([len(line.backend) for line in found] + [7])
    room = max(20, width - first - 2)
    yield Row()
    legend = f"one mark a case, in the order of the families: {scoreboard.HEAT} up to the budget, ! over it, X wrong"
    yield Row(((legend, "dim"),))
    for line in found:
        for start in range(0, len(line.heat), room):
            name = line.backend if start == 0 else ""
            yield Row(((f"{name:<{first}}  ", ""), *_grouped(line.heat[start : start + room])))


def _grouped(heat: Sequence[tuple[str, Answer]]) -> Iterator[tuple[str, str]]:
    """Join neighbours of one style, so that a line has few changes of colour."""
    text, style = "", ""
    for mark, answer in heat:
        colour = STYLES.get(answer, "dim")
        if colour != style and text:
            yield text, style
            text = ""
        text, style = text + mark, colour
    if text:
        yield text, style


def _growth(report: Report) -> Iterator[Row]:
    """Say how errors grow with the ring, and what was put back so that the package could be imported at all."""
    if report.growth:
        yield Row()
        yield Row((("the same problem on every ring size, its worst tensor; an ideal kernel has z_rms 1", "dim"),))
    for growth in report.growth:
        yield Row(((f"{growth.backend} ({growth.layout}) ", ""), (describe_growth(growth), "dim")))
    if report.adapted:
        yield Row()
        yield Row((("ring-flash-attn's Hugging Face adapter on small models, by attn_implementation", "dim"),))
    for item in report.adapted:
        who = f"{item.implementation}, {item.shape.replace('_', ' ')}"
        yield Row(((f"{item.answer:<8}", STYLES.get(item.answer, "dim")), (f"{who:<34}", ""), (item.reason, "dim")))
    if report.measured_on.shimmed_names:
        names = ", ".join(report.measured_on.shimmed_names)
        line = f"ring-flash-attn was imported with {names} put back into transformers, in the measuring process only"
        yield Row()
        yield Row(((line, "dim"),))


def _absent(report: Report) -> Iterator[Row]:
    measured = {verdict.backend for verdict in report.verdicts}
    reasons: dict[str, list[str]] = {}
    for state in report.backends:
        ranks = report.measured_on.ring_size > 0
        if state.missing and state.name not in measured and state.over_ranks == ranks:
            reasons.setdefault(state.missing, []).append(state.name)
    if reasons:
        yield Row()
    for reason, names in reasons.items():
        yield Row((("not here  ", "dim"), (f"{', '.join(names)}: {reason}", "dim")))


def _each(report: Report) -> Iterator[Row]:
    """Every verdict in words, refusals with their reasons once."""
    yield Row()
    runs = {(run.backend, run.case.name): run for run in report.runs}
    for verdict in report.verdicts:
        if verdict.answer in ("refused", "skipped"):
            continue
        run = runs[verdict.backend, verdict.case]
        ratio = max((score.eager_ratio for score in run.scores), default=0.0)
        seen = f" · {ratio:.2f} × eager's largest error" if ratio else ""
        seen += f" · ran {run.kernels[0][:60]}" if run.kernels else ""
        style = STYLES.get(verdict.answer, "")
        yield Row(((f"{verdict.answer:<5}", style), (f"{verdict.backend} {verdict.case}: {verdict.reason}{seen}", "")))
    yield from _refusals(report.verdicts)


def _refusals(verdicts: Sequence[Verdict]) -> Iterator[Row]:
    counted: dict[tuple[str, str, str], int] = {}
    for verdict in verdicts:
        if verdict.answer in ("refused", "skipped"):
            key = (verdict.answer, verdict.backend, verdict.reason)
            counted[key] = counted.get(key, 0) + 1
    for (answer, backend, reason), count in counted.items():
        yield Row(((f"{answer} ", "dim"), (f"{backend}, {count} case{'s' * (count > 1)}: {reason}", "dim")))


def _repeats(report: Report, verbose: bool) -> Iterator[Row]:
    shown = [item for item in report.repeats if verbose or item.outcome != "refused"]
    first = max([len(_who(item)) for item in shown] + [7])
    heads = "".join(f"{name:>6}" for name in TENSORS)
    yield Row((("different results among the calls, bit for bit; first: the call that first differed", "dim"),))
    yield Row(((f"{'backend':<{first}} {heads}{'calls':>7}{'first':>7}{'ms':>9}{'memory':>10}  in a batch", "bold"),))
    for item in shown:
        yield _repeat(item, first)
    if not verbose:
        yield from _refused(report)


def _refused(report: Report) -> Iterator[Row]:
    """Say once why a backend was not repeated at all."""
    ran = {item.backend for item in report.repeats if item.outcome != "refused"}
    reasons = {item.backend: item.reason for item in report.repeats if item.backend not in ran}
    if reasons:
        yield Row()
    for backend, reason in reasons.items():
        yield Row((("refuses   ", "dim"), (f"{backend}: {reason}", "dim")))


def _who(item: Repeats) -> str:
    return " ".join(part for part in (item.backend, item.case.layout, MODES[item.mode]) if part)


def _repeat(item: Repeats, first: int) -> Row:
    name = (f"{_who(item):<{first}} ", "")
    if item.outcome != "ok":
        return Row((name, (f"{item.outcome}: {item.reason}", "dim")))
    by_tensor = {difference.tensor: difference for difference in item.differences}
    cells: list[tuple[str, str]] = []
    for tensor in TENSORS:
        difference = by_tensor.get(tensor)
        text = str(difference.distinct) if difference else "-"
        cells.append((f"{text:>6}", "green" if difference and difference.distinct == 1 else "yellow"))
    firsts = [difference.first_differing for difference in item.differences if difference.first_differing]
    memory = f"{item.memory_bytes / (1 << 20):.0f} MiB" if item.memory_bytes else "-"
    tail = f"{item.repeats:>7}{min(firsts) if firsts else '-':>7}{item.call_ms:>9.2f}{memory:>10}"
    varied = [difference.tensor for difference in item.batch if difference.distinct > 1]
    batch = "" if not item.batch else f"changes {', '.join(varied)}" if varied else "invariant"
    return Row((name, *cells, (tail, ""), (f"  {batch}", "dim" if not varied else "yellow")))
