"""Plans the repair of a report, runs the rules on the environment after it, and makes all fixes agree with it.

Just as `attncheck.lint` judges a launch again after correcting it, the rules run again on the snapshot with all changes
applied. New findings are fixed in a further round. A finding counts as proven fixed only if the rules find it in the
snapshot without imports, and no longer after the changes.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from attncheck.core.job import Job
from attncheck.core.report import Finding, Fix, Report, by_severity
from attncheck.core.results.cluster import ClusterSection
from attncheck.core.results.doctor import DoctorSection
from attncheck.core.results.lint import LintSection
from attncheck.core.results.repair import PROOF, RepairSection, RepairStep
from attncheck.core.snapshot import Known, Snapshot
from attncheck.doctor import engine
from attncheck.doctor.memory import RuleMemory
from attncheck.doctor.needs import Need
from attncheck.doctor.profile import needs_of_job
from attncheck.doctor.repair.changes import apply_steps, changed_names, forget_imports
from attncheck.doctor.repair.choices import Way, choose_ways, find_conflict, list_ways, removed_names
from attncheck.doctor.repair.commands import agrees, join_requirements, rewrite_fix, write_steps

MAX_ROUNDS = 3  # a change may cause a further finding, whose fix may cause another
Judge = Callable[[Snapshot], tuple[Finding, ...]]


def add_repair(report: Report) -> Report:
    """Return the report with its repair, and with findings whose fixes do not contradict it.

    The report is returned unchanged if it already has a repair, no command fixes anything, no rule ran, or its nodes
    differ.
    """
    cluster = report.section(ClusterSection)
    if report.section(RepairSection) is not None or (cluster is not None and not cluster.is_uniform):
        return report
    findings = [finding for finding in report.findings if finding.severity != "note"]
    if not any(not way.is_by_hand for finding in findings for way in list_ways(finding)):
        return report
    judge = make_judge(report)
    if judge is None:
        return report
    repair, joined, ways = plan_repair(report.snapshot, findings, judge)
    if not repair.steps:
        return report
    removed = {name for way in ways for fix in way.fixes for name in removed_names(fix)} - set(joined)
    agreed = tuple(_agree(finding, joined, removed, ways, repair) for finding in report.findings)
    return replace(report.with_section(repair), findings=agreed)


def make_judge(report: Report) -> Judge | None:
    """Return the function that runs a report's rules again; None for a report that holds only measurements."""
    runs: list[Callable[[Snapshot, RuleMemory[engine.RuleAnswer]], Report]] = []
    doctor, lint = report.section(DoctorSection), report.section(LintSection)
    if doctor is not None and doctor.needs is not None and report.command != "lint":
        needs: frozenset[Need] = frozenset(doctor.needs)  # type: ignore[arg-type]
        runs.append(lambda snapshot, memory: engine.run_rules(snapshot, needs, memory=memory))
    jobs = (
        {_describe_packages(launch.job): launch.job for launch in reversed(lint.launches)} if lint is not None else {}
    )
    for job in reversed(jobs.values()):
        runs.append(
            lambda snapshot, memory, job=job: engine.run_rules(  # type: ignore[misc]
                replace(snapshot, job=Known(job)), needs_of_job(job), memory=memory
            )
        )
    if not runs:
        return None

    memory: RuleMemory[engine.RuleAnswer] = RuleMemory()  # for many launches, most rules read the same facts

    def judge(snapshot: Snapshot) -> tuple[Finding, ...]:
        return by_severity(finding for run in runs for finding in run(snapshot, memory).findings)

    return judge


def _describe_packages(job: Job) -> tuple[object, ...]:
    """Return the facts that decide which packages a launch needs; of launches with equal facts only one is judged."""
    plan = job.plan
    what = (plan.attn_implementation, plan.liger, plan.cross_entropy, job.scheme, job.hooked, job.reinforcement)
    return job.framework, job.version, job.requires, job.imports, *what


def plan_repair(
    snapshot: Snapshot, findings: Iterable[Finding], judge: Judge
) -> tuple[RepairSection, dict[str, str], list[Way]]:
    """Return the repair of these findings, the requirement that it uses for each package, and the chosen ways."""
    targets = list(findings)
    ways, conflicts = choose_ways(snapshot, targets)
    known_codes = {finding.code for finding in (*judge(snapshot), *targets)}
    steps = write_steps(snapshot, ways)
    for _ in range(MAX_ROUNDS):
        further = _further_ways(apply_steps(snapshot, steps), steps, judge, known_codes, ways)
        if not further:
            break
        ways += further
        steps = write_steps(snapshot, ways)
    joined = join_requirements(snapshot, ways)
    codes = {way.finding.code for way in ways if not way.is_by_hand}
    targeted = tuple(dict.fromkeys(finding.code for finding in targets if finding.code in codes))
    by_hand = tuple(dict.fromkeys(way.finding.code for way in ways if way.is_by_hand))
    proof = _prove(snapshot, steps, judge, known_codes, targeted)
    return RepairSection(steps, targeted, by_hand, tuple(dict.fromkeys(conflicts)), *proof), joined, ways


def _further_ways(
    changed: Snapshot, steps: tuple[RepairStep, ...], judge: Judge, known_codes: set[str], ways: list[Way]
) -> list[Way]:
    """Return ways to fix findings that appear only after the steps, if they are compatible with the ways so far."""
    if not steps:
        return []
    taken = {fix.text for way in ways for fix in way.fixes}
    further: list[Way] = []
    for finding in judge(changed):
        if finding.code in known_codes or finding.severity == "note":
            continue
        for way in list_ways(finding):
            is_new = not way.is_by_hand and not taken.issuperset(fix.text for fix in way.fixes)
            if is_new and find_conflict(changed, (*ways, *further, way)) is None:
                further.append(way)
                break
    return further


def _prove(
    snapshot: Snapshot, steps: tuple[RepairStep, ...], judge: Judge, known_codes: set[str], targeted: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the codes that are proven fixed, those that rules cannot judge, and those that are still found."""
    before = {finding.code for finding in judge(forget_imports(snapshot, changed_names(steps)))}
    after = {finding.code: finding for finding in judge(apply_steps(snapshot, steps))}
    moves_torch = "torch" in changed_names(steps)
    proven = tuple(code for code in targeted if code in before and code not in after)
    unproven = tuple(code for code in targeted if code not in before and code not in after)
    appears = [
        code for code, finding in after.items() if code not in known_codes | before and finding.severity != "note"
    ]
    remaining = tuple(dict.fromkeys((*(code for code in targeted if code in after), *appears)))
    if moves_torch:  # packages compiled against the old torch are then unknown
        return (), tuple(code for code in targeted if code not in after), remaining
    return proven, unproven, remaining


def _agree(
    finding: Finding, joined: dict[str, str], removed: set[str], ways: list[Way], repair: RepairSection
) -> Finding:
    """Return a finding with commands that use the repair's versions, proven if it is; other commands are removed."""
    chosen = {fix for way in ways if way.finding == finding for fix in way.fixes}
    proven = f"{PROOF} it" if finding.code in repair.proven else ""
    fixes: list[Fix] = []
    for fix in finding.fixes:
        if not fix.installs and not removed_names(fix):
            fixes.append(fix)
        elif fix in chosen or agrees(fix, joined, removed):
            rewritten = rewrite_fix(fix, joined, repair.steps)
            fixes.append(replace(rewritten, proven=proven) if fix in chosen and proven else rewritten)
    if not fixes and finding.fixes:
        reason = next((line for line in repair.conflicts if line.startswith(finding.code)), "")
        wanted = ", ".join(finding.fixes[0].allows or finding.fixes[0].installs) or finding.fixes[0].title
        is_fixed = finding.code in (*repair.proven, *repair.unproven)
        title = (
            "fixed by the repair of the other findings"
            if is_fixed
            else "incompatible with the repair of the other findings"
        )
        fixes = [Fix(title, "manual", reason or (f"instead of {wanted}" if is_fixed else wanted))]
    return finding if tuple(fixes) == finding.fixes else replace(finding, fixes=tuple(fixes))
