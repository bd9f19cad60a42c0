"""What injecting a fault changes in its sandbox, and whether two faults can be injected together."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from attncheck.selftest.faults import Family, Fault, Sandbox
from attncheck.selftest.run import throwaway_folder
from tests.selftest.planted import PairedFault

# By file, variable ("$NAME") or ARGUMENTS: what a fault leaves there, None if it removes it.
Edits = Mapping[str, "str | None"]

ARGUMENTS = "the command"
_METADATA_FOLDER = re.compile(r"([\w.]+)-([^/-]+)\.dist-info/(.+)$")
_SITE_PACKAGES = re.compile(r"^env/lib/[^/]+/site-packages/")


def record_edits(fault: Fault, family: Family) -> Edits:
    """Return what injecting `fault` into a sandbox of `family` writes, also if it writes what was there before."""
    with throwaway_folder() as folder:
        sandbox = Sandbox(folder / "sandbox", sys.executable)
        sandbox.folder.mkdir()
        family.setup(sandbox)
        before = _read_state(sandbox)
        fault.inject(sandbox)
        after = _read_state(sandbox)
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    return {key: after[key][0] if key in after else None for key in changed}


def find_conflict(first: PairedFault, first_edits: Edits, second: PairedFault, second_edits: Edits) -> str:
    """Return why two faults contradict each other: what both change, or one changes and the other relies on; or ""."""
    for key in sorted(first_edits.keys() & second_edits.keys()):
        if key == ARGUMENTS or first_edits[key] != second_edits[key]:
            return f"both change {key}"
    if ARGUMENTS in (*first_edits, *second_edits):
        return "one of them asks another question"
    for fault, own, other in ((first, first_edits, second_edits), (second, second_edits, first_edits)):
        for name in fault.relies_on:
            key = edited_key(name)
            if key in other and own.get(key, "") != other[key]:
                return f"{fault.name} relies on {name}"
    return ""


def edited_key(name: str) -> str:
    """Return the key in edits of what a fault relies on: a variable's or file's name, a distribution's METADATA."""
    return name if name.startswith("$") or "/" in name else f"{name.replace('-', '_')}.dist-info/METADATA"


def _read_state(sandbox: Sandbox) -> dict[str, tuple[str, int]]:
    """Return (content, time of writing) of everything in the sandbox that a fault can change.

    The folder of a distribution's metadata is named without its version, which becomes part of the content.
    """
    root = str(sandbox.folder)
    state: dict[str, tuple[str, int]] = {}
    for path in sorted(sandbox.folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            name, version = _name_file(path.relative_to(sandbox.folder))
            digest = hashlib.sha256(path.read_bytes().replace(root.encode(), b"@")).hexdigest()
            earlier, written = state.get(name, ("", 0))  # two versions of one distribution
            state[name] = (f"{earlier}{version} {digest} ", max(written, path.stat().st_mtime_ns))
    for variable, value in sandbox.environ.items():
        state[f"${variable}"] = (str(value).replace(root, "@"), 0)
    state[ARGUMENTS] = (" ".join(sandbox.arguments).replace(root, "@"), 0)
    return state


def _name_file(path: Path) -> tuple[str, str]:
    name = _SITE_PACKAGES.sub("", path.as_posix())
    metadata = _METADATA_FOLDER.match(name)
    return (f"{metadata[1]}.dist-info/{metadata[3]}", metadata[2]) if metadata else (name, "")
