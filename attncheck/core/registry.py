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
    extensions: list[Extension] = []
    broken: list[Broken] = []
    for name, origin in [*_built_in(room, families), *_plugins(group)]:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # standard output is the report's
                extensions.append(Extension(name, importlib.import_module(origin)))
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            broken.append(Broken(origin, f"{type(error).__name__}: {error}"))
    return extensions, broken


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
