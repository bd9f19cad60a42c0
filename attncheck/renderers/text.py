"""The report for people: what was seen, what is wrong and why, and fixes to paste."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from attncheck.findings import Finding, Report
from attncheck.overview import rows
from attncheck.renderers import Renderer

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan", "ok": "green", "-": "dim"}
INDENT = 15  # "ATN140 warning " : the column where every text begins
WIDEST = 110
PIPED = 10_000  # no wrapping where no terminal asks for it: the output is for grep


def render(report: Report, verbose: bool) -> str:
    """Return the report as text, coloured and wrapped only for a terminal that wants it."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = min(WIDEST, shutil.get_terminal_size().columns) if terminal else PIPED
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=terminal, width=width, highlight=False, soft_wrap=not terminal)
    _print_overview(console, report)
    for finding in report.findings:
        _print_finding(console, finding)
    if verbose and report.skips:
        _print_skips(console, report)
    console.print()
    console.print(Text(_summary(report, verbose)))
    return "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))


def _print_overview(console: Console, report: Report) -> None:
    shown = rows(report)
    column = max(len(row.title) for row in shown)
    for row in shown:
        head = Text.assemble((f"{row.mark:<8}", STYLES[row.mark]), (f"{row.title:<{column}}  ", "bold"))
        console.print(_hanging(console, head, row.text))


def _print_finding(console: Console, finding: Finding) -> None:
    console.print()
    head = Text.assemble((f"{finding.code} ", "bold"), (f"{finding.severity:<8}", STYLES[finding.severity]))
    console.print(_hanging(console, head, finding.message))
    for index, line in enumerate(finding.evidence):
        head = Text.assemble((f"{'':7}{'seen' if index == 0 else '':<8}", "dim"))
        console.print(_hanging(console, head, line))
    for fix in finding.fixes:
        proven = f" (proven: {fix.proven})" if fix.proven else ""
        console.print(_hanging(console, Text.assemble((f"{'':7}{'fix':<8}", "green")), fix.title + proven))
        for line in fix.text.splitlines():  # never wrapped: it is there to be pasted
            console.print(Text(" " * INDENT + line, "bold"), soft_wrap=True)


def _print_skips(console: Console, report: Report) -> None:
    console.print()
    names: dict[str, list[str]] = {}
    for skip in report.skips:
        names.setdefault(skip.reason, []).append(f"{skip.code} {skip.name}")
    for reason, skipped in names.items():  # one missing fact silences many rules: say it once
        head = Text.assemble(f"{'':7}", ("skipped ", "dim"))
        console.print(_hanging(console, head, f"{reason}: {', '.join(skipped)}"))


def _hanging(console: Console, head: Text, text: str) -> Text:
    """Return `head` followed by `text`, wrapped so that every further line begins below the first."""
    room = console.width - len(head)
    if room < 20:  # too narrow to indent
        return head + Text(text)
    lines = Text(text).wrap(console, room) if console.width < PIPED else [Text(text)]
    return Text("\n" + " " * len(head)).join([head + lines[0], *lines[1:]]) if lines else head


def _summary(report: Report, verbose: bool) -> str:
    parts = list(_counts(report)) or ["nothing found"]
    parts.append(f"{len(report.passed)} rule{'s' * (len(report.passed) != 1)} found nothing")
    if report.skips:
        parts.append(f"{len(report.skips)} could not judge" + ("" if verbose else " (-v lists them)"))
    if report.suppressed:
        parts.append(f"{len(report.suppressed)} switched off")
    advice = "" if not report.findings else f"\nwhy: attncheck explain {report.findings[0].code}"
    return " · ".join(parts) + advice


def _counts(report: Report) -> Iterator[str]:
    for severity in ("error", "warning", "note"):
        number = sum(finding.severity == severity for finding in report.findings)
        if number:
            yield f"{number} {severity}{'s' if number > 1 else ''}"


RENDERER = Renderer("text", render)
