"""Applies a policy to a report: separates the findings that it allows, and adds those that it raises itself."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from attncheck.core.io.errors import BadUsage
from attncheck.core.lists import group_values
from attncheck.core.report import Allowance, Finding, Problem, Report, Verdict, by_severity, is_selected
from attncheck.doctor import engine
from attncheck.gate.policy import Policy

MAX_CASES = 5  # how many cases a finding names
EXPIRED_CODE = "ATN904"
IMPRECISE_CODE = "ATN606"


def check_policy_codes(policy: Policy) -> None:
    """Raise `BadUsage` for a code in the policy that belongs to no rule."""
    engine.check_codes((*policy.select, *policy.ignore))
    try:
        engine.check_codes(allowance.code for allowance in policy.allowances)
    except BadUsage as error:
        raise BadUsage(f"{policy.file}: ignore: {error}" if policy.file else str(error)) from None


def apply_policy(report: Report, policy: Policy, date: str) -> Report:
    """Return `report` with the policy's own findings added, and the findings allowed on `date` separated."""
    policy_findings = (
        *find_imprecise_backends(report.verdicts, policy.max_error),
        *find_expired_allowances(policy.allowances, date),
    )
    valid_allowances = [allowance for allowance in policy.allowances if allowance.until >= date]
    kept: list[Finding] = []
    allowed: list[Finding] = []
    for finding in (*report.findings, *policy_findings):
        if not is_selected(finding.code, policy.select, policy.ignore):
            continue
        (allowed if _is_allowed(finding, valid_allowances) else kept).append(finding)
    used_allowances = [
        allowance for allowance in valid_allowances if any(_is_allowed(finding, [allowance]) for finding in allowed)
    ]
    return replace(
        report,
        findings=by_severity(kept),
        allowed=by_severity((*report.allowed, *allowed)),
        allowances=tuple(dict.fromkeys((*report.allowances, *used_allowances))),
    )


def with_repair(report: Report) -> Report:
    """Return a report, to which the policy was applied, with the repair of doctor's and lint's findings."""
    fixes = [fix for finding in report.findings if finding.severity != "note" for fix in finding.fixes]
    has_steps = any(fix.installs or fix.kind in ("command", "env") for fix in fixes)
    if not has_steps or {"doctor", "lint"}.isdisjoint(report.sections):
        return report
    from attncheck.doctor.repair.plan import add_repair  # imported late: most reports have nothing to repair

    return add_repair(report)


def find_expired_allowances(allowances: Iterable[Allowance], date: str) -> Iterator[Finding]:
    """Yield a finding for each allowance whose last day is before `date`."""
    for allowance in allowances:
        if allowance.until < date:
            message = f"the ignore entry of {allowance.code} expired on {allowance.until}"
            evidence = (f"its reason was: {allowance.reason}",)
            yield engine.make_finding_by_code(EXPIRED_CODE, Problem(message, evidence, (), allowance.code))


def find_imprecise_backends(verdicts: Iterable[Verdict], max_error: float) -> Iterator[Finding]:
    """Yield a finding for each backend that passes a case with an error above `max_error` (0: no limit)."""
    verdicts_by_backend = group_values(
        (verdict.backend, verdict)
        for verdict in verdicts
        if max_error and verdict.answer == "pass" and verdict.budget_ratio > max_error
    )
    for backend, imprecise in verdicts_by_backend.items():
        imprecise.sort(key=lambda verdict: -verdict.budget_ratio)
        evidence = [
            f"{verdict.case}: {verdict.budget_ratio:.2g} of its budget; {verdict.reason}" for verdict in imprecise
        ]
        more = [f"… and {len(imprecise) - MAX_CASES} more"] if len(imprecise) > MAX_CASES else []
        worst = imprecise[0].budget_ratio
        message = f"{backend} has an error of {worst:.2g} of its budget; the policy's max-error is {max_error:g}"
        problem = Problem(message, (*evidence[:MAX_CASES], *more), (), backend)
        yield replace(engine.make_finding_by_code(IMPRECISE_CODE, problem), check="parity")


def _is_allowed(finding: Finding, allowances: Iterable[Allowance]) -> bool:
    """Return whether an allowance covers a finding; findings about expired allowances are never covered."""
    return finding.code != EXPIRED_CODE and any(finding.code.startswith(allowance.code) for allowance in allowances)
