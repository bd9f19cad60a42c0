"""The report for people: what was seen, what is wrong and why, and fixes to paste.

A terminal gets colours and wrapped lines, through rich. Where nothing wants either, one line a message is written as
it is, and rich is not even loaded: the static lane runs in prologs and hooks.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Iterator

from attncheck.core.findings import Finding
from attncheck.core.report import Report
from attncheck.core.results.verdicts import ANSWERS
from attncheck.report.finding_lines import let_pass
from attncheck.report.formats import Format
from attncheck.report.lines import STYLES, Line
from attncheck.report.sections import load_view

INDENT = 15  # "ATN140 warning " : the column where every text begins
WIDEST = 110
NARROWEST = 20  # columns left for a text below which indenting it makes it worse


def render(report: Report, verbose: bool) -> str:
    """Return the report as text, coloured and wrapped only for a terminal that wants it."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = min(WIDEST, shutil.get_terminal_size().columns) if terminal else WIDEST
    lines = list(_lines(report, verbose, width))
    if terminal:
        return _painted(lines, width)
    return "".join("".join(words for words, _ in line.head) + line.text + "\n" for line in lines)


def _lines(report: Report, verbose: bool, width: int) -> Iterator[Line]:
    yield from _above(report, verbose, width)
    for finding in report.findings:
        yield from _finding(finding)
    if verbose and report.skips:
        yield Line()
        yield from _skips(report)
    for name, section in report.sections.items():
        yield from load_view(name).below(report, section)
    if report.baselined or report.allowed:
        yield Line()
        yield from (Line((("let pass       ", "dim"),), text) for text in let_pass(report))
    yield Line()
    yield Line(text=_summary(report, verbose))
    if report.findings:
        yield Line(text=f"why: attncheck explain {report.findings[0].code}")


def _above(report: Report, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the command's own section, then what others have to add to it."""
    views = {name: load_view(name) for name in report.sections}
    own = views.get(report.command)
    if own is not None:
        yield from own.rows(report, report.sections[report.command], verbose, width)
    if own is None or verbose or not own.covers:
        for name, section in report.sections.items():
            yield from views[name].beside(report, section, verbose, width)


def _finding(finding: Finding) -> Iterator[Line]:
    yield Line()
    head = ((f"{finding.code} ", "bold"), (f"{finding.severity:<8}", STYLES[finding.severity]))
    yield Line(head, finding.message)
    for index, line in enumerate(finding.evidence):
        yield Line(((f"{'':7}{'seen' if index == 0 else '':<8}", "dim"),), line)
    for fix in finding.fixes:
        proven = f" (proven: {fix.proven})" if fix.proven else ""
        yield Line(((f"{'':7}{'fix':<8}", "green"),), fix.title + proven)
        for line in fix.text.splitlines():
            yield Line(((" " * INDENT + line, "bold"),), paste=True)


def _skips(report: Report) -> Iterator[Line]:
    names: dict[str, list[str]] = {}
    for skip in report.skips:
        names.setdefault(skip.reason, []).append(f"{skip.code} {skip.name}")
    for reason, skipped in names.items():  # one missing fact silences many rules: say it once
        yield Line(((f"{'':7}skipped ", "dim"),), f"{reason}: {', '.join(skipped)}")


def _summary(report: Report, verbose: bool) -> str:
    let_pass = len(report.baselined) + len(report.allowed)
    parts = list(_severity_counts(report)) or ["nothing new found" if let_pass else "nothing found"]
    parts += [f"{let_pass} let pass"] if let_pass else []
    parts += _unanswered(report)
    if report.passed or report.skips or report.suppressed:
        parts += _rule_counts(report, verbose)
    else:
        parts += _answer_counts(report)
    return " · ".join(parts)


def _severity_counts(report: Report) -> Iterator[str]:
    for severity, number in report.counts().items():
        if number:
            yield f"{number} {severity}{'s' if number > 1 else ''}"


def _unanswered(report: Report) -> Iterator[str]:
    """Yield the checks of a gate that gave no answer: nothing found does not speak for them."""
    questions = [question for section in report.sections.values() for question in section.unanswered]
    for outcome in ("unanswered", "left out"):
        names = [question.name for question in questions if question.outcome == outcome]
        if names:
            yield f"{outcome}: {', '.join(names)}"


def _rule_counts(report: Report, verbose: bool) -> Iterator[str]:
    yield f"{len(report.passed)} rule{'s' * (len(report.passed) != 1)} found nothing"
    if report.skips:
        yield f"{len(report.skips)} could not judge" + ("" if verbose else " (-v lists them)")
    if report.suppressed:
        yield f"{len(report.suppressed)} switched off"


def _answer_counts(report: Report) -> Iterator[str]:
    for answer in ANSWERS:
        number = sum(verdict.answer == answer for verdict in report.verdicts)
        if number:
            yield f"{number} {answer}"


def _painted(lines: Iterable[Line], width: int) -> str:
    """Return `lines` for a terminal of this width, every wrapped line beginning below the first."""
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, width=width, highlight=False)
    for line in lines:
        head = Text.assemble(*line.head)
        room = width - len(head)
        if line.paste or room < NARROWEST:
            console.print(head + Text(line.text), soft_wrap=line.paste)
            continue
        parts = Text(line.text).wrap(console, room) or [Text()]
        console.print(Text("\n" + " " * len(head)).join([head + parts[0], *parts[1:]]))
    return "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))


FORMAT = Format(render)
