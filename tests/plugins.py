"""Backends as outside plugins: a folder for PYTHONPATH with a module and the entry point that names it."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

HEAD = """
import os, sys, threading, time
from dataclasses import replace
from attncheck.attention.backend import Backend, Installed, Refused
from attncheck.attention.backends import sdpa_flash, sdpa_math

def script_lines(case):
    return sdpa_math.BACKEND.script_lines(case)

MORE = {}

def right(inputs, deterministic):
    return sdpa_math.BACKEND.run(inputs, deterministic)

"""
TAIL = """
BACKEND = Backend(
    "{name}", "a planted fault", "fault", Installed, sdpa_math.refuse, run, script_lines, **MORE
)
"""


def write_backend(folder: Path, name: str, source: str) -> dict[str, str]:
    """Write a plugin of backend `name` whose `run` is in `source`, and return the environment that makes it known."""
    return write_plugin(folder, name, HEAD + textwrap.dedent(source) + TAIL.format(name=name))


def write_plugin(folder: Path, name: str, source: str, group: str = "attncheck.backends") -> dict[str, str]:
    """Write a module and the entry point that names it, and return the environment that makes it known."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}_plugin.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}_plugin\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}
