"""What a policy makes of a report: what it lets pass and until when, and what it asks beyond the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from attncheck.core.errors import BadUsage
from attncheck.core.findings import Allowance, Finding, Problem, gravest_first, is_selected
from attncheck.core.report import Report
from attncheck.core.results.verdicts import Verdict
from attncheck.doctor import engine
from attncheck.gate.policy import Config

SHOWN = 5  # cases named in a finding
EXPIRED = "ATN904"
IMPRECISE = "ATN606"


def check(policy: Config) -> None:
    """Raise `BadUsage` for a code in the policy that no rule has."""
    engine.check_codes((*policy.select, *policy.ignore))
    try:
        engine.check_codes(allowance.code for allowance in policy.allowances)
    except BadUsage as error:
        raise BadUsage(f"{policy.file}: ignore: {error}" if policy.file else str(error)) from None


def applied(report: Report, policy: Config, date: str) -> Report:
    """Return `report` with what the policy lets pass on `date` set apart, and with what the policy asks for itself."""
    own = (*imprecise(report.verdicts, policy.max_error), *expired(policy.allowances, date))
    live = [allowance for allowance in policy.allowances if allowance.until >= date]
    kept: list[Finding] = []
    passing: list[Finding] = []
    for finding in (*report.findings, *own):
        if not is_selected(finding.code, policy.select, policy.ignore):
            continue
        (passing if _allowance(finding, live) else kept).append(finding)
    used = [allowance for allowance in live if any(_allowance(finding, [allowance]) for finding in passing)]
    return replace(
        report,
        findings=gravest_first(kept),
        allowed=gravest_first((*report.allowed, *passing)),
        allowances=tuple(dict.fromkeys((*report.allowances, *used))),
    )


def expired(allowances: Iterable[Allowance], date: str) -> Iterator[Finding]:
    """Yield a finding for each ignore whose last day is before `date`."""
    for allowance in allowances:
        if allowance.until < date:
            message = f"the ignore of {allowance.code} ended on {allowance.until}"
            evidence = (f"its reason was: {allowance.reason}",)
            yield engine.make_finding_by_code(EXPIRED, Problem(message, evidence, (), allowance.code))


def imprecise(verdicts: Iterable[Verdict], most: float) -> Iterator[Finding]:
    """Yield a finding for each backend that passes somewhere with an error beyond `most` of its budget (0: any)."""
    beyond: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if most and verdict.answer == "pass" and verdict.budget_ratio > most:
            beyond.setdefault(verdict.backend, []).append(verdict)
    for backend, found in beyond.items():
        found.sort(key=lambda verdict: -verdict.budget_ratio)
        evidence = [f"{verdict.case}: {verdict.budget_ratio:.2g} of its budget; {verdict.reason}" for verdict in found]
        more = [f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        message = f"{backend} errs by {found[0].budget_ratio:.2g} of its budget, the policy's max-error is {most:g}"
        yield engine.make_finding_by_code(IMPRECISE, Problem(message, (*evidence[:SHOWN], *more), (), backend))


def _allowance(finding: Finding, live: Iterable[Allowance]) -> bool:
    """Say whether an ignore covers a finding; that an ignore has ended is covered by none."""
    return finding.code != EXPIRED and any(finding.code.startswith(allowance.code) for allowance in live)
