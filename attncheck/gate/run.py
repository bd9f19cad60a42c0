"""Runs the checks of a policy in order and within a budget, and merges their reports into one.

A check is skipped if earlier findings make its answer meaningless, or if no time is left. Reports that are complete by
then are kept, also after Ctrl-C.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from attncheck.core.io.errors import CLEAN, FOUND, UNANSWERED, BadUsage, Interrupted, Unanswered
from attncheck.core.launch import COMMAND, Source
from attncheck.core.plan import Plan
from attncheck.core.report import Finding, InterruptedRun, Report, merge_reports
from attncheck.core.results.gate import CHECKS, Check, GateSection, Outcome, Stage
from attncheck.core.snapshot import NOT_ASKED, Absent, Known, Snapshot
from attncheck.gate import apply, baseline, checks
from attncheck.gate.dates import today
from attncheck.gate.inputs import Inputs
from attncheck.gate.levels import get_level
from attncheck.gate.policy import Policy
from attncheck.workers import deadline
from attncheck.workers.execution import ExecutionTarget

LAUNCH_CHECKS: tuple[Check, ...] = ("lint", "rehearsal")  # these need a launch
STATIC_CHECKS: tuple[Check, ...] = ("doctor", "lint")  # these judge; the others measure
INTERRUPTED = "interrupted"
BUDGET_SPENT = "the time budget was used up"
NOTHING_LINTED = "no known trainer was recognised"
CUT_BY_BUDGET = "the time budget ran out during the check"


def run(
    policy: Policy,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
    sources: Sequence[Source] | None = None,
    inputs: Inputs | None = None,
    date: str = "",
) -> Report:
    """Return the report of the checks of `policy`. `sources` are linted, by default the launch files of `policy`.

    `inputs` remembers the files that were read. Raises `BadUsage` for a policy that cannot be run.
    """
    sources = read_policy_sources(policy) if sources is None else sources
    check_policy(policy, bool(sources))
    return _GateRun(policy, target, report_progress, sources, inputs or Inputs(sources), date or today()).run()


def read_policy_sources(policy: Policy) -> tuple[Source, ...]:
    """Return the launch files that the policy names. Raises `BadUsage` for one that cannot be read."""
    if not policy.launch:
        return ()
    from attncheck.lint import launches

    if "-" in policy.launch:  # standard input may belong to the command, so we do not read it
        raise BadUsage("launch: '-' is standard input; name a file")
    return tuple(launches.read_source(path, pipes=False) for path in dict.fromkeys(policy.launch))


def check_policy(policy: Policy, has_sources: bool) -> None:
    """Raise `BadUsage` for a policy that a gate cannot follow: unknown codes, or lint without a launch."""
    apply.check_policy_codes(policy)
    if "lint" in policy.checks and not has_sources:
        raise BadUsage(
            f"{policy.file + ': ' if policy.file else ''}lint is requested, and `launch` names no file to lint"
        )
    if policy.min_efficiency and not policy.ring_size:
        raise BadUsage("min-efficiency applies to a ring: set ring-size too")
    if policy.target:
        from attncheck.doctor.target import parse_target

        parse_target(policy.target)
    if policy.baseline:
        baseline.load_baseline(policy.baseline)


def select_checks(policy: Policy, sources: Sequence[Source]) -> tuple[Check, ...]:
    """Return the checks to run: the policy's or its level's, and lint for a command; lint only if there are sources.

    A target is another machine: nothing is measured for it unless the policy requests that.
    """
    selected = {*(policy.checks or (STATIC_CHECKS if policy.target else get_level(policy).checks))}
    if any(source.name == COMMAND for source in sources):
        selected.add("lint")
    return tuple(check for check in CHECKS if check in selected and (check not in LAUNCH_CHECKS or sources))


def exit_code(report: Report, policy: Policy) -> int:
    """Return 130 after an interrupt, 1 if a finding fails the policy, 3 if an answer is missing, and 0 otherwise.

    A launch that lint could not read counts as an answer if the policy does not name lint.
    """
    if any(question.reason == INTERRUPTED for question in report.unanswered):
        return Interrupted.exit_code
    if report.fails(policy.fail_on):
        return FOUND
    if any(question.name in policy.checks or question.name != "lint" for question in report.unanswered):
        return UNANSWERED
    return CLEAN


def find_blocking_reason(
    check: Check, policy: Policy, snapshot: Snapshot, findings: tuple[Finding, ...], plan: Plan
) -> str:
    """Return which of these findings makes the result of `check` meaningless; "" if it is meaningful.

    doctor and lint judge, and are never blocked. Nothing can be measured if torch is missing or cannot be imported, or
    if the policy requires a GPU and none is visible. smoke trains with the plan's implementation: if that package or
    transformers cannot be imported, smoke would only repeat the finding. No other finding blocks a check, and none of
    lint's does, because parity examines the machine.
    """
    if check in STATIC_CHECKS:
        return ""
    if isinstance(snapshot.torch, Absent) or _import_failed(snapshot, "torch"):
        return _describe_first(findings, TORCH_CODES, "torch cannot be imported")
    if policy.device == "cuda" and _lacks_visible_gpu(snapshot):
        return _describe_first(findings, GPU_CODES, "the policy requires a GPU, but none is visible here")
    if check in ("smoke", "rehearsal", "agree"):
        if _import_failed(snapshot, "transformers"):
            return _describe_first(findings, ("ATN154", "ATN155"), "transformers cannot be imported")
        if plan.attn_implementation == "flash_attention_2" and _import_failed(snapshot, "flash_attn"):
            return _describe_first(
                findings, FLASH_ATTN_CODES, "flash-attn cannot be imported, and the plan trains with it"
            )
    return ""


TORCH_CODES = ("ATN100", "ATN101", "ATN102", "ATN103")
GPU_CODES = ("ATN205", "ATN213", "ATN203", "ATN202", "ATN204")
FLASH_ATTN_CODES = ("ATN104", "ATN105", "ATN106", "ATN107", "ATN108")


def _describe_first(findings: tuple[Finding, ...], codes: tuple[str, ...], default: str) -> str:
    match = next((finding for code in codes for finding in findings if finding.code == code), None)
    return f"{match.code}: {match.message}" if match is not None else default


def _import_failed(snapshot: Snapshot, module: str) -> bool:
    """Return whether importing a module was tried and failed."""
    outcome = snapshot.imported(module)
    return isinstance(outcome, Known) and outcome.value.outcome in ("raised", "died", "hung")


def _lacks_visible_gpu(snapshot: Snapshot) -> bool:
    if isinstance(snapshot.devices, Absent) and snapshot.devices.reason == NOT_ASKED:
        return False
    return not isinstance(snapshot.devices, Known) or not snapshot.visible_devices()


class _GateRun:
    """One run of a gate: the reports and stages so far, and the remaining checks."""

    def __init__(
        self,
        policy: Policy,
        target: ExecutionTarget,
        report_progress: Callable[[str], None],
        sources: Sequence[Source],
        inputs: Inputs,
        date: str,
    ) -> None:
        self.policy, self.date = policy, date
        self.started_at = time.monotonic()
        self.runner = checks.CheckRunner(policy, target, report_progress, sources, inputs)
        self.checks = select_checks(policy, sources)
        self.reports: list[Report] = []
        self.stages: list[Stage] = []

    def run(self) -> Report:
        stop_reason = ""
        for check in self.checks:
            seconds_left = self._seconds_left()
            reason = stop_reason or (self._describe_spent_budget() if seconds_left <= 0 else "")
            reason = reason or self._find_blocking_reason(check)
            if reason:
                self.stages.append(Stage(check, "left out", 0.0, reason))
            else:
                stop_reason = self._run_stage(check, seconds_left)
        return self._make_report()

    def _seconds_left(self) -> float:
        return self.policy.budget - (time.monotonic() - self.started_at) if self.policy.budget else float("inf")

    def _describe_spent_budget(self) -> str:
        """Return that no time is left, and which check used most of it."""
        longest = max(self.stages, key=lambda stage: stage.seconds, default=None)
        if longest is None:
            return BUDGET_SPENT
        return f"{BUDGET_SPENT}: {longest.check} took {longest.seconds:.0f} of {self.policy.budget:g} s"

    def _find_blocking_reason(self, check: Check) -> str:
        findings = tuple(finding for report in self.reports for finding in report.findings)
        if not self.runner.has_full_snapshot:
            return ""
        return find_blocking_reason(check, self.policy, self.runner.snapshot(), findings, self.runner.plan())

    def _run_stage(self, check: Check, seconds_left: float) -> str:
        """Run one check; return why no further check can run, "" if one can."""
        started_at = time.monotonic()
        collected: list[Report] = []
        reason, stop_reason = "", ""
        outcome: Outcome | None = None
        try:
            with deadline.interrupt_after(seconds_left + (deadline.GRACE_SECONDS if check == "parity" else 0.0)):
                for report in self.runner.run(check, seconds_left):
                    collected.append(report)
        except deadline.OutOfTime as error:
            collected += error.reports
            reason = CUT_BY_BUDGET
        except KeyboardInterrupt as interrupt:
            collected += [interrupt.report] if isinstance(interrupt, InterruptedRun) else []
            reason = stop_reason = INTERRUPTED
        except checks.NothingLinted:
            outcome = "not linted"
        except Unanswered as error:
            reason = str(error)
        except BadUsage as error:
            if not self.reports and not collected:
                raise
            reason = str(error)
        collected = [
            replace(report, findings=tuple(replace(finding, check=check) for finding in report.findings))
            for report in collected
        ]
        self.reports += collected
        not_reached = sum(report.device.not_reached for report in collected)
        reason = reason or (
            f"{not_reached} case{'s' * (not_reached != 1)} not reached within the budget" if not_reached else ""
        )
        reason = reason or next((question.reason for report in collected for question in report.unanswered), "")
        if outcome is None:
            outcome = "unanswered" if reason else "found" if self._has_findings(collected) else "clean"
        if outcome == "not linted":
            reason = NOTHING_LINTED
        answer_counts: Counter[str] = Counter(verdict.answer for report in collected for verdict in report.verdicts)
        self.stages.append(Stage(check, outcome, round(time.monotonic() - started_at, 3), reason, answer_counts))
        return stop_reason

    def _has_findings(self, collected: list[Report]) -> bool:
        """Return whether a finding exists that neither the policy nor the baseline allows."""
        valid_allowances = tuple(allowance for allowance in self.policy.allowances if allowance.until >= self.date)
        return any(
            self._apply_policy(report, replace(self.policy, allowances=valid_allowances)).findings
            for report in collected
        )

    def _apply_policy(self, report: Report, policy: Policy) -> Report:
        judged = apply.apply_policy(report, policy, self.date)
        return baseline.apply_baseline(judged, policy.baseline) if policy.baseline else judged

    def _make_section(self) -> GateSection:
        level = self.policy.level
        return GateSection(tuple(self.stages), level, self.policy.budget if level else 0.0)

    def _make_report(self) -> Report:
        gate_report = Report("gate", self.runner.report_snapshot(), sections={"gate": self._make_section()})
        merged = merge_reports("gate", gate_report.snapshot, (gate_report, *self.reports))
        return apply.with_repair(self._apply_policy(merged, self.policy))
