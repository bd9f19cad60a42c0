"""What lint says of each launch: how it was read, the corrected launch as a diff, and one command to paste."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.job import Job, LintedLaunch
from attncheck.core.plan import Plan
from attncheck.core.report import Report


def rows(report: Report) -> Iterator[tuple[str, str]]:
    """Yield a mark and a line for each launch that was read: "ok", "error" or "warning", as its own findings say."""
    for said in report.launches:
        yield mark(report, said), f"{said.job.location}  {told(said.job)}"


def mark(report: Report, said: LintedLaunch) -> str:
    """Return "error", "warning" or "ok" for one launch."""
    source = said.job.location.source
    found = {
        f.severity for f in report.findings if any(place.source == source for place in f.locations) or not f.locations
    }
    return next((severity for severity in ("error", "warning") if severity in found), "ok")


def told(job: Job) -> str:
    """Return how a launch was read, in one line."""
    parts = [f"{job.framework} {job.version} {job.trainer}", *([job.model] if job.model else []), plan(job.plan, job)]
    if isinstance(job.world_size, Known):
        parts.append(f"{job.world_size.value} process{'es' * (job.world_size.value != 1)}")
    if isinstance(job.gpus, Known) and job.gpus != job.world_size:
        parts.append(f"{job.gpus.value} GPU{'s' * (job.gpus.value != 1)}")
    return " · ".join(parts)


def plan(settings: Plan, job: Job) -> str:
    """Return what of a plan decides its attention."""
    words = [settings.attn_implementation or "default attention", settings.precision]
    words.append(f"packed by {settings.packing}" if settings.packed else f"padded {settings.padding_side}")
    if settings.ring_size > 1:
        words.append(f"{job.scheme or 'sequence parallel'} over {settings.ring_size}")
    if settings.liger:
        words.append("liger")
    if settings.deterministic:
        words.append("deterministic")
    return ", ".join(words)


def corrected(report: Report) -> Iterator[tuple[str, str]]:
    """Yield a heading and a text for each launch that is corrected: its diff, and its command on one line."""
    for said in report.launches:
        if said.diff:
            yield f"corrected {said.job.location.source}", said.diff.rstrip("\n")
        if said.command:
            yield "to paste", said.command
