"""Rewrites launches for other rooms: reads one, changes settings in its framework's names, writes it as a command."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from attncheck.core.io.errors import Unanswered
from attncheck.core.job import Job, UnknownSetting
from attncheck.core.launch import Edit, Launch, ReadFile, Source, Word
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.target import with_version
from attncheck.lint import frameworks, proof
from attncheck.lint.context import ReadModel
from attncheck.lint.correcting import format_launch_diff, reread_launch
from attncheck.lint.frameworks import Framework
from attncheck.lint.judging import add_model, remember_secrets
from attncheck.lint.pasting import PastedCommand, format_command
from attncheck.lint.programs.reader import ProgramReader, make_program_reader
from attncheck.lint.recognition import FoundLaunch, find_framework_launches, find_launches
from attncheck.lint.release import ChosenRelease, choose_release, may_be_met
from attncheck.lint.stated_versions import OWN_FILES, find_stated_versions, is_own_source


@dataclass(frozen=True)
class ReadLaunch:
    """A launch, and the job that its framework's release derives from it."""

    recognised: FoundLaunch
    job: Job
    snapshot: Snapshot  # includes the launch's model
    read_file: ReadFile
    corrections: tuple[UnknownSetting, ...] = ()  # names that the running program refuses, each with any new name
    origin: str = ""  # where the command is from, if the given file does not have it as it is


def read_launches(
    snapshot: Snapshot,
    source: Source,
    read_model: ReadModel,
    read_file: ReadFile,
    own_loops: bool = True,
) -> list[ReadLaunch]:
    """Return the launches of a source, as read by the installed release of their framework, or else the newest.

    With `own_loops`, launches of scripts with their own training loop are included if lint knows no trainer in the
    source.
    """
    known = frameworks.load_all() if own_loops else frameworks.load()
    programs = make_program_reader(snapshot)
    launches = []
    for found_launch in _find_launches(source, known, read_file):
        recognised = _recognise_by_program(found_launch, known, programs)
        framework, launch = recognised.framework, recognised.launch
        release, job, model_snapshot = _read_in_release(recognised, snapshot, read_model)
        entries = framework.entries(launch)
        program = programs.read(launch, entries, framework.distribution, release.version, release.is_known)
        recognised = recognised._replace(launch=replace(launch, program=program))
        own_snapshot = _use_own_release(snapshot, recognised)
        if own_snapshot is not snapshot:
            release, job, model_snapshot = _read_in_release(recognised, own_snapshot, read_model)
        remember_secrets(launch, job)
        corrections = tuple(_iter_corrections(recognised, job, release))
        launches.append(ReadLaunch(recognised, job, model_snapshot, read_file, corrections))
    return launches


def _read_in_release(
    recognised: FoundLaunch, snapshot: Snapshot, read_model: ReadModel
) -> tuple[ChosenRelease, Job, Snapshot]:
    """Return the release of a launch's framework, the job that it derives, and the snapshot with the launch's model."""
    framework, launch = recognised.framework, recognised.launch
    model_snapshot = add_model(snapshot, framework.model(launch), read_model)
    read_as = partial(_read_job, framework, launch, model_snapshot)
    release = choose_release(framework, read_as, snapshot, "", partial(may_be_met, snapshot))
    return release, read_as(release.version), model_snapshot


def find_vendored(launch: Launch, framework: str) -> tuple[str, str] | None:
    """Return the folder and the name of a package next to a launch that runs instead of an installed one, or None.

    The program's path starts in the launch's folder, or in one above its file.
    """
    if launch.program is None or "site-packages" in launch.program.path:
        return None
    above = (folder for folder in Path(launch.source.name).absolute().parents if folder.is_relative_to(Path.cwd()))
    paths = [str(place.absolute() / launch.program.path) for place in (Path(launch.folder), *above)]
    existing = next(filter(os.path.isfile, paths), None)
    if existing is None:
        return None
    path = os.path.normpath(existing)
    module = launch.words[0].text if launch.words else ""
    root = path.removesuffix(f"/{module.replace('.', '/')}.py")
    if root != path:  # `python -m` needs no __init__.py
        return root, module.partition(".")[0]
    folder = inner = os.path.dirname(path)
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    if folder == inner:  # a script next to the package
        inner = os.path.join(folder, framework)
    if not os.path.isfile(os.path.join(inner, "__init__.py")):
        return None
    return folder, os.path.relpath(inner, folder).split(os.sep)[0]


def _use_own_release(snapshot: Snapshot, recognised: FoundLaunch) -> Snapshot:
    """Return the snapshot with the release of the framework's source next to the launch, known or not, if that runs."""
    name = recognised.framework.distribution
    vendored = find_vendored(recognised.launch, recognised.framework.name)
    packages = {file.partition("/")[0] for file in OWN_FILES.get(name, ()) if "/" in file}
    if vendored is None or not any(os.path.isdir(os.path.join(vendored[0], package)) for package in packages):
        return snapshot
    stated = find_stated_versions(recognised.launch.source)
    is_own = is_own_source(name, stated.files.get(name, ""))
    return with_version(snapshot, name, stated.versions[name] if is_own else "")


def _iter_corrections(recognised: FoundLaunch, job: Job, release: ChosenRelease) -> Iterator[UnknownSetting]:
    """Yield the unknown names that are proven to be refused, or belong to the framework's own program or a file.

    If the source was not found, the release decides; if that has gaps, only renamed names are known to be refused.
    """
    launch, own_programs = recognised.launch, recognised.framework.own_programs
    is_own = release.is_known and (not launch.words or proof.starts_one_of(own_programs, launch))
    for unknown in proof.settle_names(job, launch, own_programs, release).unknown_settings:
        decides = launch.program is None or not launch.words  # all keys of a file are the framework's
        if unknown.proof or (is_own and (unknown.now or (decides and not unknown.dropped))):
            yield replace(unknown, near="")


def _find_launches(source: Source, known: tuple[Framework, ...], read_file: ReadFile) -> list[FoundLaunch]:
    """Return the launches of trainers that lint knows, or else those of scripts with their own loop."""
    launches = list(find_framework_launches(source, find_launches(source, read_file), "", known))
    return [launch for launch in launches if launch.framework.is_linted] or launches


def _recognise_by_program(
    recognised: FoundLaunch, known: tuple[Framework, ...], programs: ProgramReader
) -> FoundLaunch:
    """Return a launch with the framework that its script fits, because the script may only share a framework's name."""
    framework, launch = recognised.framework, recognised.launch
    if not framework.style:
        return recognised
    program = programs.read(launch, framework.entries(launch), framework.distribution, framework.newest)
    if program is None or not program.is_complete or program.style == framework.style:
        return recognised
    later = (other for other in known[known.index(framework) + 1 :] if other.trainer(launch))
    return recognised._replace(framework=next(later, framework))


def _read_job(framework: Framework, launch: Launch, snapshot: Snapshot, version: str) -> Job:
    return framework.read(launch, version, snapshot)


@dataclass(frozen=True)
class Rewritten:
    """A launch after edits, as read again, and the changes."""

    launch: Launch
    diff: str


def rewrite(
    read: ReadLaunch,
    sets: Mapping[str, str],
    more_edits: tuple[Edit, ...] = (),
    corrections: tuple[UnknownSetting, ...] = (),
) -> Rewritten:
    """Return a launch with changed settings: `Key`s or the framework's own names. Raises `Unanswered`."""
    original = read.recognised.launch
    job = replace(read.job, unknown_settings=corrections)
    try:
        edits = (*read.recognised.framework.write(original, job, sets), *more_edits)
        rewritten = reread_launch(read.recognised, edits, read.read_file) if edits else original
    except ValueError as error:
        raise Unanswered(f"{read.job.location}: the launch cannot be changed in place: {error}") from None
    if rewritten is None:
        raise Unanswered(f"{read.job.location}: the launch can no longer be read after the change")
    return Rewritten(replace(rewritten, program=original.program), format_launch_diff(original, edits))


def format_with_files(launch: Launch, folder: str) -> tuple[PastedCommand, Mapping[str, str]]:
    """Return a launch as a command that reads its configuration file from `folder`, and that file's path and text."""
    if launch.file is None or launch.file is launch.source:
        return format_command(launch), {}
    name = launch.file.name
    copy = os.path.join(folder, os.path.basename(name))
    whole = tuple(_name_copy(word, name, copy) for word in launch.whole)
    return format_command(replace(launch, whole=whole)), {copy: launch.file.text}


def _name_copy(word: Word, name: str, copy: str) -> Word:
    before, _, value = word.text.rpartition("=")
    if os.path.abspath(value or word.text) != os.path.abspath(name) and not name.endswith(f"/{value}"):
        return word
    return replace(word, text=f"{before}={copy}" if before else copy, shell="")
