"""Tries a repair without changing the environment: uv resolves it, and its packages are imported from a folder."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace

from attncheck.core.io.errors import Unanswered
from attncheck.core.report import Fix, Report
from attncheck.core.results.repair import RepairSection
from attncheck.core.snapshot import Known, Snapshot
from attncheck.doctor.repair.choices import parse_requirement
from attncheck.doctor.repair.overlays import REPORTED_BY_FOLDER, collect_beside, complete_overlay
from attncheck.doctor.repair.plan import make_judge
from attncheck.doctor.repair.unmet_requirements import NEVER_INSTALLED
from attncheck.workers.overlay import parse_fix_requirements, parse_uv_changes, resolve_with_uv

Progress = Callable[[str], None]


def list_trial_requirements(section: RepairSection, snapshot: Snapshot | None = None) -> tuple[str, ...]:
    """Return the parts of a repair that a temporary folder can hold: wheels of pinned releases, never torch or a build.

    With a `snapshot`, packages that are not installed there are included in any release that the index has.
    """
    requirements = [
        text
        for step in section.steps
        if "--index-url" not in step.command
        for text in step.installs
        if ("://" in text or not parse_requirement(text)[0].startswith(NEVER_INSTALLED))
        and (
            parse_fix_requirements(Fix("", "command", shlex.join(["pip", "install", text])))
            or (snapshot is not None and not snapshot.lists(parse_requirement(text)[0] or "torch"))
        )
    ]
    return tuple(dict.fromkeys(requirements))


def resolve_repair(report: Report, python: str | None, report_progress: Progress) -> Report:
    """Return the report with the result of uv's dry run for everything that the repair installs."""
    section = report.section(RepairSection)
    torch = report.snapshot.version("torch")
    installs = [text for step in section.steps for text in step.installs] if section is not None else []
    wanted = [text for text in installs if not (parse_requirement(text)[0] or "torch").startswith(NEVER_INSTALLED)]
    if section is None or not wanted:
        return report
    moves_torch = any(parse_requirement(text)[0] == "torch" for text in installs)
    held = [f"torch=={torch.value}"] if isinstance(torch, Known) and not moves_torch else []
    try:
        answer = resolve_with_uv(python or sys.executable, [*wanted, *held], report_progress)
    except Unanswered as error:
        answer = f"error: {error}"
    return report.with_section(replace(section, resolution=describe_resolution(answer, bool(held))))


def describe_resolution(answer: str, torch_held: bool) -> str:
    """Return one line about what uv would change or why it finds no solution; "" without an answer."""
    changes = parse_uv_changes(answer)
    if changes:
        listed = ", ".join(f"{sign}{name}=={version}" for sign, name, version in changes)
        return f"uv resolves it: {listed}" + ("; torch stays" if torch_held else "")
    if "Would make no changes" in answer:
        return "uv: nothing would change"
    lines = [line.strip(" ×╰─▶│├") for line in answer.splitlines() if line.strip(" ×╰─▶│├")]
    return f"uv: {' '.join(lines)[:300]}" if lines else ""


def try_repair(report: Report, python: str | None, seconds: float, report_progress: Progress) -> Report:
    """Return the report with the result of importing the repair's packages from a temporary folder."""
    section, judge = report.section(RepairSection), make_judge(report)
    if section is None or judge is None:
        return report
    packages = list_trial_requirements(section, report.snapshot)
    if not packages:
        text = "none of these packages can be tried in a temporary folder (torch and source builds never can)"
        return report.with_section(replace(section, trial=text))
    interpreter = python or sys.executable
    try:
        before = replace(report.snapshot, clashes=())
        with complete_overlay(interpreter, packages, before, report_progress) as folder:
            snapshot = collect_beside(
                interpreter, str(folder), ("static", "import"), None, before, seconds, report_progress, False
            )
    except Unanswered as error:
        return report.with_section(replace(section, trial=str(error)))
    known = {finding.code for finding in judge(report.snapshot)}
    after = {finding.code for finding in judge(snapshot) if finding.severity != "note"} - {*REPORTED_BY_FOLDER}
    gone = [code for code in section.targets if code not in after]
    left = [code for code in section.targets if code in after] + sorted(after - known - {*section.targets})
    text = f"{' '.join(packages)} imported; gone: {', '.join(gone) or 'nothing'}"
    text += f"; still found: {', '.join(left)}" if left else ""
    return report.with_section(replace(section, trial=text))
