"""What changed since a lock was written."""

from collections.abc import Iterator

from attncheck.core.lock import LOCK_FILE
from attncheck.core.results.lock import LockSection, Move
from attncheck.report.sections import Block, Code, Fold, Items, Paragraph, Report, SectionView, TestCase, text_table


def blocks(report: Report, section: LockSection) -> Iterator[Block]:
    """Yield what was compared, changes that are not findings, and what could not be compared."""
    yield Paragraph(describe_comparison(section))
    rows = [(mark_move(report, move), move.subject, describe_move(move), move.code) for move in section.moves]
    left_out = [("-", "not compared", text, "") for text in section.not_compared]
    left_out += [("lost", "not compared", text, "") for text in section.lost]
    shown = tuple(row[:3] for row in (*rows, *left_out) if not row[3])
    if shown:
        yield Items(shown, ("", "what", "change"))
    if any(row[3] for row in rows):
        titles = ("what", "severity", "code", "change")
        table = text_table("Everything that changed", titles, ((what, mark, code, t) for mark, what, t, code in rows))
        yield Fold("Everything that changed since the lock", (table,))


def below(report: Report, section: LockSection) -> Iterator[Block]:
    """Yield what to do about intended changes, once for all of them."""
    if any(move.code for move in section.moves):
        file = "" if section.path == LOCK_FILE else f" {section.path}"
        if not section.measurements:
            commands = (
                "attncheck parity --output json=parity.json",
                f"attncheck lock --check{file} --report parity.json",
            )
            yield Code("To measure whether it matters and compare", "\n".join(commands), "sh")
        yield Code("If all changes are intended, record them", f"attncheck lock{file}", "sh")


def verdict(report: Report, section: LockSection) -> str:
    """Return how many things changed, and how many of them matter."""
    if not section.moves:
        return f"nothing changed since {section.date}"
    matter = len({move.code for move in section.moves if move.code})
    return f"{len(section.moves)} changed since {section.date}" + ("" if matter else ", none of which matters")


def testcases(report: Report, section: LockSection) -> Iterator[TestCase]:
    """Yield a test case for each change; findings are separate test cases."""
    for move in section.moves:
        if not move.code:
            yield TestCase(move.subject, "lock", "passed", move.reason, describe_move(move))


def describe_comparison(section: LockSection) -> str:
    """Return in one line what was compared with which lock."""
    measured = f"{section.measurements} measured number{'s' * (section.measurements != 1)}"
    compared = f"{section.packages} package{'s' * (section.packages != 1)} and {measured} compared"
    moved = f"{len(section.moves)} changed" if section.moves else "nothing changed"
    return f"{section.path} of {section.date} · {compared} · {moved}"


def describe_move(move: Move) -> str:
    """Return a change in one line: "5.3.0 → 5.17.0 · 40 measured numbers compared, none is worse than the lock"."""
    return f"{move.before} → {move.now}" + (f" · {move.reason}" if move.reason else "")


def mark_move(report: Report, move: Move) -> str:
    """Return the severity of a change's finding, "ok" if it has none."""
    findings = (*report.findings, *report.baselined, *report.allowed)
    return next((finding.severity for finding in findings if finding.code == move.code), "ok")


VIEW = SectionView("Lock", blocks, below, verdict, testcases)
