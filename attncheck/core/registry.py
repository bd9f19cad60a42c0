"""Loads the extensions of a room: the built-in files and outside plugins, a broken one never harming the rest."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Extension:
    """One module of a room, or one outside plugin's module."""

    name: str
    module: ModuleType


@dataclass(frozen=True)
class Broken:
    """An extension that could not be loaded."""

    name: str
    reason: str


def load(room: ModuleType, group: str, families: bool = False) -> tuple[list[Extension], list[Broken]]:
    """Return what the package `room` and the entry points of `group` ("attncheck.rules") offer.

    With `families` the modules lie one folder deeper. A name that begins with "_" is no extension. The group is a
    public name: it stays when a room moves.
    """
    loaded = [_load(name, origin) for name, origin in [*_built_in(room, families), *_plugins(group)]]
    extensions = [extension for extension in loaded if isinstance(extension, Extension)]
    return extensions, [extension for extension in loaded if isinstance(extension, Broken)]


def origins(room: ModuleType, group: str) -> dict[str, str]:
    """Return where the extensions of a room come from, module by name; nothing is imported."""
    return dict([*_plugins(group), *_built_in(room, False)])  # a plugin does not take the place of what is built in


def load_one(room: ModuleType, group: str, name: str) -> Extension | Broken:
    """Return the extension called `name`, which is one of `origins`."""
    return _load(name, origins(room, group)[name])


def _load(name: str, origin: str) -> Extension | Broken:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is the report's
            return Extension(name, importlib.import_module(origin))
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        return Broken(origin, f"{type(error).__name__}: {error}")


def _built_in(room: ModuleType, families: bool) -> Iterator[tuple[str, str]]:
    for info in pkgutil.iter_modules(room.__path__):
        origin = f"{room.__name__}.{info.name}"
        if families and info.ispkg:
            yield from _built_in(importlib.import_module(origin), False)
        elif not info.name.startswith("_"):
            yield info.name, origin


def _plugins(group: str) -> Iterator[tuple[str, str]]:
    if not _any_plugin():  # importlib.metadata costs a third of the static lane's budget
        return
    from importlib.metadata import entry_points

    for point in entry_points(group=group):
        yield point.name, point.module


def _any_plugin() -> bool:
    return any(_names_us(entry) for entry in sys.path if os.path.isdir(entry))


def _names_us(folder: str) -> bool:
    """Say whether a distribution in `folder` has an entry point of ours."""
    for name in os.listdir(folder):
        if name.endswith(".dist-info"):
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as stream:
                    if b"[attncheck." in stream.read():
                        return True
            except OSError:
                continue
    return False
