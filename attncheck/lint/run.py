"""`attncheck lint`: what a launch will really do here, what is wrong with it, and the corrected launch.

A launch is read (attncheck.lint.launches), and a framework turns it into a job (recognition). The rules judge it
together with the machine, the versions and the model (judging). The settings of fixes are written back, and the
corrected text is read and judged again (correcting).
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.io.errors import AttncheckError, BadUsage, Unanswered
from attncheck.core.launch import COMMAND, Edit, Launch, ReadFile, Source
from attncheck.core.records import replace
from attncheck.core.report import Report, merge_reports
from attncheck.core.results.lint import LintSection, launches_of
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.lint import frameworks, open_ends
from attncheck.lint.context import LintContext, ReadModel, Request
from attncheck.lint.correcting import FindingKey, identify, lint_launch
from attncheck.lint.files import editing
from attncheck.lint.frameworks import Framework
from attncheck.lint.judging import LaunchJudge
from attncheck.lint.lost_words import find_lost_words, find_script_faults
from attncheck.lint.own_programs import find_problems as find_own_problems
from attncheck.lint.recognition import describe_foreign_keys, find_framework_launches, find_launches
from attncheck.lint.time_limit import TimeLimit, time_limit
from attncheck.lint.training_scripts import find_missing_script

FILE_SECONDS = 10.0  # of CPU time for one file in a folder
PROGRESS_STEP = 50  # files between two progress messages


@dataclass(frozen=True)
class Linter:
    """Lints source after source; of equal findings only the first one's fixes count."""

    context: LintContext
    reported: set[FindingKey] = field(default_factory=set)
    foreign: dict[str, str] = field(default_factory=dict)  # why a source that has a framework's keys is not linted

    def lint(self, source: Source, source_launches: Sequence[Launch], read_file: ReadFile) -> list[Report]:
        """Return a report for each launch of a source."""
        framework = self.context.request.framework
        found_launches = list(find_framework_launches(source, source_launches, framework, frameworks.load()))
        contexts = [(self.context.at_tree(source, recognised.launch), recognised) for recognised in found_launches]
        judges = [
            LaunchJudge(recognised, context.scripts.add(context.snapshot, recognised.launch), context, read_file)
            for context, recognised in contexts
        ]
        for judge in [] if framework else judges:
            foreign = describe_foreign_keys(judge.recognised, self.context.snapshot, judge.is_read)
            if foreign:
                self.foreign[source.name] = foreign
                return []
        reports = [lint_launch(judge, self.reported) for judge in judges]
        self.reported.update(identify(finding) for report in reports for finding in report.findings)
        return reports


def run(
    snapshot: Snapshot,
    request: Request,
    read_model: ReadModel,
    read_file: ReadFile,
    read_beside: Callable[[Source], ReadFile] | None = None,
    report_progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Return the report on every launch in the sources.

    `read_file` reads the files that launches name; `read_beside` returns the reader for one source.

    A source that starts no known trainer is not linted, which is a note. One that does not parse, or has more launches
    or words than the limit, is not judged, which is an open question. Raises `BadUsage` for an unknown framework, the
    source's error if there is no other source, and `Unanswered` if none has a launch of the requested framework.
    """
    known_frameworks = frameworks.load()
    _check_framework(request.framework, known_frameworks)
    linter = Linter(LintContext(snapshot, request, read_model))
    make_reader = read_beside or (lambda source: read_file)
    reports: list[Report] = []
    unrecognised: dict[str, tuple[Source, Sequence[Launch]]] = {}
    own_programs: list[Problem] = []
    lost: list[str] = []
    for source in request.sources:
        reader = make_reader(source)
        try:
            source_launches = find_launches(source, reader)
        except AttncheckError as error:
            if len(request.sources) + len(request.below_folders) == 1:
                raise
            lost.append(_describe_error(source, error))
            continue
        source_reports = linter.lint(source, source_launches, reader)
        reports += source_reports
        problems = list(find_own_problems(source, source_launches))
        own_programs += problems
        if not source_reports and not problems and not request.skip_unknown:
            unrecognised[source.name] = source, source_launches
    folder_reports, folder_section = _lint_folders(linter, make_reader, report_progress)
    reports += folder_reports
    names = [framework.name for framework in known_frameworks]
    if unrecognised and not reports and request.framework:
        raise Unanswered(f"{', '.join(unrecognised)}: starts no {request.framework}")
    others = ({name: part for name, part in report.sections.items() if name != LintSection.name} for report in reports)
    report = merge_reports("lint", snapshot, [replace(item, sections=rest) for item, rest in zip(reports, others)])
    parts = [part for part in (report.section(LintSection) for report in reports) if part is not None]
    section = LintSection(
        tuple(launch for part in parts for launch in part.launches),
        tuple({need for part in parts for need in part.needs}),
        tuple(unrecognised),
        lost=tuple(lost),
    )
    section = folder_section.merge(section)  # merged immediately, because there may be thousands
    report = replace(report, sections={**report.sections, "lint": section})
    lacks = f"it has no command or key of {', '.join(names)}"
    findings = [
        item
        for source, started in unrecognised.values()
        for item in _make_unknown_findings(source, started, linter.foreign.get(source.name, lacks), read_file)
    ]
    findings += [engine.make_finding_by_code("ATN576", problem) for problem in own_programs]
    return engine.add_findings(report, findings, request.select, request.ignore)


def _lint_folders(
    linter: Linter, make_reader: Callable[[Source], ReadFile], report_progress: Callable[[str], None]
) -> tuple[list[Report], LintSection]:
    """Return the reports on launches in folders, and the files not read there; an error in one stops no other.

    Scripts come first: a configuration file that one of them names is read with it, and not again separately.
    """
    sources = sorted(linter.context.request.below_folders, key=lambda source: source.kind in ("yaml", "json", "toml"))
    reports: list[Report] = []
    not_read: list[str] = list(linter.context.request.left_out)
    names_read: set[str] = set()
    without_launch = 0
    for number, source in enumerate(sources):
        if number % PROGRESS_STEP == 0:
            report_progress(f"read {number} of {len(sources)} files")
        if os.path.normpath(source.name) in names_read:
            continue
        reader = NotingReader(make_reader(source))
        try:
            with time_limit(FILE_SECONDS):
                source_reports = linter.lint(source, find_launches(source, reader), reader)
        except TimeLimit:
            not_read.append(f"{source.name}: not read within {FILE_SECONDS:g} s of CPU time")
            continue
        except AttncheckError as error:
            not_read.append(_describe_error(source, error))
            continue
        except Exception as error:  # the other files are judged anyway
            not_read.append(f"{source.name}: a bug in attncheck, please report it: {type(error).__name__}: {error}")
            continue
        reports += source_reports
        without_launch += not source_reports
        names_read |= reader.names if source_reports else set()
    return reports, LintSection(not_read=tuple(not_read), without_launch=without_launch, from_folders=bool(sources))


def _describe_error(source: Source, error: AttncheckError) -> str:
    return str(error) if source.name in str(error) else f"{source.name}: {error}"


@dataclass(eq=False)
class NotingReader:
    """Reads files, and records the names of those that it found."""

    read_file: ReadFile
    names: set[str] = field(default_factory=set)

    def __call__(self, path: str) -> Source | None:
        """Return the file at `path`; None if it cannot be read."""
        source = self.read_file(path)
        if source is not None:
            self.names.add(os.path.normpath(source.name))
        return source


def _check_framework(name: str, known_frameworks: Iterable[Framework]) -> None:
    names = [framework.name for framework in known_frameworks]
    if name and name not in names:
        raise BadUsage(f"--framework {name!r} is not one of {', '.join(names)}")


def _make_unknown_findings(
    source: Source, started: Sequence[Launch], evidence: str, read_file: ReadFile
) -> Iterator[Finding]:
    """Yield the note that a source was not linted, and what bash refuses or drops of it if it is a launcher's command.

    An unreadable file that it names may be the reason.
    """
    notes = (note for launch in started for note in launch.notes)
    unreadable = dict.fromkeys(note for note in notes if open_ends.COULD_NOT_BE_READ in note)
    missing = next(filter(None, (find_missing_script(launch, read_file) for launch in started)), "")
    reason = f"{missing}: no such file" if missing else "no known trainer was recognised"
    faults = ((*find_script_faults(launch), *find_lost_words(launch)) for launch in started if launch.launchers)
    for fault in itertools.islice(itertools.chain.from_iterable(faults), 1):
        fix = Fix("what to do", "manual", fault.advice)
        problem = Problem(fault.message, fault.evidence, (fix,), source.name, locations=(fault.location,))
        yield engine.make_finding_by_code("ATN441" if fault.consequence == "refuses" else "ATN443", problem)
    yield engine.make_finding_by_code(
        "ATN454",
        Problem(
            message=f"{source.name} is not linted: {reason}",
            evidence=(evidence, *unreadable),
            subject=source.name,
        ),
    )


def write_safe_edits(report: Report, read_file: ReadFile) -> Iterator[str]:
    """Write the edits that do not change what the jobs compute into their files; yield the name of each file written.

    A source that is not a file (a command line, standard input) is skipped. Raises `BadUsage` for a file that has
    changed or cannot be written.
    """
    edits: dict[str, set[Edit]] = {}
    for linted_launch in launches_of(report):
        for edit in linted_launch.safe:
            edits.setdefault(edit.source, set()).add(edit)
    for name, file_edits in edits.items():
        source = None if name in (COMMAND, "-") else read_file(name)
        if source is not None:
            text = editing.apply_edits(source, sorted(file_edits, key=lambda edit: edit.span))
            editing.write_corrected(source, name, text)
            yield name
