"""Turns the arguments of `attncheck lint` into sources, a snapshot and readers of files and models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from attncheck.core.errors import AttncheckError, BadUsage
from attncheck.core.facts import Fact
from attncheck.core.launch import COMMAND, Source
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.target import apply_target, forget_environment, has_stack, parse_target
from attncheck.lint import launches

if TYPE_CHECKING:
    from attncheck.doctor.probes.collect import Lane
    from attncheck.doctor.probes.interpreter import Interpreter


def read_sources(names: tuple[str, ...], command: tuple[str, ...] | None) -> tuple[Source, ...]:
    """Return the sources to lint: files, and the command that stands after `--`. Raises `BadUsage`."""
    if command is not None and not command:
        raise BadUsage("nothing stands after --: give the command that starts the job")
    if not names and command is None:
        raise BadUsage(
            "give a launch script, a configuration file, or the command after --: attncheck lint -- torchrun …"
        )
    files = [launches.read_source(name) for name in dict.fromkeys(names)]
    return (*files, *([launches.source_from_argv(command)] if command else []))


def parse_framework_version(text: str | None) -> str:
    """Return the requested version of the framework, "" where none was requested. Raises `BadUsage`."""
    if text is None:
        return ""
    try:
        return str(Version(text))
    except InvalidVersion:
        raise BadUsage(f"--framework-version {text!r} is no version") from None


def collect_lint_snapshot(
    interpreter: Interpreter, target: str | None, seconds: float, report_progress: Callable[[str], None]
) -> Snapshot:
    """Return the snapshot to judge launches by: files and the driver here, or the target instead.

    An environment that holds nothing of a training stack (a pre-commit hook's, pipx's) is not the job's, unless the
    user names it: what stands beside attncheck there is no witness of what the job will have.
    """
    from attncheck.doctor.probes.collect import collect_snapshot

    parsed_target = parse_target(target) if target is not None else None
    lanes: tuple[Lane, ...] = ("static",) if parsed_target else ("static", "device")
    snapshot = collect_snapshot(interpreter.python, lanes, None, None, seconds, report_progress, interpreter.selection)
    if parsed_target:
        return apply_target(snapshot, parsed_target)
    is_named = interpreter.selection.selected_by == "--python"
    return snapshot if is_named or has_stack(snapshot) else forget_environment(snapshot)


def make_file_reader(sources: tuple[Source, ...]) -> Callable[[str], Source | None]:
    """Return a reader of the files that launches name: as given, else beside the script that names them."""
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


def make_model_reader(online: bool) -> Callable[[str], Fact[Model]]:
    """Return a reader of models' configurations: folders and the local cache, the Hub too where that is allowed."""

    @functools.cache
    def read_model(name: str) -> Fact[Model]:
        from attncheck.doctor.probes import model

        if not online or Path(name).exists():
            return model.read_model(name)
        from attncheck.doctor.probes import hub_download

        return model.read_model(name, hub_download.fetch_config_files(name))

    return read_model
