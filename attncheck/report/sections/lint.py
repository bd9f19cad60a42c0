"""The launches that lint read: how each was read, its correction as a diff, and one command to paste."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from attncheck.core.facts import Known
from attncheck.core.io.outgoing import MASKED_LAUNCH
from attncheck.core.job import Job, LintedLaunch
from attncheck.core.plan import Plan
from attncheck.core.report import Report
from attncheck.core.results.lint import LintSection
from attncheck.report.lines import STYLES, Line
from attncheck.report.markdown_text import escape_markdown, format_code_block, format_table
from attncheck.report.sections import SectionView

DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def rows(report: Report, section: LintSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield a line for each launch, marked "ok", "warning" or "error" by the gravest of its findings, "-" unread."""
    for mark, text in launch_rows(report, section):
        yield Line(((f"{mark:<8}", STYLES[mark]),), text)


def below(report: Report, section: LintSection) -> Iterator[Line]:
    """Yield the corrections of launches: a diff, and a command to paste; of folders only how many there are."""
    if section.from_folders:
        count = sum(bool(launch.diff) for launch in section.launches)
        if count:
            yield Line()
            yield Line(text=f"{count} corrected: attncheck lint FILE prints the corrected launch, JSON holds all")
        return
    for heading, text in list_corrections(section):
        yield Line()
        yield Line(((f"{heading}:", "bold"),))
        yield from (Line(((line, DIFF_STYLES.get(line[:1], "")),), no_wrap=True) for line in text.splitlines())
    if _is_masked(section):
        yield Line()
        yield Line(text=MASKED_LAUNCH)


def markdown(report: Report, section: LintSection) -> Iterator[str]:
    """Yield the launches as a table, then their corrections."""
    yield from format_table(("", "launch"), list(launch_rows(report, section)))
    yield ""
    for heading, text in list_corrections(section):
        yield from (f"## {escape_markdown(heading[0].upper() + heading[1:])}", "")
        yield from (*format_code_block(text, "diff" if "corrected" in heading else ""), "")
    if _is_masked(section):
        yield from (MASKED_LAUNCH, "")


def properties(report: Report, section: LintSection) -> Iterator[tuple[str, str]]:
    """Yield how each launch was read."""
    for number, launch in enumerate(section.launches, 1):
        job = launch.job
        yield f"launch.{number}", f"{job.location}: {job.framework} {job.version} {job.trainer}"


def launch_rows(report: Report, section: LintSection) -> Iterator[tuple[str, str]]:
    """Yield a mark and a line for each launch that was read, then for each source that holds none."""
    severities = _collect_severities(report)
    for launch in section.launches:
        unread = "" if launch.job.settings else " · nothing read"
        yield _worst_mark(severities, launch), f"{launch.job.location}  {describe_job(launch.job)}{unread}"
    yield from (("-", f"{name}  not linted: no known trainer is started") for name in section.not_linted)
    yield from (("-", f"not read: {text}") for text in section.not_read)
    if section.without_launch:
        plural = "s" * (section.without_launch > 1)
        yield "-", f"{section.without_launch} other file{plural} of the folders: no known trainer is started"


def list_corrections(section: LintSection) -> Iterator[tuple[str, str]]:
    """Yield a heading and a text for each launch that is corrected: its diff, and its command on one line."""
    for launch in section.launches:
        if launch.diff:
            yield f"corrected {launch.job.location.source}", launch.diff.rstrip("\n")
        if launch.command:
            yield _paste_heading(launch), launch.command


def _paste_heading(launch: LintedLaunch) -> str:
    names = ", ".join(launch.shell_variables)
    return "to paste" + f" (the shell must hold {names}, which the script leaves to it)" * bool(names)


def _is_masked(section: LintSection) -> bool:
    return any(MASKED_LAUNCH in launch.job.remarks for launch in section.launches)


def _collect_severities(report: Report) -> dict[str, set[str]]:
    """Return the severities of the findings by the source that they point into, "" for those without a place."""
    severities: dict[str, set[str]] = defaultdict(set)
    for finding in report.findings:
        for source in {location.source for location in finding.locations} or {""}:
            severities[source].add(finding.severity)
    return severities


def _worst_mark(severities_by_source: Mapping[str, set[str]], launch: LintedLaunch) -> str:
    severities = severities_by_source.get(launch.job.location.source, set()) | severities_by_source.get("", set())
    best = "ok" if launch.job.settings else "-"  # of what was not read nothing is known to be right
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
    parts = [plan.attn_implementation or "default attention", plan.precision]
    if plan.packed:
        parts.append(f"packed by {plan.packing}")
    elif job.trainer != "pretrain":  # whose rows are full: neither padded, nor are documents kept apart
        parts.append(f"padded {plan.padding_side}")
    if plan.ring_size > 1:
        parts.append(f"{job.scheme or 'sequence parallel'} over {plan.ring_size}")
    if plan.liger:
        parts.append("liger")
    if plan.deterministic:
        parts.append("deterministic")
    return ", ".join(parts)


VIEW = SectionView(rows=rows, below=below, markdown=markdown, properties=properties)
