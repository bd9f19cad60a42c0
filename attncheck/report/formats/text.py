"""The report for people: what was measured, what is wrong and why, and fixes to paste.

A terminal gets colours and wrapped lines, through rich. Elsewhere each message is written on one line as it is, and
rich is not even loaded: the static lane runs in prologs and hooks. NO_COLOR and FORCE_COLOR decide on colours before
the terminal does (`attncheck.report.colours`); a file gets none.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Literal

from attncheck.core.findings import Finding, Skip
from attncheck.core.io.visible import indent_continuation, show_line_ends
from attncheck.core.report import MERGED_COMMAND, Report
from attncheck.core.verdicts import ANSWERS
from attncheck.report.colours import wants_colours
from attncheck.report.finding_lines import (
    count_severities,
    describe_allowed,
    describe_no_findings,
    describe_places,
    fix_label,
    list_skips,
    measured_questions,
)
from attncheck.report.formats import Format
from attncheck.report.interpreter_line import describe_interpreter
from attncheck.report.lines import STYLES, Line
from attncheck.report.sections import load_view

INDENT = 15  # "ATN140 warning " : the column where every text begins
MAX_WIDTH = 110
CONTINUATION = 4  # columns by which a text without a head goes on after a line end in it
MAX_SKIPS = 5  # rules that are listed of those that one finding covers, without -v
MIN_TEXT_WIDTH = 20  # columns left for a text below which indenting it makes it worse


def render(report: Report, verbose: bool) -> str:
    """Return the report as text for standard output: wrapped for a terminal, coloured where that is wanted."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    is_coloured = wants_colours(is_terminal)
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns) if is_terminal else MAX_WIDTH
    lines = [_keep_apart(line) for line in _format_lines(report, verbose, width)]
    if is_terminal or is_coloured:
        return _render_with_rich(lines, width, is_terminal, is_coloured)
    return _join_plain(lines)


def render_plain(report: Report, verbose: bool) -> str:
    """Return the report as text for a file: one line a message, without colours."""
    return _join_plain(_keep_apart(line) for line in _format_lines(report, verbose, MAX_WIDTH))


def _join_plain(lines: Iterable[Line]) -> str:
    return "".join("".join(text for text, _ in line.head) + line.text + "\n" for line in lines)


def _keep_apart(line: Line) -> Line:
    """Return a line no part of which begins a line like ours: a text's line ends lead below its beginning."""
    head = tuple((show_line_ends(text), style) for text, style in line.head)
    columns = sum(len(text) for text, _ in head) or CONTINUATION
    return Line(head, indent_continuation(line.text, columns), line.no_wrap)


def _format_lines(report: Report, verbose: bool, width: int) -> Iterator[Line]:
    if interpreter := describe_interpreter(report):
        yield Line((("python  ", "bold"),), interpreter)
    yield from _format_sections(report, verbose, width)
    for finding in report.findings:
        yield from _format_finding(finding)
        if places := describe_places(finding, report):
            yield Line(((f"{'':7}{'at':<8}", "dim"),), places)
    if skips := list_skips(report, verbose):
        yield Line()
        yield from _format_skips(skips, verbose)
    for name, section in report.sections.items():
        yield from load_view(name).below(report, section)
    if report.baselined or report.allowed:
        yield Line()
        yield from (Line((("allowed        ", "dim"),), text) for text in describe_allowed(report))
    open_questions = measured_questions(report)
    if open_questions:
        yield Line()
        yield from (Line((("unanswered     ", "yellow"),), f"{q.name}: {q.reason}") for q in open_questions)
    yield Line()
    yield Line(text=_format_summary(report, verbose))
    if report.findings:
        yield Line(text=f"why: attncheck explain {report.findings[0].code}")


def _format_sections(report: Report, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the lines above the findings: the command's own section, then what other sections add to it."""
    views = {name: load_view(name) for name in report.sections}
    if report.command == MERGED_COMMAND:
        for name, section in report.sections.items():
            yield from views[name].rows(report, section, verbose, width)
            yield Line()
    own_view = views.get(report.command)
    if own_view is not None:
        yield from own_view.rows(report, report.sections[report.command], verbose, width)
    if own_view is None or verbose or not own_view.covers:
        for name, section in report.sections.items():
            yield from views[name].beside(report, section, verbose, width)


def _format_finding(finding: Finding) -> Iterator[Line]:
    yield Line()
    head = ((f"{finding.code} ", "bold"), (f"{finding.severity:<8}", STYLES[finding.severity]))
    yield Line(head, finding.message)
    for index, line in enumerate(finding.evidence):
        yield Line(((f"{'':7}{'seen' if index == 0 else '':<8}", "dim"),), line)
    for fix in finding.fixes:
        proven = f" (proven: {fix.proven})" if fix.proven else ""
        yield Line(((f"{'':7}{fix_label(fix):<8}", "green" if fix.kind != "advice" else "cyan"),), fix.title + proven)
        for line in fix.text.splitlines():
            yield Line(((" " * INDENT + line, "bold"),), no_wrap=True)


def _format_skips(skips: Iterable[Skip], verbose: bool) -> Iterator[Line]:
    rules_by_reason: dict[str, list[str]] = {}
    for skip in skips:
        rules_by_reason.setdefault(skip.reason, []).append(f"{skip.code} {skip.name}")
    for reason, rules in rules_by_reason.items():  # one missing fact silences many rules: say it once
        hidden = 0 if verbose else max(0, len(rules) - MAX_SKIPS)
        more = f" and {hidden} more (-v lists them)" if hidden else ""
        yield Line(((f"{'':7}skipped ", "dim"),), f"{reason}: {', '.join(rules[: len(rules) - hidden])}{more}")


def _format_summary(report: Report, verbose: bool) -> str:
    allowed_count = len(report.baselined) + len(report.allowed)
    parts = list(count_severities(report.findings)) or [describe_no_findings(report)]
    parts += [f"{allowed_count} allowed"] if allowed_count else []
    parts += _describe_open_questions(report)
    if report.passed or report.skips or report.suppressed:
        parts += _rule_counts(report, verbose)
    else:
        parts += _answer_counts(report)
    return " · ".join(parts)


def _describe_open_questions(report: Report) -> Iterator[str]:
    """Yield the checks that gave no answer, or not the whole of it: no findings does not mean that they passed."""
    for outcome in ("unanswered", "left out"):
        names = dict.fromkeys(question.name for question in report.unanswered if question.outcome == outcome)
        if names:
            yield f"{outcome}: {', '.join(names)}"


def _rule_counts(report: Report, verbose: bool) -> Iterator[str]:
    yield f"{len(report.passed)} passed"
    if report.skips:
        yield f"{len(report.skips)} could not judge" + ("" if verbose else " (-v lists them)")
    if report.suppressed:
        yield f"{len(report.suppressed)} switched off"


def _answer_counts(report: Report) -> Iterator[str]:
    for answer in ANSWERS:
        number = sum(verdict.answer == answer for verdict in report.verdicts)
        if number:
            yield f"{number} {answer}"


def _render_with_rich(lines: Iterable[Line], width: int, is_wrapped: bool, is_coloured: bool) -> str:
    """Return `lines` in colours; where `is_wrapped`, for a terminal of this width, each going on below its text."""
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    system: Literal["standard"] | None = "standard" if is_coloured else None
    console = Console(file=buffer, force_terminal=True, width=width, highlight=False, color_system=system)
    for line in lines:
        head = Text.assemble(*line.head)
        room = width - len(head)
        if line.no_wrap or not is_wrapped or room < MIN_TEXT_WIDTH:
            console.print(head + Text(line.text), soft_wrap=line.no_wrap or not is_wrapped)
            continue
        parts = Text(line.text).wrap(console, room) or [Text()]
        console.print(Text("\n" + " " * len(head)).join([head + parts[0], *parts[1:]]))
    return "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))


FORMAT = Format(render, render_plain=render_plain)
