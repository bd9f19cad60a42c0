"""Judges two snapshots by the usual rules, and lists the findings that only one of them has."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from attncheck.core.findings import Finding, is_selected
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.profile import Profile, needs_of_profile
from attncheck.stacks.diff.one_sided import JudgedSide, Key, judge_side, list_one_sided, make_key
from attncheck.stacks.diff.sides import make_snapshot_side

VERSION = re.compile(r"\d[\w.+!-]*")


@dataclass(frozen=True)
class Judging:
    """The rules to use: by the profile, and the codes of --select and --ignore."""

    profile: Profile = "auto"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The findings that only the new side has, those that only the old one has, and how many both have."""

    breaks: tuple[Finding, ...] = ()
    fixes: tuple[Finding, ...] = ()
    kept: int = 0
    not_judged: tuple[str, ...] = ()


def compare_snapshots(
    before: Snapshot, after: Snapshot, judging: Judging, known: Collection[Finding] = ()
) -> Comparison:
    """Return how the rules' findings on `after` differ from those on `before`, from data alone.

    `known` are the rules' findings on the installed packages with more facts than `before` has. An upgrade breaks none
    of them, and only findings that both have count as fixed.
    """
    needs = needs_of_profile(judging.profile, before) | needs_of_profile(judging.profile, after)
    old = judge_side(make_snapshot_side(before, "the installed environment"), needs)
    new = judge_side(make_snapshot_side(after, "after the upgrade"), needs)
    known_keys = {make_key(finding) for finding in known}
    breaks, fixes, not_judged = [], [], []
    for finding, reason in _list_new(new, old):
        if make_key(finding) in known_keys and make_key(finding) not in _list_keys(old):
            continue
        if reason:
            not_judged.append(f"{finding.code} after the upgrade ({finding.subject or finding.name}): {reason}")
        else:
            breaks.append(finding)
    for finding, reason in list_one_sided(old, new):
        if known and make_key(finding) not in known_keys:
            continue
        if reason:
            not_judged.append(f"whether it fixes {finding.code} ({finding.subject or finding.name}): {reason}")
        else:
            fixes.append(finding)
    breaks, fixes = _drop_replaced(breaks, fixes)
    new_findings = select_findings(breaks, judging)
    kept = len(select_findings(new.report.findings, judging)) - len(new_findings)
    return Comparison(new_findings, select_findings(fixes, judging), kept, tuple(not_judged))


def _drop_replaced(breaks: list[Finding], fixes: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return both lists without findings that disappear only because the same package has another problem."""

    def list_replaced(finding: Finding) -> list[Finding]:
        return [fixed for fixed in fixes if finding.severity != "note" and _is_same_subject(fixed, finding)]

    marked = [
        replace(
            finding,
            evidence=(
                *finding.evidence,
                *(f"replaces today's {fixed.code}: {fixed.message}" for fixed in list_replaced(finding)),
            ),
        )
        for finding in breaks
    ]
    replaced = [fixed for finding in breaks for fixed in list_replaced(finding)]
    return marked, [finding for finding in fixes if finding not in replaced]


def _is_same_subject(first: Finding, second: Finding) -> bool:
    return make_key(first)[1] == make_key(second)[1] and bool(make_key(first)[1])


def list_findings(snapshot: Snapshot, judging: Judging) -> tuple[Finding, ...]:
    """Return the rules' findings on a snapshot."""
    side = judge_side(
        make_snapshot_side(snapshot, "the installed environment"), needs_of_profile(judging.profile, snapshot)
    )
    return side.report.findings


def _list_new(new: JudgedSide, old: JudgedSide) -> Iterator[tuple[Finding, str]]:
    """Yield the findings that only the new side has, with the reason if the old one was not judged.

    For a package on both sides, additional problems are yielded too.
    """
    yield from list_one_sided(new, old)
    keys, messages = _list_keys(old), {_make_fine_key(finding) for finding in old.report.findings}
    for finding in new.report.findings:
        if make_key(finding) in keys and _make_fine_key(finding) not in messages:
            yield finding, ""


def _list_keys(side: JudgedSide) -> set[Key]:
    return {make_key(finding) for finding in side.report.findings}


def _make_fine_key(finding: Finding) -> tuple[str, str]:
    """Return a finding's code and message without versions, so that two packages give two findings."""
    return finding.code, VERSION.sub("", finding.message)


def select_findings(findings: Iterable[Finding], judging: Judging) -> tuple[Finding, ...]:
    """Return the findings that --select and --ignore leave."""
    return tuple(finding for finding in findings if is_selected(finding.code, judging.select, judging.ignore))
