"""Turns what `attncheck lint` was given into sources, a snapshot and readers of files and models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from packaging.version import InvalidVersion, Version

from attncheck.core.errors import AttncheckError, BadUsage
from attncheck.core.facts import Fact
from attncheck.core.launch import COMMAND, Source
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import target as targets
from attncheck.lint import launches


def sources(names: tuple[str, ...], command: tuple[str, ...] | None) -> tuple[Source, ...]:
    """Return what is to be read: files, and the command that stands after `--`. Raises `BadUsage`."""
    if command is not None and not command:
        raise BadUsage("nothing stands after --: give the command that starts the job")
    if not names and command is None:
        raise BadUsage(
            "give a launch script, a configuration file, or the command after --: attncheck lint -- torchrun …"
        )
    found = [launches.read_source(name) for name in dict.fromkeys(names)]
    return (*found, *([launches.source_from_argv(command)] if command else []))


def version(text: str | None) -> str:
    """Return the version of the framework that was asked for, "" where none was. Raises `BadUsage`."""
    if text is None:
        return ""
    try:
        return str(Version(text))
    except InvalidVersion:
        raise BadUsage(f"--framework-version {text!r} is no version") from None


def look(python: str | None, target: str | None, seconds: float, say: Callable[[str], None]) -> Snapshot:
    """Return the snapshot to judge launches by: files and the driver here, or the target instead."""
    from attncheck.doctor.probes.collect import collect_snapshot

    aim = targets.parse_target(target) if target is not None else None
    snapshot = collect_snapshot(python, ("static",) if aim else ("static", "device"), None, None, seconds, say)
    return targets.apply_target(snapshot, aim) if aim else snapshot


def files(given: tuple[Source, ...]) -> Callable[[str], Source | None]:
    """Return a reader of the files that launches name: as given, else beside the script that names them."""
    known = {source.name: source for source in given}
    folders = [Path(), *(Path(source.name).parent for source in given if source.name not in (COMMAND, "-"))]

    @functools.cache
    def read(name: str) -> Source | None:
        if name in known:
            return known[name]
        for folder in dict.fromkeys(folders):
            try:
                return launches.read_source(str(folder / name))
            except AttncheckError:
                continue
        return None

    return read


def models(online: bool) -> Callable[[str], Fact[Model]]:
    """Return a reader of models' configurations: folders and the local cache, the Hub too where that is allowed."""

    @functools.cache
    def read(name: str) -> Fact[Model]:
        from attncheck.doctor.probes import model

        if not online or Path(name).exists():
            return model.read_model(name)
        from attncheck.doctor.probes import hub_download

        return model.read_model(name, hub_download.fetch_config_files(name))

    return read
