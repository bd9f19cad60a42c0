"""The formats of a report: one file each, named like the value of --format, with one frozen `FORMAT`.

A plugin adds a format by an entry point in the group "attncheck.formats" that has the format's name and the module as
its value. The module needs one import:

    from attncheck.report.formats import Finding, Format, Report
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

from attncheck.core import registry
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.streams import Syntax
from attncheck.core.report import Finding, Report

__all__ = ["Finding", "Format", "Report"]

GROUP = "attncheck.formats"


class Format(NamedTuple):
    """One output format. `render(report, verbose)` returns the whole document with its final newline.

    `syntax` says how to escape a character that standard output cannot represent or must not contain. A format that
    depends on the terminal has `render_plain` for files.
    """

    render: Callable[[Report, bool], str]
    syntax: Syntax = "text"
    render_plain: Callable[[Report, bool], str] | None = None


def format_names() -> tuple[str, ...]:
    """Return the names of the formats of attncheck and its plugins without importing them."""
    return tuple(sorted(registry.list_origins(sys.modules[__name__], GROUP)))


def load_format(name: str) -> Format:
    """Return the format called `name`. Raises `BadUsage` that lists the known ones, or says why it cannot be loaded."""
    names = format_names()
    if name not in names:
        raise BadUsage(f"--format {name!r} is not one of {', '.join(names)}")
    loaded = registry.load_one(sys.modules[__name__], GROUP, name)
    if isinstance(loaded, registry.Broken):
        raise BadUsage(f"--format {name} cannot be loaded: {loaded.reason}")
    record = getattr(loaded.module, "FORMAT", None)
    if not isinstance(record, Format):
        raise BadUsage(f"--format {name} cannot be loaded: {loaded.module.__name__} has no FORMAT")
    return record
