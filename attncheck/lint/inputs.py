"""Turns the arguments of `attncheck lint` into sources, a snapshot and readers of files and models."""

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from packaging.version import InvalidVersion, Version

from attncheck.core.environment import PackageGaps
from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.io.errors import AttncheckError, BadUsage
from attncheck.core.launch import COMMAND, Source
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.target import (
    NOT_NAMED,
    apply_target,
    forget_environment,
    forget_packages,
    has_stack,
    parse_target,
)
from attncheck.lint import folders, launches
from attncheck.lint.programs import places

if TYPE_CHECKING:
    from attncheck.doctor.probes.collect import Lane
    from attncheck.doctor.probes.interpreter import Interpreter


NOT_HERE = "a package missing here may be installed where the job runs, as this machine has no GPU (--target, --python)"


class Inputs(NamedTuple):
    """The input of lint: named sources, files found below folders, and files skipped there."""

    sources: tuple[Source, ...] = ()
    below_folders: tuple[Source, ...] = ()
    left_out: tuple[str, ...] = ()


def read_inputs(names: tuple[str, ...], command: tuple[str, ...] | None) -> Inputs:
    """Return what to lint: files, files below folders, and the command after `--`. Raises `BadUsage`, `Unanswered`."""
    folder_names = [name for name in dict.fromkeys(names) if os.path.isdir(name)]
    other_names = tuple(name for name in names if name not in folder_names)
    sources = read_sources(other_names, command) if other_names or command is not None or not folder_names else ()
    named = {os.path.normpath(source.name) for source in sources}
    below: list[Source] = []
    left_out: list[str] = []
    for folder in folder_names:
        files = folders.find_files(folder)
        left_out += files.left_out
        for path in files.paths:
            if path in named:
                continue
            named.add(path)
            try:
                below.append(launches.read_source(path, pipes=False))
            except AttncheckError as error:
                left_out.append(str(error))
    return Inputs(sources, tuple(below), tuple(left_out))


def read_sources(names: tuple[str, ...], command: tuple[str, ...] | None) -> tuple[Source, ...]:
    """Return the sources to lint: files, and the command after `--`. Raises `BadUsage`."""
    if command is not None and not command:
        raise BadUsage("there is no command after --: give the command that starts the job")
    if not names and command is None:
        raise BadUsage(
            "give a launch script, a configuration file, or the command after --: attncheck lint -- torchrun …"
        )
    files = [launches.read_source(name) for name in dict.fromkeys(names)]
    return (*files, *([launches.source_from_argv(command)] if command else []))


def parse_framework_version(text: str | None) -> str:
    """Return the requested version of the framework; "" if none was requested. Raises `BadUsage`."""
    if text is None:
        return ""
    try:
        return str(Version(text))
    except InvalidVersion:
        raise BadUsage(f"--framework-version {text!r} is not a version") from None


def collect_lint_snapshot(
    interpreter: "Interpreter", target: str | None, seconds: float, report_progress: Callable[[str], None]
) -> Snapshot:
    """Return the snapshot to judge launches by: files and the driver here, or the target instead.

    An environment without a training stack (a pre-commit hook's, pipx's), or without a torch for the target's GPUs, is
    not the job's, unless the user names it. Packages next to attncheck then show nothing about the job.
    """
    from attncheck.doctor.experiments.run import find_kept_experiments
    from attncheck.doctor.probes.collect import collect_snapshot

    parsed_target = parse_target(target) if target is not None else None
    lanes: tuple[Lane, ...] = ("static",) if parsed_target else ("static", "device")
    has_links = parsed_target is None  # a target's are not known
    selection = interpreter.selection
    snapshot = collect_snapshot(
        interpreter.python, lanes, None, None, seconds, report_progress, selection, links=has_links
    )
    is_named = interpreter.selection.selected_by == "--python"
    if not (parsed_target and (parsed_target.versions or parsed_target.files)):
        snapshot = replace(snapshot, experiments=find_kept_experiments(snapshot))
    if parsed_target:
        torch = snapshot.torch.value if isinstance(snapshot.torch, Known) else None
        is_for_cpu = torch is None or (isinstance(torch.cuda, Absent) and isinstance(torch.hip, Absent))
        is_other = not is_named and bool(parsed_target.gpus_per_node) and is_for_cpu
        return apply_target(forget_packages(snapshot, NOT_NAMED) if is_other else snapshot, parsed_target)
    if not is_named and not has_stack(snapshot):
        return forget_environment(snapshot)
    return snapshot if is_named or _has_gpu(snapshot) else replace(snapshot, gaps=PackageGaps(NOT_HERE))


def _has_gpu(snapshot: Snapshot) -> bool:
    return isinstance(snapshot.devices, Known) and bool(snapshot.devices.value)


def choose_stated(interpreter: "Interpreter", target: str | None, snapshot: Snapshot) -> Literal["", "missing", "all"]:
    """Return how versions stated in a tree are used; with a target, only for packages that it does not name.

    Without a target they represent the environment, unless `--python` names it or this machine has a GPU for training.
    """
    if interpreter.selection.selected_by == "--python":
        return ""
    if target is not None:
        return "missing"
    return "" if _has_gpu(snapshot) else "all"


def list_named(target: str | None) -> frozenset[str]:
    """Return the names of the packages to which a target, or one of its files, gives a version."""
    parsed = parse_target(target or "")
    return frozenset((*parsed.versions, *(name for file in parsed.files for name in file.versions)))


def make_file_reader(sources: tuple[Source, ...]) -> Callable[[str], Source | None]:
    """Return a reader of files that launches name: at the given path, or else next to the script that names them."""
    sources_by_name = {source.name: source for source in sources}
    folders = [Path(), *(Path(source.name).parent for source in sources if source.name not in (COMMAND, "-"))]

    @functools.cache
    def read_file(name: str) -> Source | None:
        if name in sources_by_name:
            return sources_by_name[name]
        for folder in dict.fromkeys(folders):
            try:
                return launches.read_source(str(folder / name), pipes=False)
            except AttncheckError:
                continue
        return None

    return read_file


def make_readers(inputs: Inputs) -> Callable[[Source], Callable[[str], Source | None]]:
    """Return a function that makes the reader of a source.

    The reader looks at the given path, next to the source, and above it up to its repository. A file is read once,
    however many sources name it.
    """
    sources_by_name = {os.path.normpath(source.name): source for source in (*inputs.sources, *inputs.below_folders)}

    @functools.cache
    def read_path(path: str) -> Source | None:
        if path in sources_by_name:
            return sources_by_name[path]
        try:
            return launches.read_source(path, pipes=False)
        except AttncheckError:
            return None

    @functools.cache
    def list_folders(folder: str) -> tuple[str, ...]:
        above = (os.path.relpath(path) for path in places.folders_above(Path(folder).absolute()))
        return tuple(dict.fromkeys(("", folder, *above)))

    def make_reader(source: Source) -> Callable[[str], Source | None]:
        parent = os.path.dirname(source.name) if source.name not in (COMMAND, "-") else ""

        def read_file(name: str) -> Source | None:
            folder_names = list_folders(parent)
            names = places.list_paths(name)
            paths = (os.path.normpath(os.path.join(folder, path)) for path in names for folder in folder_names)
            return next((file for path in paths if (file := read_path(path)) is not None), None)

        return read_file

    return make_reader


def make_model_reader(online: bool) -> Callable[[str], Fact[Model]]:
    """Return a reader of model configurations: from folders, the local cache, and the Hub if that is allowed."""

    @functools.cache
    def read_model(name: str) -> Fact[Model]:
        from attncheck.doctor.probes import model

        if not online or Path(name).exists():
            return model.read_model(name)
        from attncheck.doctor.probes import hub_download

        return model.read_model(name, hub_download.fetch_config_files(name))

    return read_model
