"""Records the current findings, so that later reports fail only on new ones and list the known ones separately."""

import json
import os
from dataclasses import asdict, dataclass, replace

from attncheck.core import codec
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import CannotRead, make_write_error, read_bounded, replace_file
from attncheck.core.io.outgoing import clean
from attncheck.core.report import Report
from attncheck.report.fingerprints import RECIPE_VERSION, compute_fingerprint

SCHEMA = 1
MAX_BYTES = 16 << 20  # a finding takes about three hundred bytes


@dataclass(frozen=True)
class Entry:
    """One recorded finding: its fingerprint, its text, and the date when it was first recorded."""

    fingerprint: str
    code: str
    subject: str
    message: str
    date: str


@dataclass(frozen=True)
class Baseline:
    """The findings of one day, sorted by code, subject and fingerprint, so that a change is a small diff."""

    findings: tuple[Entry, ...] = ()
    recipe: int = RECIPE_VERSION  # version of the fingerprints' recipe
    schema_version: int = SCHEMA


@dataclass(frozen=True)
class BaselineChange:
    """How a baseline changed: the number of entries, of new ones, and of those that no longer exist."""

    entries: int
    new: int
    gone: int


def record_baseline(report: Report, path: str, date: str) -> BaselineChange:
    """Write a report's findings, including those of its baseline, to `path`; existing entries keep their date."""
    previous_entries = {
        entry.fingerprint: entry for entry in (load_baseline(path).findings if os.path.exists(path) else ())
    }
    entries: dict[str, Entry] = {}
    for finding in clean((*report.findings, *report.baselined)):
        digest = compute_fingerprint(finding)
        first_date = previous_entries[digest].date if digest in previous_entries else date
        entries[digest] = Entry(digest, finding.code, finding.subject, finding.message, first_date)
    ordered = sorted(entries.values(), key=lambda entry: (entry.code, entry.subject, entry.fingerprint))
    document = {"schema_version": SCHEMA, "recipe": RECIPE_VERSION, "findings": [asdict(entry) for entry in ordered]}
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        replace_file(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise make_write_error(f"the baseline {path}", error) from None
    return BaselineChange(
        len(entries), len(entries.keys() - previous_entries.keys()), len(previous_entries.keys() - entries.keys())
    )


def apply_baseline(report: Report, path: str) -> Report:
    """Return the report with the findings in the baseline `path` separated. Raises `BadUsage` for a damaged file."""
    fingerprints = {entry.fingerprint for entry in load_baseline(path).findings}
    baselined = tuple(finding for finding in report.findings if compute_fingerprint(finding) in fingerprints)
    new_findings = tuple(finding for finding in report.findings if compute_fingerprint(finding) not in fingerprints)
    return replace(report, findings=new_findings, baselined=(*report.baselined, *baselined))


def load_baseline(path: str) -> Baseline:
    """Return the baseline in a file. Raises `BadUsage` if the file is missing or is not a baseline."""
    try:
        data = read_bounded(path, MAX_BYTES)
    except CannotRead as error:
        hint = "; `attncheck baseline` writes it" if error.is_missing else ""
        raise BadUsage(f"cannot read the baseline {path}: {error.reason}{hint}") from None
    try:
        baseline = codec.loads(Baseline, data.decode("utf-8"))
    except ValueError as error:  # BadDocument and UnicodeDecodeError
        raise BadUsage(f"{path} is not a baseline written by `attncheck baseline`: {error}") from None
    if baseline.schema_version != SCHEMA or baseline.recipe != RECIPE_VERSION:
        raise BadUsage(f"{path} was written by another attncheck; write it again with `attncheck baseline`")
    return baseline
