"""Compares two sides, and makes the report."""

from attncheck.core.report import Report
from attncheck.core.results.diff import DiffSection
from attncheck.stacks.diff.one_sided import compare_findings
from attncheck.stacks.diff.rank import rank_differences
from attncheck.stacks.diff.sides import StackSide, any_snapshot


def compare_sides(a: StackSide, b: StackSide) -> Report:
    """Return the report on two sides: findings that only one of them has, then the different facts."""
    one_sided = compare_findings(a, b)
    lost = [
        f"{name}: {reason}"
        for name, side in (("A", a), ("B", b))
        for reason in (side.snapshot.lost if side.snapshot is not None else ())
    ]
    section = DiffSection(
        a.name,
        b.name,
        one_sided.rows,
        rank_differences(a, b, one_sided.findings),
        one_sided.not_judged,
        tuple(lost),
    )
    return Report("diff", any_snapshot(a, b), one_sided.findings, sections={"diff": section})
