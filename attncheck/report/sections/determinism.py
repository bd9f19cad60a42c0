"""Determinism's measurements: how many different results repeated calls gave, and from which call."""

from collections.abc import Iterator

from attncheck.core.results.determinism import DeterminismSection
from attncheck.report.sections import (
    Bar,
    Block,
    Column,
    Fold,
    Paragraph,
    Repeats,
    Report,
    Row,
    SectionView,
    TestCase,
    Verdict,
    make_table,
    text_table,
)
from attncheck.report.sections.parity import format_heading, list_unmeasured, verdict_testcases

MODES = {"default": "", "deterministic": "deterministic", "warn_only": "warn_only=True"}
TENSORS = ("out", "dq", "dk", "dv")
COLUMNS = (
    *(Column(tensor, 1) for tensor in TENSORS),
    Column("calls", 3),
    Column("first", 2),
    Column("ms", 4),
    Column("memory", 5),
    Column("in a batch", 1, left=True),
)


def blocks(report: Report, section: DeterminismSection) -> Iterator[Block]:
    """Yield the table of repeated calls, and why other backends were not repeated."""
    yield Paragraph(format_heading(section.measured_on, section.backends, section.verdicts))
    shown = [repeats for repeats in section.repeats if repeats.outcome != "refused"]
    slowest = max((repeats.call_ms for repeats in shown), default=0.0)
    bars = [Bar(repeats.call_ms / slowest) if repeats.outcome == "ok" and slowest else None for repeats in shown]
    caption = "Different results among the calls, compared bit by bit: 1 means always identical"
    if any(difference.first_differing for repeats in shown for difference in repeats.differences):
        caption += "; first: the first call that differed"
    if any(repeats.batch for repeats in shown):
        caption += "; in a batch: whether other rows change the result"
    yield make_table(caption, "backend", COLUMNS, map(make_row, shown), {"ms": bars})
    refused = dict.fromkeys(
        (r.backend, MODES[r.mode] or "default", r.reason) for r in section.repeats if r not in shown
    )
    ran = {repeats.backend for repeats in shown}
    never = tuple(
        Verdict("determinism", name, "", "", "refused", reason) for name, _, reason in refused if name not in ran
    )
    yield from list_unmeasured(section.backends, (*section.verdicts, *never), section.measured_on.ring_size > 0)
    if refused:
        yield Fold("Refused", (text_table(f"{len(refused)} refused", ("backend", "mode", "why"), refused),))


def _format_name(repeats: Repeats) -> str:
    return " ".join(part for part in (repeats.backend, repeats.case.layout, MODES[repeats.mode]) if part)


def make_row(repeats: Repeats) -> Row:
    """Return the row of a case that was repeated."""
    if repeats.outcome != "ok":
        return Row(_format_name(repeats), note=(f"{repeats.outcome}: {repeats.reason}", "dim"))
    distinct = {difference.tensor: difference.distinct for difference in repeats.differences}
    cells = [(str(distinct.get(name, "-")), "green" if distinct.get(name) == 1 else "yellow") for name in TENSORS]
    first_differing = [difference.first_differing for difference in repeats.differences if difference.first_differing]
    memory = f"{repeats.memory_bytes / (1 << 20):.0f} MiB" if repeats.memory_bytes else "-"
    numbers = (str(repeats.repeats), str(min(first_differing, default="-")), f"{repeats.call_ms:.2f}", memory)
    varied = [difference.tensor for difference in repeats.batch if difference.distinct > 1]
    batch = "-" if not repeats.batch else f"changes {', '.join(varied)}" if varied else "invariant"
    cells += [(text, "") for text in numbers]
    return Row(_format_name(repeats), (*cells, (batch, "yellow" if varied else "dim")))


def verdict(report: Report, section: DeterminismSection) -> str:
    """Return how many backends are bitwise reproducible by default."""
    varied = {
        repeats.backend: any(difference.distinct > 1 for difference in repeats.differences)
        for repeats in section.repeats
        if repeats.outcome == "ok" and repeats.mode == "default"
    }
    if not varied:
        return ""
    names = [name for name, varies in varied.items() if varies]
    same = f"{len(varied) - len(names)} of {len(varied)} backends are bitwise reproducible"
    return same + (f"; {', '.join(names)} {'is' if len(names) == 1 else 'are'} not" if names else "")


def testcases(report: Report, section: DeterminismSection) -> Iterator[TestCase]:
    """Yield a test case for each verdict; its time is that of all repeats in all modes."""
    seconds: dict[tuple[str, str], float] = {}
    for repeats in section.repeats:
        key = (repeats.backend, repeats.case.name)
        seconds[key] = seconds.get(key, 0.0) + repeats.call_ms * repeats.repeats / 1000
    yield from verdict_testcases(report, section.verdicts, seconds)


VIEW = SectionView("Determinism", blocks, verdict=verdict, testcases=testcases)
