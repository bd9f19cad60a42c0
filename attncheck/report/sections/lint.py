"""The launches that lint read: how each was read, its correction as a diff, and one command to paste."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from attncheck.core.facts import Known
from attncheck.core.io.outgoing import MASKED_LAUNCH
from attncheck.core.job import Job, LintedLaunch
from attncheck.core.launch import COMMAND
from attncheck.core.lists import list_applying
from attncheck.core.plan import Plan
from attncheck.core.results.lint import LABELS, MEASURED, LintSection
from attncheck.report.sections import NOT_CHECKED, Block, Code, Fold, Items, Paragraph, Report, SectionView


def blocks(report: Report, section: LintSection) -> Iterator[Block]:
    """Yield a row for each launch, marked by its most severe finding.

    Without one it is "ok", "open" if something decisive was not checked, and "-" if the launch was not read.
    """
    yield Items(tuple(launch_rows(report, section)), ("state", "launch", "settings"))


def below(report: Report, section: LintSection) -> Iterator[Block]:
    """Yield the corrections of launches: a diff and a command to paste; for folders, only their number."""
    if section.from_folders:
        if count := sum(bool(launch.diff) for launch in section.launches):
            yield Paragraph(
                f"{count} corrected: `attncheck lint FILE` prints the corrected launch, and JSON has all of them"
            )
            details = (Code(heading, text, "diff") for heading, text in list_corrections(section))
            yield Fold("Corrected launches", tuple(details))
        return
    files = [launch for launch in section.launches if launch.job.location.source != COMMAND]
    one_line = {launch.command for launch in files if adds_one_line(launch.diff)}
    for heading, text in list_corrections(section):
        if text not in one_line:
            yield Code(heading[0].upper() + heading[1:], text, "diff" if heading.startswith("corrected") else "sh")
    if any(MASKED_LAUNCH in launch.job.remarks for launch in section.launches):
        yield Paragraph(MASKED_LAUNCH)


def adds_one_line(diff: str) -> bool:
    """Return whether a diff adds one line, so that it is as quick to read as the whole command."""
    return sum(line.startswith("+") and not line.startswith("+++") for line in diff.splitlines()) == 1


def verdict(report: Report, section: LintSection) -> str:
    """Return a verdict if nothing was linted, or if nothing is an error and something decisive was not checked."""
    if not any(launch.job.settings for launch in section.launches):
        return "nothing was linted: no launch of a known trainer was read"
    unchecked = list(dict.fromkeys(item for launch in section.launches for item in launch.unchecked))
    severities = {finding.severity for finding in report.findings}
    commands = ["smoke, doctor --deep"] * any(item in MEASURED for item in unchecked)
    commands += ["lint --labels"] * (LABELS in unchecked)
    how = f" (see {', '.join(commands)})" if commands else ""
    clean = "no problem found; " * ("warning" not in severities)
    return f"{clean}{NOT_CHECKED}{', '.join(unchecked)}{how}" if unchecked and "error" not in severities else ""


def properties(report: Report, section: LintSection) -> Iterator[tuple[str, str]]:
    """Yield how each launch was read."""
    for number, launch in enumerate(section.launches, 1):
        job = launch.job
        yield f"launch.{number}", f"{job.location}: {job.framework} {job.version} {job.trainer}"


def launch_rows(report: Report, section: LintSection) -> Iterator[tuple[str, str, str]]:
    """Yield a mark, a location and a line for each launch that was read, then for each source without a launch."""
    severities = _collect_severities(report)
    for launch in section.launches:
        text = f"{describe_job(launch.job)}{_describe_unread(launch)}"
        yield _worst_mark(severities, launch), str(launch.job.location), text
    yield from (("-", name, "not linted: no known trainer was recognised") for name in section.not_linted)
    yield from (("-", "not read", text) for text in (*section.lost, *section.not_read))
    if section.without_launch:
        plural = "s" * (section.without_launch > 1)
        others = f"{section.without_launch} other file{plural} of the folders"
        yield "-", "others", f"{others}: no known trainer was recognised"


def list_corrections(section: LintSection) -> Iterator[tuple[str, str]]:
    """Yield a heading and a text for each corrected launch: its diff, and its command on one line."""
    for launch in section.launches:
        if launch.diff:
            yield f"corrected {launch.job.location.source}", launch.diff.rstrip("\n")
        if launch.command:
            yield _paste_heading(launch), launch.command


def _describe_unread(launch: LintedLaunch) -> str:
    """Return what was not read of a launch, as the end of its row; "" if all its settings were read."""
    if not launch.job.settings:
        return " · nothing read"
    is_unread = any(re.fullmatch(r"the configuration file .* could not be read", text) for text in launch.job.remarks)
    return " · its configuration file was not read" * is_unread


def _paste_heading(launch: LintedLaunch) -> str:
    names = ", ".join(launch.shell_variables)
    return "to paste" + f" (the shell must set {names}, which the script does not set)" * bool(names)


def _collect_severities(report: Report) -> dict[str, set[str]]:
    """Return the severities of lint's findings by the source that they are in, "" for those without a location."""
    severities: dict[str, set[str]] = defaultdict(set)
    for finding in report.findings:
        if finding.check not in ("", "lint"):  # in a gate: doctor's are about the environment
            continue
        for source in {location.source for location in finding.locations} or {""}:
            severities[source].add(finding.severity)
    return severities


def _worst_mark(severities_by_source: Mapping[str, set[str]], launch: LintedLaunch) -> str:
    job = launch.job
    places = (setting.location for setting in job.settings)
    problems = (problem.location for problem in job.problems)  # one may be in a file of DeepSpeed or accelerate
    sources = {"", *(place.source for place in (job.location, *places, *problems, *job.locations.values()))}
    severities = {severity for source in sources for severity in severities_by_source.get(source, ())}
    best = "open" if launch.unchecked else "ok"
    best = "-" if _describe_unread(launch) else best  # settings that were not read are not known to be right
    return next((severity for severity in ("error", "warning") if severity in severities), best)


def describe_job(job: Job) -> str:
    """Return how a launch was read, in one line."""
    model = [job.model] if job.model else []
    parts = [f"{job.framework} {job.version} {job.trainer}", *model, describe_attention(job.plan, job)]
    if isinstance(job.world_size, Known):
        parts.append(f"{job.world_size.value} process{'es' * (job.world_size.value != 1)}")
    if isinstance(job.gpus, Known) and job.gpus != job.world_size:
        parts.append(f"{job.gpus.value} GPU{'s' * (job.gpus.value != 1)}")
    if job.stated_by:
        parts.append(f"versions stated by {', '.join(job.stated_by)}")
    return " · ".join(parts)


def describe_attention(plan: Plan, job: Job) -> str:
    """Return the settings of a plan that decide its attention."""
    attention = plan.attn_implementation or "default attention"
    is_known = "packing" not in job.unknown
    # rows of a pretraining are full, so they are not padded, and documents are not separated
    is_padded = is_known and not plan.packed and job.trainer != "pretrain"
    parts = {
        "attention not known" if "attn_implementation" in job.unknown else attention: True,
        "precision not known" if "precision" in job.unknown else plan.precision: True,
        "packing not known": not is_known,
        f"packed ({plan.packing} expected)": is_known and plan.packed,
        f"padded {plan.padding_side}": is_padded,
        f"{job.scheme or 'sequence parallel'} over {plan.ring_size}": plan.ring_size > 1,
        "liger": plan.liger,
        "deterministic": plan.deterministic,
    }
    return ", ".join(list_applying(parts))


VIEW = SectionView("Launches", blocks, below, verdict, properties=properties)
