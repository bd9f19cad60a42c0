"""How two environments differ."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.diff import ComparedSide, DiffSection, StackDifference
from attncheck.report.lines import Line, column_line, text_line
from attncheck.report.markdown_text import escape_line, format_table
from attncheck.report.sections import SectionView
from attncheck.report.testcases import TestCase

MAX_OTHERS = 10  # differences shown that nothing relates to a finding or to the stack; JSON holds all
TITLES = {
    "named": "differs, and named by these findings:",
    "stack": "differs, of the attention stack:",
    "other": "differs, of the rest:",
}
PACKAGE_KINDS = ("package", "torch", "driver", "python", "platform", "variable")  # whose subject says enough


def rows(report: Report, section: DiffSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield both sides, and where nothing is one-sided, that it is so."""
    for name, side in (("A", section.a), ("B", section.b)):
        yield Line(((f"{name}  ", "bold"),), describe_side(side))
    yield Line((("   ", ""),), describe_outcome(section))
    if verbose:
        yield from (Line((("not judged  ", "dim"),), text) for text in section.not_judged)
    elif section.not_judged:
        count = len(section.not_judged)
        text = f"{count} finding{'s' * (count != 1)} of one side could not be judged on the other (-v lists them)"
        yield Line((("   ", ""),), text)
    yield from (Line((("lost  ", "bold red"),), text) for text in section.lost)


def below(report: Report, section: DiffSection) -> Iterator[Line]:
    """Yield the facts that differ, the likeliest explanation first."""
    for relation, title in TITLES.items():
        group = [difference for difference in section.differences if difference.relation == relation]
        if not group:
            continue
        yield Line()
        yield column_line((title, "bold"))
        shown = group[:MAX_OTHERS] if relation == "other" else group
        for difference in shown:
            yield Line((("  ", ""), (describe_subject(difference) + "  ", "bold")), describe_values(difference))
        if len(group) > len(shown):
            yield text_line(f"  and {len(group) - len(shown)} more (--format json has all)")


def markdown(report: Report, section: DiffSection) -> Iterator[str]:
    """Yield both sides and the facts that differ as a table."""
    yield from (f"- {escape_line(f'{name}: {describe_side(s)}')}" for name, s in (("A", section.a), ("B", section.b)))
    yield from ("", escape_line(describe_outcome(section)), "")
    if section.differences:
        table = [(describe_subject(d), d.a, d.b, ", ".join(d.explains) or d.relation) for d in section.differences]
        yield from format_table(("differs", "A", "B", "named by"), table)
        yield ""
    yield from (f"- {escape_line(f'not judged: {text}')}" for text in section.not_judged)
    yield ""


def testcases(report: Report, section: DiffSection) -> Iterator[TestCase]:
    """Yield a test case for each fact that differs; findings are test cases of their own."""
    for difference in section.differences:
        yield TestCase(describe_subject(difference), "diff", "passed", "", describe_values(difference))


def describe_side(side: ComparedSide) -> str:
    """Return a side in one line."""
    return f"{side.source} ({side.kind})" + (f" · {side.summary}" if side.summary else "")


def describe_outcome(section: DiffSection) -> str:
    """Return in one line what the comparison came to."""
    number = len(section.differences)
    differences = f"{number} facts differ" if number > 1 else "1 fact differs" if number else "nothing differs"
    if "lock" in (section.a.kind, section.b.kind):
        return f"{differences}; a lock holds no findings, so that facts alone are compared"
    count = len(section.one_sided)
    if not count and not section.differences:
        return "nothing differs"
    return f"{count or 'no'} finding{'s' * (count != 1)} on one side only · {differences}"


def describe_subject(difference: StackDifference) -> str:
    """Return what differs, with its kind where the subject alone does not say it."""
    if difference.kind in PACKAGE_KINDS or difference.kind in difference.subject:
        return difference.subject
    return f"{difference.kind} {difference.subject}"


def describe_values(difference: StackDifference) -> str:
    """Return both values in one line, and the codes that name what differs."""
    named = f" · named by {', '.join(difference.explains)}" if difference.explains else ""
    return f"A {difference.a} · B {difference.b}{named}"


VIEW = SectionView(rows=rows, below=below, markdown=markdown, testcases=testcases)
