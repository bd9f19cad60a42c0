"""The differences between two environments."""

from collections.abc import Iterator

from attncheck.core.results.diff import ComparedSide, DiffSection, StackDifference
from attncheck.report.sections import Block, Bullets, Fold, Heading, Items, Report, SectionView, TestCase

MAX_OTHERS = 10  # differences shown that are related to no finding and not to the stack; JSON contains all
TITLES = {
    "named": "Differences that the findings name",
    "stack": "Other differences in the attention stack",
    "other": "Other differences",
}
# kinds whose subject is clear without them
PACKAGE_KINDS = ("package", "torch", "driver", "python", "platform", "variable")


def blocks(report: Report, section: DiffSection) -> Iterator[Block]:
    """Yield both sides, and what could not be judged."""
    yield Items((("", "A", describe_side(section.a)), ("", "B", describe_side(section.b))))
    if count := len(section.not_judged):
        text = f"{count} finding{'s' * (count != 1)} of one side could not be judged on the other"
        yield Fold(f"{text}:", (Bullets(section.not_judged),), text)
    yield Bullets(tuple(f"lost: {text}" for text in section.lost))


def below(report: Report, section: DiffSection) -> Iterator[Block]:
    """Yield the facts that differ, the most likely explanation first."""
    for relation, title in TITLES.items():
        rows = [("", describe_subject(d), describe_values(d)) for d in section.differences if d.relation == relation]
        shown = rows[:MAX_OTHERS] if relation == "other" else rows
        if shown:
            yield Heading(title)
            yield Items(tuple(shown), ("", "what", "differs"))
        if rest := rows[len(shown) :]:
            yield Fold(f"{len(rest)} others", (Items(tuple(rest), ("", "what", "differs")),), f"and {len(rest)} more")


def verdict(report: Report, section: DiffSection) -> str:
    """Return the result of the comparison in one line."""
    return describe_outcome(section)


def testcases(report: Report, section: DiffSection) -> Iterator[TestCase]:
    """Yield a test case for each fact that differs; findings are separate test cases."""
    for difference in section.differences:
        yield TestCase(describe_subject(difference), "diff", "passed", "", describe_values(difference))


def describe_side(side: ComparedSide) -> str:
    """Return a side in one line."""
    return f"{side.source} ({side.kind})" + (f" · {side.summary}" if side.summary else "")


def describe_outcome(section: DiffSection) -> str:
    """Return the result of the comparison in one line."""
    number = len(section.differences)
    differences = f"{number} facts differ" if number > 1 else "1 fact differs" if number else "nothing differs"
    if "lock" in (section.a.kind, section.b.kind):
        return f"{differences}; a lock holds no findings, so only facts are compared"
    count = len(section.one_sided)
    if not count and not section.differences:
        return "nothing differs"
    return f"{count or 'no'} finding{'s' * (count != 1)} on one side only · {differences}"


def describe_subject(difference: StackDifference) -> str:
    """Return what differs, with its kind if the name alone is ambiguous."""
    if difference.kind in PACKAGE_KINDS or difference.kind in difference.subject:
        return difference.subject
    return f"{difference.kind} {difference.subject}"


def describe_values(difference: StackDifference) -> str:
    """Return both values in one line, and the codes of findings that name the difference."""
    named = f" · named by {', '.join(difference.explains)}" if difference.explains else ""
    return f"A {difference.a} · B {difference.b}{named}"


VIEW = SectionView("Two environments", blocks, below, verdict, testcases)
