"""One launch and its corrections, judged by the release, the program and the model that it runs with."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

from attncheck.core.facts import Absent, Known, Unreadable
from attncheck.core.findings import by_severity
from attncheck.core.io.secrets import remember_setting, remember_settings
from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, ReadFile, SourceLocation
from attncheck.core.program import Program
from attncheck.core.records import replace
from attncheck.core.report import Report
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.profile import needs_of_job
from attncheck.doctor.target import with_version
from attncheck.lint import deepspeed_config, open_ends, proof, unknown_values, variables
from attncheck.lint.attention_settings import add_attention_problems
from attncheck.lint.clashes import add_clashes
from attncheck.lint.context import LintContext, ReadModel
from attncheck.lint.decided_conditions import add_decided_conditions
from attncheck.lint.fields.names import bound_transformers
from attncheck.lint.idle_programs import find_idle_program
from attncheck.lint.lost_words import add_lost_words, leave_out_missing_values
from attncheck.lint.missing_files import find_missing_files
from attncheck.lint.own_attention import add_fixed_arguments, add_own_attention
from attncheck.lint.programs.paths import may_contain, may_name
from attncheck.lint.programs.places import find_tree
from attncheck.lint.programs.records import Origin
from attncheck.lint.recognition import FoundLaunch
from attncheck.lint.release import ChosenRelease, choose_release
from attncheck.lint.stated_versions import is_own_source
from attncheck.lint.training_scripts import find_missing_script

OTHER_DEVICES = re.compile(r"^(?:ASCEND|HCCL)_|(?:^|_)NPU_")  # of machines without GPUs: PYTORCH_NPU_ALLOC_CONF
CHUNKED = "block_size"  # to which run_clm.py and programs like it cut all rows
Jobs = Callable[[], Iterable[Job]]


@dataclass(frozen=True)
class LaunchJudge:
    """Judges a launch of a source, as written and corrected.

    `original` is the snapshot of the examined environment with the launch's own scripts.
    """

    recognised: FoundLaunch
    original: Snapshot
    context: LintContext
    read_file: ReadFile

    @cached_property
    def snapshot(self) -> Snapshot:
        """Return the snapshot, with the requested version of the framework."""
        distribution, version = self.recognised.framework.distribution, self.context.request.version
        if distribution and version and isinstance(self.original.package(distribution), Unreadable):
            return with_version(self.original, distribution, version)
        return self.original

    @cached_property
    def model_snapshot(self) -> Snapshot:
        """Return the snapshot with the launch's model."""
        name = self.context.request.model or self.recognised.framework.model(self.recognised.launch)
        return add_model(self.snapshot, name, self.context.read_model)

    @cached_property
    def read_as_written(self) -> Callable[[str], Job]:
        """Return what reads the launch as a version of its framework does."""
        return cache(
            lambda version: self.recognised.framework.read(self.recognised.launch, version, self.model_snapshot)
        )

    @cached_property
    def starts_own(self) -> bool:
        """Return whether the launch starts the framework's own program."""
        return proof.starts_one_of(self.recognised.framework.own_programs, self.recognised.launch)

    @cached_property
    def release(self) -> ChosenRelease:
        """Return the release of the framework as which the launch is read."""
        may_be_fork = bool(self.recognised.launch.words) and not self.starts_own
        return choose_release(
            self.recognised.framework,
            self.read_as_written,
            self.snapshot,
            self.context.request.version,
            self.context.may_be_met,
            may_be_fork,
        )

    @cached_property
    def program(self) -> Program | None:
        """Return the names that the started program accepts, if its source was recognised."""
        framework, launch, release = self.recognised.framework, self.recognised.launch, self.release
        return self.context.programs.read(
            launch, framework.entries(launch), framework.distribution, release.version, release.is_known
        )

    def is_read(self) -> bool:
        """Return whether the source of the launch's program, or of the framework's own, was read."""
        return self.program is not None

    @cached_property
    def origin(self) -> Origin | None:
        """Return where the started script is from, if the names that it accepts are not known."""
        if self.program is not None:
            return None
        distribution = self.recognised.framework.distribution
        return self.context.programs.read_script(self.recognised.launch, distribution, self.release.version)

    @cached_property
    def missing_script(self) -> str:
        """Return the started script if it does not exist here; "" otherwise."""
        return find_missing_script(self.recognised.launch, self.read_file) if self.program is None else ""

    @cached_property
    def lacking(self) -> Path | None:
        """Return the package that the launch's module belongs to and that does not have it."""
        return self.context.programs.find_package_without(self.recognised.launch) if self.missing_script else None

    def judge(self, launch: Launch) -> tuple[Job, Report]:
        """Return the job of a launch, as written or corrected, and the report on it."""
        launch = launch if self.program is None else replace(launch, program=self.program)
        collected = self._collect(launch, self.release.list_others)
        job = self._settle(collected, launch)
        collected = deepspeed_config.settle_deepspeed(collected, launch, self.starts_own)
        alternatives = unknown_values.list_alternatives(launch)
        others = [
            deepspeed_config.settle_deepspeed(self._collect(other), other, self.starts_own) for other in alternatives
        ]
        job = replace(job, unknown=unknown_values.find_unknown_parts(job, others, launch))
        job = self._complete(job, launch)
        remember_secrets(launch, job)
        job = variables.with_variables(job, launch)
        report = self._run_rules(job, launch, self.context.request.select)
        others = [unknown_values.align(other, collected, job) for other in others]
        distinct = unknown_values.drop_duplicates(job, [*others, *unknown_values.vary_unknown_parts(job)])
        # the others cannot remove a finding; a crash's subject is the rule
        found_rules = sorted({item.subject if item.code == engine.CRASH else item.code for item in report.findings})
        listed = [
            partial(lambda other: self._run_rules(other, launch, tuple(found_rules)).findings, other)
            for other in distinct
        ]
        return job, replace(report, findings=by_severity(unknown_values.keep_certain(report.findings, listed)))

    def _collect(self, launch: Launch, versions: Callable[[], Iterable[str]] = tuple) -> Job:
        """Return the job of a launch with the problems of its settings that it has in all of `versions` too."""
        read_as = cache(lambda version: self.recognised.framework.read(launch, version, self.model_snapshot))
        read = self.read_as_written if launch is self.recognised.launch else read_as
        job = read(self.release.version)

        def read_others() -> Iterator[Job]:
            return map(read, versions())

        job = proof.leave_out_removed_checks(proof.keep_certain_problems(job, launch, read_others), launch)
        job = add_attention_problems(add_fixed_arguments(job, launch), launch, self.model_snapshot)
        return add_clashes(add_own_attention(job, launch, self.read_file), launch, self.model_snapshot, read_others)

    def _settle(self, job: Job, launch: Launch) -> Job:
        """Return the job with the names and problems that are proven, as severe as their evidence allows."""
        release, starts_own = self.release, self.starts_own
        job = proof.settle_names(add_lost_words(job, launch), launch, self.recognised.framework.own_programs, release)
        job = leave_out_missing_values(job, launch)
        knows_transformers = isinstance(self.snapshot.version("transformers"), Known)
        stated_in = self.context.stated.files
        job = proof.leave_out_unproven(job, release, stated_in, knows_transformers, starts_own, self.program)
        job = proof.leave_out_set_names(job, launch)
        job = deepspeed_config.settle_deepspeed(job, launch, starts_own)
        job = open_ends.soften_problems(add_decided_conditions(job, launch, self.origin), launch)
        missing = find_missing_files(job, launch, deepspeed_config.is_trainers_setting(launch, starts_own))
        job = replace(job, problems=(*job.problems, *missing, *find_idle_program(launch)))
        if self.lacking is not None:  # nothing reads its options
            job = replace(job, problems=(_refuse_module(launch, self.lacking),), unknown_settings=())
        return job

    def _complete(self, job: Job, launch: Launch) -> Job:
        """Return the job with its remarks, the versions that it states, and what its program makes."""
        request, stated = self.context.request, self.context.stated
        distribution = self.recognised.framework.distribution
        is_own = not request.version and is_own_source(distribution, stated.files.get(distribution, ""))
        names = [setting.name.lstrip("-").replace("-", "_") for setting in job.settings]
        pins = (*stated.list_ranges(), *bound_transformers(names))
        job = replace(
            job,
            remarks=(*launch.notes, *self._list_remarks(), *job.remarks, *_unknown_model_remarks(self.model_snapshot)),
            gpus=Absent("the launch sets variables of NPUs") if _uses_other_devices(launch) else job.gpus,
            stated_by=stated.describe("" if request.version else distribution, "transformers", "torch"),
            pins=pins,
            plain_forwards=launch.made.forwards,
            has_plain_forward=launch.made.is_plain,
            has_equal_rows=launch.made.has_equal_rows or (launch.trainers is None and CHUNKED in names),
            head=launch.made.head,
        )
        is_guess = not self.release.is_known and not isinstance(self.snapshot.package(distribution), Absent)
        if is_own or is_guess:  # the tree's requirements count; a fix also fits a release that is a guess
            job = replace(job, requires=(), pins=job.pins if is_own else (*job.pins, *job.requires))
        return job

    def _list_remarks(self) -> Iterator[str]:
        """Yield the remarks on the script and the release whose names were used."""
        starts_module = any(word.text == "--module" for word in self.recognised.launch.launcher_words)
        if self.missing_script and (self.lacking is not None or not starts_module):  # else: an installed package's
            yield f"{self.missing_script}: no such file here, so its options were read by their names"
        if self.release.remark:
            yield self.release.remark

    def _run_rules(self, job: Job, launch: Launch, select: tuple[str, ...]) -> Report:
        """Return the report of the rules on a job, with findings as severe as what the launch leaves open allows."""
        located_job = locate_in_host(job, launch)
        snapshot = replace(self.model_snapshot, job=Known(located_job))
        job_snapshot = variables.set_environment(snapshot, launch, located_job)
        ignore, memory = self.context.request.ignore, self.context.memory
        report = engine.run_rules(job_snapshot, needs_of_job(job), select, ignore, memory)
        is_named = partial(_is_named, launch)
        softened = (open_ends.soften_finding(finding, located_job, launch, is_named) for finding in report.findings)
        return replace(report, findings=tuple(finding for finding in softened if finding is not None))


def _is_named(launch: Launch) -> bool:
    """Return whether something in the tree may name the launch's file, or no program is there to read it."""
    top = find_tree(launch)
    return may_name(top, os.path.basename(launch.source.name)) or not may_contain(top, "import ")


def _uses_other_devices(launch: Launch) -> bool:
    return any(OTHER_DEVICES.search(variable) for variable in launch.environ)


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


def locate_in_host(job: Job, launch: Launch) -> Job:
    """Return the job with places in a file that a script writes mapped to places in the script."""
    hosts = {source.name: source.host for source in launch.sources.values() if source.host}
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
        problems=tuple(replace(item, location=move(item.location)) for item in job.problems),
    )


def remember_secrets(launch: Launch, job: Job) -> None:
    """Record the secrets among the variables and settings of a launch, so that no output shows them."""
    remember_settings(launch.environ)
    sources = launch.sources
    for setting in (*job.settings, *launch.entries):
        source = sources.get(setting.location.source)
        spelling = source.text[slice(*setting.value_span)] if source and setting.value_span[0] >= 0 else ""
        remember_setting(setting.name, setting.value, spelling)


def add_model(snapshot: Snapshot, name: str, read_model: ReadModel) -> Snapshot:
    """Return the snapshot with the model of a launch, if it has none yet."""
    if isinstance(snapshot.model, Known):
        return snapshot
    if not name or any(character in name for character in "$`{}<>\n"):
        return replace(snapshot, model=Absent("the launch names no model that is known before it runs"))
    return replace(snapshot, model=read_model(name))


def _unknown_model_remarks(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a remark if the model is unknown, because checks that need it were not made."""
    if isinstance(snapshot.model, Known):
        return ()
    return (f"the model: {snapshot.model.reason}; its heads, windows and layers were not judged (--model FOLDER)",)
