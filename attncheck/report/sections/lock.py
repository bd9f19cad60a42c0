"""What moved since a lock was written."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.lock import LOCK_FILE
from attncheck.core.report import Report
from attncheck.core.results.lock import LockSection, Move
from attncheck.report.lines import STYLES, Line, column_line, text_line
from attncheck.report.markdown_text import escape_line, format_table
from attncheck.report.sections import SectionView
from attncheck.report.testcases import TestCase

MAX_COLUMN = 24  # of a subject, so that a narrow terminal has room for what moved


def rows(report: Report, section: LockSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield what was compared, then a line for each thing that moved and is no finding; with `verbose` for all."""
    yield text_line(describe_comparison(section))
    shown = [move for move in section.moves if verbose or not move.code]
    column = min(MAX_COLUMN, max((len(move.subject) for move in shown), default=0)) + 2
    for move in shown:
        mark = mark_move(report, move)
        yield Line(((f"{mark:<8}", STYLES[mark]), (f"{move.subject:<{column}}", "bold")), describe_move(move))
    for text in section.not_compared:
        yield Line((("-       ", STYLES["-"]), ("not compared  ", "dim")), text)
    for text in section.lost:
        yield Line((("lost    ", STYLES["lost"]),), text)


def below(report: Report, section: LockSection) -> Iterator[Line]:
    """Yield what to do about moves that are meant, once for all of them."""
    if any(move.code for move in section.moves):
        file = "" if section.path == LOCK_FILE else f" {section.path}"
        yield Line()
        if not section.measurements:
            yield text_line("whether it matters is measured, then compared:")
            yield column_line(("    attncheck parity --output json=parity.json", "bold"))
            yield column_line((f"    attncheck lock --check{file} --report parity.json", "bold"))
        yield text_line("where all of it is meant, it is recorded anew by:")
        yield column_line((f"    attncheck lock{file}", "bold"))


def markdown(report: Report, section: LockSection) -> Iterator[str]:
    """Yield what was compared, and everything that moved as a table."""
    yield from (escape_line(describe_comparison(section)), "")
    table = [(mark_move(report, move), move.code, move.subject, describe_move(move)) for move in section.moves]
    if table:
        yield from format_table(("", "code", "what", "moved"), table)
        yield ""
    yield from (f"- {escape_line(f'not compared: {text}')}" for text in section.not_compared)
    yield ""


def testcases(report: Report, section: LockSection) -> Iterator[TestCase]:
    """Yield a test case for each thing that moved; findings are test cases of their own."""
    for move in section.moves:
        if not move.code:
            yield TestCase(move.subject, "lock", "passed", move.reason, describe_move(move))


def describe_comparison(section: LockSection) -> str:
    """Return what was compared with which lock, in one line."""
    measured = f"{section.measurements} measured number{'s' * (section.measurements != 1)}"
    compared = f"{section.packages} package{'s' * (section.packages != 1)} and {measured} compared"
    moved = f"{len(section.moves)} moved" if section.moves else "nothing moved"
    return f"{section.path} of {section.date} · {compared} · {moved}"


def describe_move(move: Move) -> str:
    """Return a move in one line: "5.3.0 → 5.17.0 · 40 measured numbers compared, none is worse than the lock"."""
    return f"{move.before} → {move.now}" + (f" · {move.reason}" if move.reason else "")


def mark_move(report: Report, move: Move) -> str:
    """Return the severity of a move's finding, "ok" where it is none."""
    findings = (*report.findings, *report.baselined, *report.allowed)
    return next((finding.severity for finding in findings if finding.code == move.code), "ok")


VIEW = SectionView(rows=rows, below=below, markdown=markdown, testcases=testcases)
