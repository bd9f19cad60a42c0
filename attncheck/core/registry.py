"""Loads the extensions of a package: built-in modules and external plugins; a broken one does not affect the rest."""

import contextlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from attncheck.core.io.failures import is_out_of_resources
from attncheck.core.io.files import CannotRead, read_bounded

T = TypeVar("T")
MAX_BYTES = 1 << 20  # limit for a distribution's entry points


class Extension(NamedTuple):
    """One module of the package, or one external plugin's module."""

    name: str
    module: ModuleType


class Broken(NamedTuple):
    """An extension that could not be loaded."""

    name: str
    reason: str


def load(package: ModuleType, group: str, families: bool = False) -> tuple[list[Extension], list[Broken]]:
    """Return the extensions in `package` and in the entry points of `group` ("attncheck.rules"), and the broken ones.

    With `families` the modules are one folder deeper. A module whose name begins with "_" is not an extension. The
    group is a public name: it stays when the package moves.
    """
    loaded = [
        _load_module(name, origin) for name, origin in [*_iter_built_in(package, families), *_iter_plugins(group)]
    ]
    extensions = [extension for extension in loaded if isinstance(extension, Extension)]
    return extensions, [extension for extension in loaded if isinstance(extension, Broken)]


def list_records(extensions: Iterable[Extension], constant: str, kind: type[T]) -> list[T]:
    """Return the records of the extensions: a module's `constant` ("CHECK"), or the items of its plural tuple."""
    return [
        record
        for extension in extensions
        for record in (getattr(extension.module, constant, None), *getattr(extension.module, f"{constant}S", ()))
        if isinstance(record, kind)
    ]


def list_origins(package: ModuleType, group: str) -> dict[str, str]:
    """Return the extensions of a package, module by name, without importing them."""
    # A plugin does not replace a built-in module of the same name.
    return dict([*_iter_plugins(group), *_iter_built_in(package, False)])


def load_one(package: ModuleType, group: str, name: str) -> Extension | Broken:
    """Return the extension called `name`, a built-in module or a plugin."""
    return _load_module(name, list_origins(package, group)[name])


def defer(name: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
    """Return a function that calls "lint.frameworks.trl.plan:format_plan", imported at its first call.

    `arguments` and `options` follow those of each call.
    """

    def call(*given: Any) -> Any:
        return pkgutil.resolve_name(f"attncheck.{name}")(*given, *arguments, **options)

    return call


def _load_module(name: str, origin: str) -> Extension | Broken:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is reserved for the report
            return Extension(name, importlib.import_module(origin))
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        if is_out_of_resources(error):
            raise
        return Broken(origin, f"{type(error).__name__}: {error}")


def _iter_built_in(package: ModuleType, families: bool) -> Iterator[tuple[str, str]]:
    for info in pkgutil.iter_modules(package.__path__):
        origin = f"{package.__name__}.{info.name}"
        if families and info.ispkg:
            yield from _iter_built_in(importlib.import_module(origin), False)
        elif not info.name.startswith("_"):
            yield info.name, origin


def _iter_plugins(group: str) -> Iterator[tuple[str, str]]:
    # importlib.metadata costs a third of the static lane's budget
    if not any(_has_plugin(entry) for entry in sys.path if os.path.isdir(entry)):
        return
    from importlib.metadata import entry_points

    yield from ((point.name, point.module) for point in entry_points(group=group))


def _has_plugin(folder: str) -> bool:
    """Return whether a distribution in `folder` declares an entry point for attncheck."""
    with contextlib.suppress(OSError):  # the folder may not be readable
        for name in os.listdir(folder):
            if name.endswith(".dist-info"):
                with contextlib.suppress(CannotRead):
                    if b"[attncheck." in read_bounded(os.path.join(folder, name, "entry_points.txt"), MAX_BYTES):
                        return True
    return False
