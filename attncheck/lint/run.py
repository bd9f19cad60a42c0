"""`attncheck lint`: what a launch will really do here, what is wrong with it, and the corrected launch.

A launch is read (attncheck.lint.launches), and a framework turns it into a job. The rules judge it together with the
machine, the versions and the model. The settings of fixes are written back. The corrected text is then read and judged
again: a fix counts as proven if its finding no longer exists.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Literal

from attncheck.core.facts import Absent, Fact, Known, Unreadable
from attncheck.core.findings import Finding, Fix, Problem, by_severity
from attncheck.core.io.errors import AttncheckError, BadUsage, Unanswered
from attncheck.core.io.secrets import remember_setting, remember_settings
from attncheck.core.job import KEYS, Job, LintedLaunch, SettingProblem
from attncheck.core.launch import COMMAND, Edit, Launch, Source, SourceLocation
from attncheck.core.model import Model
from attncheck.core.records import replace
from attncheck.core.report import Report, merge_reports
from attncheck.core.results.lint import LintSection, launches_of
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.memory import RuleMemory
from attncheck.doctor.profile import needs_of_job
from attncheck.doctor.queries.launch import SAFE_KEYS
from attncheck.doctor.target import forget_packages, with_version
from attncheck.lint import deepspeed_config, frameworks, launches, open_ends, proof, unknown_values, variables
from attncheck.lint.attention_settings import add_attention_problems
from attncheck.lint.clashes import add_clashes
from attncheck.lint.contradicted_pins import leave_contradicted_open
from attncheck.lint.decided_conditions import add_decided_conditions
from attncheck.lint.ends import add_ends
from attncheck.lint.fields.names import bound_transformers
from attncheck.lint.files import editing
from attncheck.lint.files.json import list_keys
from attncheck.lint.frameworks import Framework
from attncheck.lint.idle_programs import find_idle_program
from attncheck.lint.lost_words import add_lost_words, find_script_faults, leave_out_missing_values
from attncheck.lint.missing_files import find_missing_files
from attncheck.lint.own_attention import add_fixed_arguments, add_own_attention
from attncheck.lint.own_programs import find_problems as find_own_problems
from attncheck.lint.pasting import PastedCommand, format_command
from attncheck.lint.programs.modules import locate_module
from attncheck.lint.programs.places import find_own_program
from attncheck.lint.programs.reader import ProgramReader, make_program_reader
from attncheck.lint.release import choose_release, may_be_met
from attncheck.lint.script_links import ScriptLinks
from attncheck.lint.stated_versions import StatedVersions, find_stated_versions, is_own_source
from attncheck.lint.time_limit import TimeLimit, time_limit
from attncheck.lint.training_scripts import find_missing_script
from attncheck.lint.unchecked import list_unchecked

NOT_STATED = "neither --target nor --python names it, and the source tree does not state it"
MAX_LAUNCHES = 200  # per file: each is corrected, and the whole file is read again
MAX_WORDS = 10_000  # per command
FILE_SECONDS = 10.0  # of CPU time for one file in a folder
PROGRESS_STEP = 50  # files between two progress messages
MIN_FOREIGN_KEYS, MIN_FOREIGN_SHARE = 2, 0.25  # of a file's keys
MAX_ROUNDS = 4  # a corrected launch may need correction again, such as a renamed flag with an invalid value
NEEDS_QUOTES = re.compile(r"['\"`$]|\\(?!\n)")  # would end or change a string that holds a script
OTHER_DEVICES = re.compile(r"^(?:ASCEND|HCCL)_|(?:^|_)NPU_")  # of machines without GPUs: PYTORCH_NPU_ALLOC_CONF
ReadModel = Callable[[str], Fact[Model]]
ReadFile = Callable[[str], "Source | None"]


@dataclass(frozen=True)
class Request:
    """The input of a lint run, with the framework and version whose option names are used, and the model."""

    sources: tuple[Source, ...]
    framework: str = ""  # "": detected
    version: str = ""  # the framework's version; "": the installed one, or else the newest known one
    model: str = ""  # "": the launch's model
    skip_unknown: bool = False  # do not report sources that start no training
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    below_folders: tuple[Source, ...] = ()  # from folders: only counted if they start no training or cannot be read
    stated: Literal["", "missing", "all"] = ""  # which stated versions are used; "missing": only if the target has none
    named: frozenset[str] = frozenset()  # packages that the target names; their version may equal the installed one
    left_out: tuple[str, ...] = ()  # files in folders that are not read, with the reason: "data.json: larger than …"


@dataclass(frozen=True)
class FoundLaunch:
    """A launch of a source, and the framework that recognises it."""

    launch: Launch
    framework: Framework
    number: int  # the launch's number within `given`
    given: Source  # what was given to lint: it contains the launch, or runs the script that does


@dataclass(frozen=True)
class Linter:
    """Everything that linting a source needs besides the source itself."""

    snapshot: Snapshot
    request: Request
    read_model: ReadModel
    memory: RuleMemory[engine.RuleAnswer] = field(default_factory=RuleMemory)
    stated: StatedVersions = StatedVersions()
    # severity, code, subject and message of the findings of earlier sources: of equal ones, the first one's fixes count
    reported: set[tuple[str, str, str, str]] = field(default_factory=set)
    foreign: dict[str, str] = field(default_factory=dict)  # why a source that has a framework's keys is not linted

    @cached_property
    def programs(self) -> ProgramReader:
        """Return the reader of programs in the examined environment."""
        return make_program_reader(self.snapshot)

    @cached_property
    def may_be_met(self) -> Callable[[str], bool]:
        """Return whether the examined environment may meet a requirement; releases and launches repeat them."""
        return cache(partial(may_be_met, self.snapshot))

    @cached_property
    def scripts(self) -> ScriptLinks:
        """Return the linker of the launches' own scripts."""
        return ScriptLinks(self.snapshot, self.programs.site_folders)

    @cached_property
    def by_stated(self) -> "dict[tuple[tuple[str, str, str, str], ...], Linter]":
        """Return the linters for trees that state versions, by these versions."""
        return {}

    def at_tree(self, source: Source, launch: Launch | None = None) -> "Linter":
        """Return the linter for the versions stated by the tree of a source and of the program that it launches."""
        stated = _find_versions(source, launch) if self.request.stated else StatedVersions()
        stated = stated if self.request.stated == "all" else stated.without_named(self.snapshot)
        key = tuple(
            (name, stated.versions.get(name, ""), stated.allowed.get(name, ""), file)
            for name, file in stated.files.items()
        )
        if not key:
            return self
        if key not in self.by_stated:
            snapshot = stated.apply(_keep_named(self.snapshot, self.request))
            self.by_stated[key] = replace(self, snapshot=snapshot, memory=RuleMemory(), stated=stated)
        return self.by_stated[key]

    def lint(self, source: Source, read_file: ReadFile) -> list[Report]:
        """Return a report for each launch of a source."""
        found_launches = list(find_framework_launches(source, self.request, frameworks.load(), read_file))
        for candidate in [] if self.request.framework else found_launches:
            foreign = _describe_foreign_keys(candidate, self.snapshot)
            if foreign:
                self.foreign[source.name] = foreign
                return []
        linters = [(self.at_tree(source, launch.launch), launch) for launch in found_launches]
        reports = [
            _lint_launch(linter.scripts.add(linter.snapshot, launch.launch), launch, linter, read_file)
            for linter, launch in linters
        ]
        self.reported.update(_identify(finding) for report in reports for finding in report.findings)
        return reports


def _find_versions(source: Source, launch: Launch | None) -> StatedVersions:
    if launch is None or not launch.words:
        return find_stated_versions(source)
    place = find_own_program(launch)
    if place is None:
        return leave_contradicted_open(find_stated_versions(source), launch)
    folder = place[1].folders[0]
    program = locate_module(folder, place[0].name) or folder / "program"  # a package may contain another one's copy
    return leave_contradicted_open(find_stated_versions(source, program), launch)


def _keep_named(snapshot: Snapshot, request: Request) -> Snapshot:
    """Return the snapshot with only the packages that a target names, for a tree that states versions."""
    forgotten = forget_packages(snapshot, NOT_STATED)
    if request.stated == "all":
        return forgotten
    named = tuple(item for item in snapshot.distributions if not item.location or item.name in request.named)
    torch = snapshot.torch if any(item.name == "torch" for item in named) else forgotten.torch
    return replace(forgotten, distributions=named, torch=torch, gaps=snapshot.gaps)


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

    A source that starts no known trainer is not linted, which is a note. Raises `BadUsage` for an unknown framework or
    a file that does not parse. Raises `Unanswered` if no source has a launch of the requested framework, or if one has
    more launches or words than the limit, because none may be left out.
    """
    known_frameworks = frameworks.load()
    _check_framework(request.framework, known_frameworks)
    linter = Linter(snapshot, request, read_model)
    make_reader = read_beside or (lambda source: read_file)
    reports: list[Report] = []
    unrecognised: list[Source] = []
    own_programs: list[Problem] = []
    for source in request.sources:
        source_reports = linter.lint(source, make_reader(source))
        reports += source_reports
        problems = list(find_own_problems(source, make_reader(source)))
        own_programs += problems
        if not source_reports and not problems and not request.skip_unknown:
            unrecognised.append(source)
    folder_reports, folder_section = _lint_folders(linter, make_reader, report_progress)
    reports += folder_reports
    names = [framework.name for framework in known_frameworks]
    if unrecognised and not reports and request.framework:
        raise Unanswered(f"{', '.join(source.name for source in unrecognised)}: starts no {request.framework}")
    others = ({name: part for name, part in report.sections.items() if name != LintSection.name} for report in reports)
    report = merge_reports("lint", snapshot, [replace(item, sections=rest) for item, rest in zip(reports, others)])
    parts = [part for part in (report.section(LintSection) for report in reports) if part is not None]
    section = LintSection(
        tuple(launch for part in parts for launch in part.launches),
        tuple({need for part in parts for need in part.needs}),
        tuple(source.name for source in unrecognised),
    )
    section = folder_section.merge(section)  # merged immediately, because there may be thousands
    report = replace(report, sections={**report.sections, "lint": section})
    lacks = f"it has no command or key of {', '.join(names)}"
    findings = [
        item
        for source in unrecognised
        for item in _make_unknown_findings(source, linter.foreign.get(source.name, lacks), read_file)
    ]
    findings += [engine.make_finding_by_code("ATN576", problem) for problem in own_programs]
    return engine.add_findings(report, findings, request.select, request.ignore)


def _lint_folders(
    linter: Linter, make_reader: Callable[[Source], ReadFile], report_progress: Callable[[str], None]
) -> tuple[list[Report], LintSection]:
    """Return the reports on launches in folders, and the files not read there; an error in one stops no other.

    Scripts come first: a configuration file that one of them names is read with it, and not again separately.
    """
    sources = sorted(linter.request.below_folders, key=lambda source: source.kind in ("yaml", "json", "toml"))
    reports: list[Report] = []
    not_read: list[str] = list(linter.request.left_out)
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
                source_reports = linter.lint(source, reader)
        except TimeLimit:
            not_read.append(f"{source.name}: not read within {FILE_SECONDS:g} s of CPU time")
            continue
        except AttncheckError as error:
            not_read.append(str(error) if source.name in str(error) else f"{source.name}: {error}")
            continue
        reports += source_reports
        without_launch += not source_reports
        names_read |= reader.names if source_reports else set()
    return reports, LintSection(not_read=tuple(not_read), without_launch=without_launch, from_folders=bool(sources))


@dataclass
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


def find_framework_launches(
    source: Source, request: Request, known_frameworks: tuple[Framework, ...], read_file: ReadFile
) -> Iterator[FoundLaunch]:
    """Yield the launches of a source that a framework recognises. Raises `Unanswered` if there are too many."""
    keys = list_keys(source) if source.kind == "json" else None
    if keys is not None and not _starts_training(Launch(source, entries=tuple(keys), file=source)):
        return  # data, of which a folder may have thousands
    found_count = 0
    for number, launch in enumerate(launches.find_launches(source, read_file, _starts_training)):
        for framework in known_frameworks:
            if request.framework in ("", framework.name) and framework.trainer(launch):
                found_count += 1
                _check_size(source, launch, found_count)
                yield FoundLaunch(launch, framework, number, source)
                break


def _describe_foreign_keys(candidate: FoundLaunch, snapshot: Snapshot) -> str:
    """Return why a file that no command names is not its framework's: it has many unknown keys; "" if it may be."""
    launch = candidate.launch
    if launch.words or launch.file is None or launch.file.kind == "python":
        return ""
    job = candidate.framework.read(launch, candidate.framework.newest, snapshot)
    unknown = [item for item in job.unknown_settings if not item.now and not item.since]
    names = {entry.name.partition(".")[0] for entry in launch.entries}
    foreign = {item.name.partition(".")[0] for item in unknown} & names
    is_foreign = len(foreign) >= MIN_FOREIGN_KEYS and len(foreign) >= MIN_FOREIGN_SHARE * len(names)
    is_foreign = is_foreign and not all(item.near for item in unknown)  # if all are misspelled, it is the framework's
    keys = f"{len(foreign)} of its {len(names)} keys are not {candidate.framework.name}'s: {', '.join(sorted(foreign))}"
    return f"{keys} (--framework {candidate.framework.name} lints it)" if is_foreign else ""


def _refuse_module(launch: Launch, package: Path) -> SettingProblem:
    """Return the problem of a launch whose module does not exist in its package."""
    module = launch.words[0]
    return SettingProblem(
        "refuses",
        f"-m {module.text}: there is no such module: ModuleNotFoundError",
        (f"{os.path.relpath(package)} is the package, and does not have it",),
        module.location,
        advice=f"start a module of {package.name}, or its command",
        universal=True,
    )


def _starts_training(launch: Launch) -> bool:
    """Return whether a launch starts a known trainer."""
    return any(framework.trainer(launch) for framework in frameworks.load())


def _check_size(source: Source, launch: Launch, count: int) -> None:
    if count > MAX_LAUNCHES:
        raise Unanswered(f"{source.name}: more than {MAX_LAUNCHES} launches in one file; split it")
    if len(launch.whole) > MAX_WORDS:
        raise Unanswered(f"{source.name}: a launch of more than {MAX_WORDS} words")


def _lint_launch(
    snapshot: Snapshot,
    found_launch: FoundLaunch,
    linter: Linter,
    read_file: ReadFile,
) -> Report:
    """Return the report on one launch, with the corrected launch judged again."""
    distribution = found_launch.framework.distribution
    if distribution and linter.request.version and isinstance(snapshot.package(distribution), Unreadable):
        snapshot = with_version(snapshot, distribution, linter.request.version)
    model_snapshot = add_model(
        snapshot, linter.request.model or found_launch.framework.model(found_launch.launch), linter.read_model
    )

    @cache
    def read_as_written(version: str) -> Job:
        return found_launch.framework.read(found_launch.launch, version, model_snapshot)

    starts_own = proof.starts_one_of(found_launch.framework.own_programs, found_launch.launch)
    may_be_fork = bool(found_launch.launch.words) and not starts_own
    release = choose_release(
        found_launch.framework, read_as_written, snapshot, linter.request.version, linter.may_be_met, may_be_fork
    )
    release_remarks = (release.remark,) if release.remark else ()
    entries = found_launch.framework.entries(found_launch.launch)
    program = linter.programs.read(found_launch.launch, entries, distribution, release.version, release.is_known)
    origin = (
        linter.programs.read_script(found_launch.launch, distribution, release.version) if program is None else None
    )
    missing = find_missing_script(found_launch.launch, read_file) if program is None else ""
    lacking = linter.programs.find_package_without(found_launch.launch) if missing else None
    is_package = lacking is None and any(word.text == "--module" for word in found_launch.launch.launcher_words)
    missing = "" if is_package else missing  # a module of an installed package
    missing_remarks = (f"{missing}: no such file here, so its options were read by their names",) if missing else ()

    def collect(launch: Launch, versions: Callable[[], Iterable[str]] = tuple) -> Job:
        """Return the job of a launch with the problems of its settings that it has in all of `versions` too."""
        read_as = cache(lambda version: found_launch.framework.read(launch, version, model_snapshot))
        read = read_as_written if launch is found_launch.launch else read_as
        job = read(release.version)

        def read_others() -> Iterator[Job]:
            return map(read, versions())

        job = proof.leave_out_removed_checks(proof.keep_certain_problems(job, launch, read_others), launch)
        job = add_attention_problems(add_fixed_arguments(job, launch), launch, model_snapshot)
        return add_clashes(add_own_attention(job, launch, read_file), launch, model_snapshot, read_others)

    def settle(job: Job, launch: Launch) -> Job:
        """Return the job with the names and problems that are proven, as severe as their evidence allows."""
        job = proof.settle_names(add_lost_words(job, launch), launch, found_launch.framework.own_programs, release)
        job = leave_out_missing_values(job)
        knows_transformers = isinstance(snapshot.version("transformers"), Known)
        job = proof.leave_out_unproven(job, release, linter.stated.files, knows_transformers, starts_own, program)
        job = proof.leave_out_set_names(job, launch)
        job = deepspeed_config.settle_deepspeed(job, launch, starts_own)
        job = open_ends.soften_problems(add_decided_conditions(job, launch, origin), launch)
        missing = find_missing_files(job, launch, deepspeed_config.is_trainers_setting(launch, starts_own))
        job = replace(job, problems=(*job.problems, *missing, *find_idle_program(launch)))
        if lacking is not None:  # nothing reads its options
            job = replace(job, problems=(_refuse_module(launch, lacking),), unknown_settings=())
        return job

    def list_findings(job: Job, launch: Launch, select: tuple[str, ...]) -> tuple[list[Finding], Report]:
        located_job = _locate_in_host(job, launch)
        job_snapshot = variables.set_environment(replace(model_snapshot, job=Known(located_job)), launch, located_job)
        report = engine.run_rules(job_snapshot, needs_of_job(job), select, linter.request.ignore, linter.memory)
        softened = (open_ends.soften_finding(finding, located_job, launch) for finding in report.findings)
        return [finding for finding in softened if finding is not None], report

    def judge(launch: Launch) -> tuple[Job, Report]:
        launch = launch if program is None else replace(launch, program=program)
        collected = collect(launch, release.list_others)
        job = settle(collected, launch)
        collected = deepspeed_config.settle_deepspeed(collected, launch, starts_own)
        alternatives = unknown_values.list_alternatives(launch)
        others = [deepspeed_config.settle_deepspeed(collect(other), other, starts_own) for other in alternatives]
        job = replace(job, unknown=unknown_values.find_unknown_parts(job, others, launch))
        remarks = (*launch.notes, *missing_remarks, *release_remarks, *job.remarks)
        job = replace(job, remarks=(*remarks, *_unknown_model_remarks(model_snapshot.model)))
        if any(OTHER_DEVICES.search(variable) for variable in launch.environ):
            job = replace(job, gpus=Absent("the launch sets variables of NPUs"))
        job = replace(
            job,
            stated_by=linter.stated.describe("" if linter.request.version else distribution, "transformers", "torch"),
            pins=(*linter.stated.list_ranges(), *bound_transformers(setting.name for setting in job.settings)),
            plain_forwards=launch.made.forwards,
            has_plain_forward=launch.made.is_plain,
            head=launch.made.head,
        )
        is_own = not linter.request.version and is_own_source(distribution, linter.stated.files.get(distribution, ""))
        is_guess = not release.is_known and not isinstance(snapshot.package(distribution), Absent)
        if is_own or is_guess:  # the tree's requirements count; a fix also fits a release that is a guess
            job = replace(job, requires=(), pins=job.pins if is_own else (*job.pins, *job.requires))
        remember_secrets(launch, job)
        job = variables.with_variables(job, launch)
        findings, report = list_findings(job, launch, linter.request.select)
        others = [unknown_values.align(other, collected, job) for other in others]
        distinct = unknown_values.drop_duplicates(job, [*others, *unknown_values.vary_unknown_parts(job)])
        # the others cannot remove a finding; a crash's subject is the rule
        found_rules = tuple(sorted({item.subject if item.code == engine.CRASH else item.code for item in findings}))
        listed = [partial(lambda other: list_findings(other, launch, found_rules)[0], other) for other in distinct]
        return job, replace(report, findings=by_severity(unknown_values.keep_certain(findings, listed)))

    job, report = judge(found_launch.launch)

    @cache
    def try_sets(tried_sets: tuple[tuple[str, str], ...]) -> tuple[tuple[Edit, ...], Launch, Report] | None:
        """Return the edits that make these settings, the edited launch and its report; None if it trains no more."""
        edits = found_launch.framework.write(found_launch.launch, _only_renamed(job), dict(tried_sets))
        edited = reread_launch(found_launch, edits, read_file)
        if edited is None or not found_launch.framework.trainer(edited):
            return None
        return edits, edited, judge(edited)[1]

    sets: dict[str, str] = {}
    edits: tuple[Edit, ...] = ()
    corrected_report, corrected_launch = report, found_launch.launch
    for _ in range(MAX_ROUNDS if _is_editable(found_launch.launch) else 0):
        needed = _collect_sets(corrected_report.findings, sets)
        if needed == sets and (edits or not _only_renamed(job).unknown_settings):
            break
        sets = needed
        tried = try_sets(tuple(sets.items()))
        if tried is None or (
            found_launch.launch.is_nested and any(NEEDS_QUOTES.search(edit.text) for edit in tried[0])
        ):
            edits = ()
            break
        edits, corrected_launch, corrected_report = tried

    def breaks_something(fix: Fix) -> bool:
        """Return whether changing only the settings of a fix causes a new error or warning of the launch."""
        tried = try_sets(tuple(fix.sets.items()))
        return tried is not None and _adds_problem(report.findings, tried[2].findings)

    def vet_fixes(finding: Finding) -> Finding:
        """Return the finding without fixes that cause another problem; the first fixes of errors were tried above."""
        is_tried = finding.severity == "error" and bool(edits)
        kept = tuple(
            fix
            for number, fix in enumerate(finding.fixes)
            if not fix.sets or (is_tried and number == 0) or not breaks_something(fix)
        )
        return replace(finding, fixes=kept)

    vets = _is_editable(found_launch.launch)
    are_new = [_identify(finding) not in linter.reported for finding in report.findings]
    vetted = [vet_fixes(finding) if vets and is_new else finding for finding, is_new in zip(report.findings, are_new)]
    if not (_only_renamed(job).unknown_settings or any(fix.sets for finding in vetted for fix in finding.fixes)):
        edits = ()
    findings = (
        _complete_fixes(finding, found_launch, job, corrected_report if edits else None) if is_new else finding
        for finding, is_new in zip(vetted, are_new)
    )
    safe_sets: dict[str, str] = {key: value for key, value in sets.items() if key in SAFE_KEYS}
    safe_edits = found_launch.framework.write(found_launch.launch, _only_renamed(job), safe_sets) if edits else ()
    pasted = format_command(corrected_launch) if edits else PastedCommand("")
    linted_launch = LintedLaunch(
        _locate_in_host(job, found_launch.launch),
        format_launch_diff(found_launch.launch, edits),
        pasted.text,
        edits,
        safe_edits,
        pasted.variables,
        list_unchecked(job, model_snapshot, release.is_known),
    )
    section = LintSection((linted_launch,), tuple(sorted(needs_of_job(job))))
    lost = {name: section for name, section in report.sections.items() if section.unanswered}
    ends = add_ends(findings, found_launch.launch, job)
    return replace(report, command="lint", findings=ends, sections={**lost, "lint": section})


def _identify(finding: Finding) -> tuple[str, str, str, str]:
    return finding.severity, finding.code, finding.subject, finding.message


def _is_editable(launch: Launch) -> bool:
    """Return whether every source of an editable launch can be edited."""
    return all(source.editable for source in _sources_by_name(launch).values())


def _locate_in_host(job: Job, launch: Launch) -> Job:
    """Return the job with places in a file that a script writes mapped to places in the script."""
    hosts = {source.name: source.host for source in _sources_by_name(launch).values() if source.host}
    if not hosts:
        return job

    def move(location: SourceLocation) -> SourceLocation:
        return replace(location, source=hosts.get(location.source, location.source))

    return replace(
        job,
        location=move(job.location),
        settings=tuple(replace(setting, location=move(setting.location)) for setting in job.settings),
        variables=tuple(replace(setting, location=move(setting.location)) for setting in job.variables),
        unknown_settings=tuple(replace(item, location=move(item.location)) for item in job.unknown_settings),
    )


def _only_renamed(job: Job) -> Job:
    """Return the job with only the unknown settings that have a new name; all others stay unchanged."""
    renamed = tuple(unknown for unknown in job.unknown_settings if unknown.now and unknown.proof)
    return replace(job, unknown_settings=renamed)


def remember_secrets(launch: Launch, job: Job) -> None:
    """Record the secrets among the variables and settings of a launch, so that no output shows them."""
    remember_settings(launch.environ)
    sources = _sources_by_name(launch)
    for setting in (*job.settings, *launch.entries):
        source = sources.get(setting.location.source)
        spelling = source.text[slice(*setting.value_span)] if source and setting.value_span[0] >= 0 else ""
        remember_setting(setting.name, setting.value, spelling)


def add_model(snapshot: Snapshot, name: str, read_model: ReadModel) -> Snapshot:
    """Return the snapshot with the model of a launch, if it has none yet."""
    if isinstance(snapshot.model, Known):
        return snapshot
    if not name or any(character in name for character in "$`{}\n"):
        return replace(snapshot, model=Absent("the launch names no model that is known before it runs"))
    return replace(snapshot, model=read_model(name))


def _unknown_model_remarks(model: Fact[Model]) -> tuple[str, ...]:
    """Return a remark if the model is unknown, because checks that need it were not made."""
    if isinstance(model, Known):
        return ()
    return (f"the model: {model.reason}; its heads, windows and layers were not judged (--model FOLDER)",)


def _collect_sets(findings: Iterable[Finding], settled: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that fix the findings; settled values are kept, and the most severe finding decides.

    Only the first fix of a finding is used, and for a warning only if it does not change what is trained.
    """
    sets = dict(settled)
    for finding in findings:
        fix = finding.fixes[0] if finding.fixes else None
        if fix is None or not fix.sets or (finding.severity != "error" and fix.safety != "safe"):
            continue
        if not any(sets.get(key, value) != value for key, value in fix.sets.items()):
            sets.update(fix.sets)
    return sets


def reread_launch(found_launch: FoundLaunch, edits: tuple[Edit, ...], read_file: ReadFile) -> Launch | None:
    """Return the launch as read after the edits; None if nothing remains or nothing was edited."""
    if not edits:
        return None
    texts = _edited_texts(found_launch.launch, edits)

    def read(path: str) -> Source | None:
        source = read_file(path)
        return replace(source, text=texts.get(source.name, source.text)) if source is not None else None

    given = found_launch.given
    corrected = replace(given, text=texts.get(given.name, given.text))
    reread_launches = launches.find_launches(corrected, read, _starts_training)
    return reread_launches[found_launch.number] if found_launch.number < len(reread_launches) else None


def _edited_texts(launch: Launch, edits: tuple[Edit, ...]) -> dict[str, str]:
    """Return the text of each source of a launch after the edits."""
    return {
        name: editing.apply_edits(source, [edit for edit in edits if edit.source == name])
        for name, source in _sources_by_name(launch).items()
    }


def _sources_by_name(launch: Launch) -> dict[str, Source]:
    """Return the files that a launch was read from, by name: its own source, and the configuration file it names."""
    return {source.name: source for source in (launch.source, launch.file) if source is not None}


def format_launch_diff(launch: Launch, edits: tuple[Edit, ...]) -> str:
    """Return the changes of the edits to the sources of a launch, as unified diffs."""
    texts = _edited_texts(launch, edits)
    return "".join(editing.format_diff(source, texts[name]) for name, source in _sources_by_name(launch).items())


def _complete_fixes(finding: Finding, found_launch: FoundLaunch, job: Job, corrected_report: Report | None) -> Finding:
    """Return the finding with fixes in the framework's option names, marked proven if the corrected launch lost it."""
    is_gone = corrected_report is not None and not any(
        (finding.code, finding.subject, finding.message) == (other.code, other.subject, other.message)
        for other in corrected_report.findings
    )
    fixes = []
    for number, fix in enumerate(finding.fixes):
        fix = variables.place_fix(fix, job)
        if fix.sets and not fix.text:
            fix = replace(fix, text=_format_fix(fix, found_launch, job))
        elif not fix.sets and finding.code == "ATN440" and is_gone:
            fix = replace(fix, proven=PROOF)
        if is_gone and fix.sets and number == 0:
            fix = replace(fix, proven=PROOF)
        fixes.append(fix)
    return replace(finding, fixes=tuple(fixes))


def _adds_problem(before: Iterable[Finding], after: Iterable[Finding]) -> bool:
    """Return whether any rule has more errors and warnings after the change than before."""
    counts = Counter(finding.code for finding in before)
    added = Counter(finding.code for finding in after if finding.severity != "note")
    return any(count > counts[code] for code, count in added.items())


PROOF = "linting the corrected launch no longer reports it"


def _format_fix(fix: Fix, found_launch: FoundLaunch, job: Job) -> str:
    """Return the settings of a fix as this version of the framework writes them."""
    launch = found_launch.launch
    edits = found_launch.framework.write(launch, replace(job, unknown_settings=()), fix.sets)
    texts = [" ".join(_edited_setting_text(edit, launch, job).replace("\\\n", " ").split()) for edit in edits]
    removals = [edit for edit in edits if not edit.text.strip()]
    lines = [*(text for text in texts if text), *_removal_comments(launch, removals)]
    return "\n".join(lines) or "\n".join(_format_unwritten(launch, key, value) for key, value in fix.sets.items())


def _edited_setting_text(edit: Edit, launch: Launch, job: Job) -> str:
    """Return the text of an edit; if it replaces a value, the setting with its new value."""
    source = _sources_by_name(launch).get(edit.source, launch.source)
    for setting in (*job.settings, *launch.entries):
        if setting.location.source == edit.source and setting.value_span == edit.span and edit.text:
            text = source.text
            before, after = text[setting.span[0] : edit.span[0]], text[edit.span[1] : setting.span[1]]
            return before + edit.text + after
    return edit.text


def _removal_comments(launch: Launch, edits: Iterable[Edit]) -> Iterator[str]:
    sources = _sources_by_name(launch)
    for edit in edits:
        text = sources[edit.source].text if edit.source in sources else ""
        removed = " ".join(text[slice(*edit.span)].replace("\\\n", " ").split())
        if removed:
            yield f"# without {removed}"


SPELLED_OUT = {"ring_size": "the size of context or sequence parallelism", "attn_implementation": "the attention"}


def _format_unwritten(launch: Launch, key: str, value: str) -> str:
    """Return a setting that the launch's sources do not contain, in the syntax of accelerate's file or as text."""
    for entry in launch.launcher_entries if key == "ring_size" else ():
        name = entry.name.rpartition(".")[2]
        if name.endswith(("cp_size", "sp_size")):
            return f"{name}: {value}  # in {entry.location.source}"
    words = SPELLED_OUT.get(key, key.replace("_", " ") if key in KEYS else "")
    return f"{words}: {value}, as the job sets it" if words else f"{key}={value}"


def _make_unknown_findings(source: Source, evidence: str, read_file: ReadFile) -> Iterator[Finding]:
    """Yield the note that a source was not linted, and what bash refuses of it if it is a launcher's command.

    An unreadable file that it names may be the reason.
    """
    started = launches.find_launches(source, read_file, _starts_training)
    notes = (note for launch in started for note in launch.notes)
    unreadable = dict.fromkeys(note for note in notes if open_ends.COULD_NOT_BE_READ in note)
    missing = next(filter(None, (find_missing_script(launch, read_file) for launch in started)), "")
    reason = f"{missing}: no such file" if missing else "no known trainer was recognised"
    faults = (fault for launch in started if launch.launchers for fault in find_script_faults(launch))
    for fault in itertools.islice((fault for fault in faults if fault.consequence == "refuses"), 1):
        fix = Fix("what to do", "manual", fault.advice)
        problem = Problem(fault.message, fault.evidence, (fix,), source.name, locations=(fault.location,))
        yield engine.make_finding_by_code("ATN441", problem)
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
