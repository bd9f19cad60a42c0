"""Which tokens a launch trains on: the first rows with ⟦learned⟧ tokens marked, and a table by role."""

import itertools
from collections.abc import Iterator, Sequence

from attncheck.core.results.labels import ROLE_TEXTS, LabelledLaunch, LabelsSection, Span
from attncheck.report.sections import Block, Bullets, Code, Fold, Heading, Paragraph, Report, SectionView, text_table

OPEN, CLOSE = "⟦", "⟧"


def blocks(report: Report, section: LabelsSection) -> Iterator[Block]:
    """Yield each launch's first row, its table by role, and more rows."""
    for launch in section.launches:
        yield Heading(describe_launch(launch))
        shown = [
            Code(f"Row {number} of {launch.total_rows}, learned tokens between {OPEN} {CLOSE}", format_row(spans))
            for number, spans in enumerate(launch.rows, 1)
        ]
        yield from shown[:1]
        target = f"unknown: {launch.reason}" if launch.reason else f"The launch should learn {launch.targets}."
        yield Paragraph(target)
        rows = [(ROLE_TEXTS[count.role], str(count.learned), str(count.tokens)) for count in launch.counts]
        if rows:
            yield text_table("Learned tokens by role", ("role", "learned", "of"), rows)
        if lines := (*launch.notes, *launch.remarks):
            yield Bullets(lines)
        if shown[1:]:
            yield Fold("More rows", tuple(shown[1:]))


def verdict(report: Report, section: LabelsSection) -> str:
    """Return which tokens the launches learn."""
    known = [launch for launch in section.launches if not launch.reason]
    wrong = sum(bool(launch.problems) for launch in known)
    if not known:
        return "unknown which tokens are learned"
    if wrong:
        who = "the launch learns" if len(known) == 1 else f"{wrong} of {len(known)} launches learn"
        return f"{who} other tokens than intended"
    who = "the launch learns" if len(known) == 1 else f"all {len(known)} launches learn"
    targets = " or ".join(sorted({launch.targets for launch in known}))
    return f"{who} {targets}{', with a synthetic tokenizer' * any(not launch.tokenizer for launch in known)}"


def describe_launch(launch: LabelledLaunch) -> str:
    """Return a launch in one line."""
    name = " ".join(filter(None, (launch.framework, launch.version, launch.trainer)))
    return f"{launch.location}: {name}" + (f" · tokenizer of {launch.tokenizer}" if launch.tokenizer else "")


def format_row(spans: Sequence[Span]) -> str:
    """Return a row's text with the learned parts in brackets; repeated padding is counted."""
    parts = []
    for learned, group in itertools.groupby(spans, key=lambda span: span.learned):
        text = "".join(
            f"…{span.tokens} × padding…" if span.role == "padding" and span.tokens > 1 else span.text for span in group
        )
        parts.append(f"{OPEN}{text}{CLOSE}" if learned else text)
    return "".join(parts)


VIEW = SectionView("Learned tokens", blocks=blocks, verdict=verdict, leads=True)
