"""Records today's findings, so that later reports fail on new ones only and list the old ones apart."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from attncheck.core import codec
from attncheck.core.errors import BadUsage
from attncheck.core.report import Report
from attncheck.report.fingerprints import VERSION, fingerprint

SCHEMA = 1
LIMIT = 16 << 20  # bytes: a finding takes some three hundred


@dataclass(frozen=True)
class Entry:
    """One finding that was there: its fingerprint, what it said, and the day on which it was first recorded."""

    fingerprint: str
    code: str
    subject: str
    message: str
    date: str


@dataclass(frozen=True)
class Baseline:
    """The findings of one day, by code, subject and fingerprint, so that a change shows as few lines of a diff."""

    findings: tuple[Entry, ...] = ()
    recipe: int = VERSION  # of the fingerprints
    schema_version: int = SCHEMA


@dataclass(frozen=True)
class Recorded:
    """How a baseline changed: entries in all, new ones, and those of the old one that are gone."""

    entries: int
    new: int
    gone: int


def record(report: Report, path: str, date: str) -> Recorded:
    """Write a report's findings, known ones included, to `path`; what was there before keeps its date."""
    before = {entry.fingerprint: entry for entry in (load(path).findings if os.path.exists(path) else ())}
    entries: dict[str, Entry] = {}
    for finding in (*report.findings, *report.baselined):
        mark = fingerprint(finding)
        first = before[mark].date if mark in before else date
        entries[mark] = Entry(mark, finding.code, finding.subject, finding.message, first)
    ordered = sorted(entries.values(), key=lambda entry: (entry.code, entry.subject, entry.fingerprint))
    document = {"schema_version": SCHEMA, "recipe": VERSION, "findings": [asdict(entry) for entry in ordered]}
    _write(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return Recorded(len(entries), len(entries.keys() - before.keys()), len(before.keys() - entries.keys()))


def applied(report: Report, path: str) -> Report:
    """Return the report with the findings that `path` knows set apart. Raises `BadUsage` for a damaged file."""
    marks = {entry.fingerprint for entry in load(path).findings}
    old = tuple(finding for finding in report.findings if fingerprint(finding) in marks)
    new = tuple(finding for finding in report.findings if fingerprint(finding) not in marks)
    return replace(report, findings=new, baselined=(*report.baselined, *old))


def load(path: str) -> Baseline:
    """Return the baseline in a file. Raises `BadUsage` where there is none, or something else."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(LIMIT + 1)
    except OSError as error:
        hint = "; `attncheck baseline` writes it" if isinstance(error, FileNotFoundError) else ""
        raise BadUsage(f"cannot read the baseline {path}: {error.strerror or error}{hint}") from None
    if len(data) > LIMIT:
        raise BadUsage(f"{path} is larger than {LIMIT >> 20} MiB: not a baseline")
    try:
        found = codec.loads(Baseline, data.decode("utf-8"))
    except ValueError as error:  # BadDocument and UnicodeDecodeError
        raise BadUsage(f"{path} is not a baseline written by `attncheck baseline`: {error}") from None
    if found.schema_version != SCHEMA or found.recipe != VERSION:
        raise BadUsage(f"{path} was written by another attncheck; write it anew with `attncheck baseline`")
    return found


def _write(path: str, text: str) -> None:
    """Put a whole file in place, or none: whoever reads it meanwhile sees the old one."""
    folder = os.path.dirname(os.path.abspath(path))
    name = ""
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".baseline-", delete=False, encoding="utf-8") as file:
            name = file.name
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # a temporary file is private; this one is for a repository
        os.replace(name, Path(path).resolve())
    except OSError as error:
        with suppress(OSError):
            os.unlink(name)
        raise BadUsage(f"cannot write the baseline {path}: {error.strerror or error}") from None
