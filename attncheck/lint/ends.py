"""Adds the end of a setting to the locations of findings, so that an editor marks only that setting."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from attncheck.core.findings import Finding
from attncheck.core.job import Job
from attncheck.core.launch import Launch, Setting, SourceLocation, Word


def add_ends(findings: Iterable[Finding], launch: Launch, job: Job) -> tuple[Finding, ...]:
    """Return a launch's findings; locations at which a setting, variable or program begins get an end."""
    all_findings = tuple(findings)
    located = {location for finding in all_findings for location in finding.locations}
    ends = _find_ends(located, launch, job) if located else {}
    return tuple(_with_ends(finding, ends) for finding in all_findings)


def _find_ends(located: set[SourceLocation], launch: Launch, job: Job) -> dict[SourceLocation, SourceLocation]:
    sources = {source.name: source for source in (launch.source, launch.file) if source is not None}
    tokens: tuple[Setting | Word, ...] = (*launch.words, *launch.variables, *launch.entries, *job.settings)
    ends: dict[SourceLocation, SourceLocation] = {}
    for token in tokens:
        source = sources.get(token.location.source)
        start, end = token.span
        if token.location not in located or source is None or not 0 <= start < end:
            continue
        if source.location(start) == token.location:
            after = source.location(end)
            ends[token.location] = replace(token.location, end_line=after.line, end_column=after.column)
    return ends


def _with_ends(finding: Finding, ends: Mapping[SourceLocation, SourceLocation]) -> Finding:
    if not any(location in ends for location in finding.locations):
        return finding
    return replace(finding, locations=tuple(ends.get(location, location) for location in finding.locations))
