"""The report for people: what was seen, what is wrong and why, and fixes to paste.

A terminal gets colours and wrapped lines, through rich. Where nothing wants either, one line a message is written as
it is, and rich is not even loaded: the static lane runs in prologs and hooks.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attncheck.core.findings import Finding
from attncheck.core.report import Report
from attncheck.report.formats import Renderer
from attncheck.report.sections.doctor import rows

if TYPE_CHECKING:
    from attncheck.report.sections.parity import Row
from attncheck.core.results.verdicts import ANSWERS

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan", "ok": "green", "-": "dim"}
DIFF = {"+": "green", "-": "red", "@": "cyan"}
INDENT = 15  # "ATN140 warning " : the column where every text begins
WIDEST = 110
NARROWEST = 20  # columns left for a text below which indenting it makes it worse


@dataclass(frozen=True)
class Line:
    """One message: styled words at its head, then the text. What is there to be pasted is never wrapped."""

    head: tuple[tuple[str, str], ...] = ()
    text: str = ""
    paste: bool = False


def render(report: Report, verbose: bool) -> str:
    """Return the report as text, coloured and wrapped only for a terminal that wants it."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = min(WIDEST, shutil.get_terminal_size().columns) if terminal else WIDEST
    top = _overview(report) if report.command == "doctor" else _measured(report, verbose, width)
    after = _launches(report)
    lines = [*top, *_talk(report, verbose, width), *(line for finding in report.findings for line in _finding(finding))]
    if verbose and report.skips:
        lines += [Line(), *_skips(report)]
    if report.settings:
        from attncheck.report.sections import smoke as proofs

        lines += _laid(proofs.settings(report))
    lines += [*after, *_passing(report)]
    lines += [Line(), Line(text=_summary(report, verbose)), *_advice(report)]
    if terminal:
        return _painted(lines, width)
    return "".join("".join(words for words, _ in line.head) + line.text + "\n" for line in lines)


def _overview(report: Report) -> Iterator[Line]:
    shown = rows(report)
    column = max(len(row.title) for row in shown)
    for row in shown:
        yield Line(((f"{row.mark:<8}", STYLES[row.mark]), (f"{row.title:<{column}}  ", "bold")), row.text)


def _measured(report: Report, verbose: bool, width: int) -> Iterator[Line]:
    if report.command == "communication":
        return
    if report.command == "gate":
        from attncheck.report.sections import gate as stages

        for mark, check, text in stages.rows(report):
            yield Line(((f"{mark:<8}", STYLES[mark]), (f"{check:<13}", "bold")), text)
        return
    if report.command == "lint":
        from attncheck.report.sections import lint as launches

        yield from (Line(((f"{mark:<8}", STYLES[mark]),), text) for mark, text in launches.rows(report))
        return
    if report.command == "smoke":
        from attncheck.report.sections import smoke as proofs

        yield from _laid(proofs.rows(report, verbose, width))
        return
    if report.ring_timings:
        from attncheck.report.sections import ring_bench

        yield from _laid(ring_bench.rows(report, width))
        return
    if report.timings:
        from attncheck.report.sections import bench

        yield from _laid(bench.rows(report, verbose, width))
        return
    from attncheck.report.sections import parity  # not for doctor, whose static lane runs in prologs

    yield from _laid(parity.rows(report, verbose, width))


def _passing(report: Report) -> Iterator[Line]:
    """What was found and let pass."""
    if not report.baselined and not report.allowed:
        return
    from attncheck.report.sections import gate as stages

    yield Line()
    yield from (Line((("let pass       ", "dim"),), text) for text in stages.passing(report))


def _launches(report: Report) -> Iterator[Line]:
    """The corrected launches: what changes, and what to paste."""
    if not report.launches:
        return
    from attncheck.report.sections import lint as launches

    for heading, text in launches.corrected(report):
        yield Line()
        yield Line(((f"{heading}:", "bold"),))
        yield from (Line(((line, DIFF.get(line[:1], "")),), paste=True) for line in text.splitlines())


def _talk(report: Report, verbose: bool, width: int) -> Iterator[Line]:
    """How ranks talked, where that was checked: all of it where it was asked for, else where something is amiss."""
    if not report.communication.world_size:
        return
    if report.command not in ("doctor", "communication") and not verbose:
        return
    from attncheck.report.sections import communication

    yield Line()
    yield from _laid(communication.rows(report.communication, verbose, width))


def _laid(rows: Iterable[Row]) -> Iterator[Line]:
    for row in rows:
        if len(row.words) == 1:  # a sentence, to be wrapped; the rest are columns
            yield Line(text=row.words[0][0])
        else:
            yield Line(row.words, paste=True)


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
    passed = len(report.baselined) + len(report.allowed)
    parts = list(_counts(report)) or ["nothing new found" if passed else "nothing found"]
    parts += [f"{passed} let pass"] if passed else []
    parts += _unanswered(report)
    if report.command not in ("doctor", "communication", "lint", "gate"):
        return " · ".join([*parts, *_answers(report)])
    parts.append(f"{len(report.passed)} rule{'s' * (len(report.passed) != 1)} found nothing")
    if report.skips:
        parts.append(f"{len(report.skips)} could not judge" + ("" if verbose else " (-v lists them)"))
    if report.suppressed:
        parts.append(f"{len(report.suppressed)} switched off")
    return " · ".join(parts)


def _unanswered(report: Report) -> Iterator[str]:
    """The checks of a gate that gave no answer: nothing found does not speak for them."""
    for outcome in ("unanswered", "left out"):
        checks = [stage.check for stage in report.stages if stage.outcome == outcome]
        if checks:
            yield f"{outcome}: {', '.join(checks)}"


def _answers(report: Report) -> Iterator[str]:
    for answer in ANSWERS:
        number = sum(verdict.answer == answer for verdict in report.verdicts)
        if number:
            yield f"{number} {answer}"


def _counts(report: Report) -> Iterator[str]:
    for severity in ("error", "warning", "note"):
        number = sum(finding.severity == severity for finding in report.findings)
        if number:
            yield f"{number} {severity}{'s' if number > 1 else ''}"


def _advice(report: Report) -> Iterator[Line]:
    if report.findings:
        yield Line(text=f"why: attncheck explain {report.findings[0].code}")


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


RENDERER = Renderer("text", render)
