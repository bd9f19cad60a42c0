"""The room of renderers: each file holds a `RENDERER` that turns a `Report` into one document."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from attncheck.core.errors import BadUsage
from attncheck.core.report import Report

Render = Callable[[Report, bool], str]
BUILT_IN = ("text", "json", "markdown", "junit", "sarif", "github")


@dataclass(frozen=True)
class Renderer:
    """One output format. `render(report, verbose)` returns the whole document, its last newline included."""

    name: str
    render: Render


def renderer(name: str) -> Render:
    """Return the `render` function of the format `name`. Raises `BadUsage` naming the known ones."""
    if name not in BUILT_IN:
        raise BadUsage(f"--format {name!r} is not one of {', '.join(BUILT_IN)}")
    module = importlib.import_module(f"{__name__}.{name}")
    found: Renderer = module.RENDERER
    return found.render
