"""Reads the configuration files that a launch's file inherits from: `defaults: parent.yaml` or a list of them.

They are merged as in NeMo-RL (v0.7.0 nemo_rl/utils/config.py, `load_config_with_inheritance`): relative to the file
that names them, depth first. Later files override earlier ones, and the file itself overrides all. `_override_: true`
in a table drops the parents' content of that table.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import replace

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import Launch, ReadFile, Setting, Source
from attncheck.lint.fields.written import parse_value
from attncheck.lint.files import configuration
from attncheck.lint.open_ends import COULD_NOT_BE_READ, find_open_ends

MAX_PARENTS = 20
MARK = "._override_"
PARENT_KEYS = ("defaults", "_base_")  # the latter as in MMEngine, whose form forks of LLaMA-Factory merge


def attach_parents(launch: Launch, read_file: ReadFile) -> Launch:
    """Return the launch with the keys of its file's parents before its own."""
    if launch.file is None or launch.file.kind != "yaml" or not list(_list_parents(launch.file, launch.entries)):
        return launch
    notes: list[str] = []
    entries = _merge(launch.file, launch.entries, read_file, notes, [launch.file.name])
    launch = replace(launch, entries=tuple(entries), notes=(*launch.notes, *notes))
    return replace(launch, open_ends=find_open_ends(launch))


def _list_parents(file: Source, entries: tuple[Setting, ...]) -> Iterator[str]:
    """Yield the paths of the parent files that a file names."""
    for entry in entries:
        values = parse_value(entry.value) if entry.name in PARENT_KEYS else []
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, str) and value.endswith((".yaml", ".yml")):
                yield posixpath.normpath(posixpath.join(posixpath.dirname(file.name), value))


def _merge(
    file: Source, entries: tuple[Setting, ...], read_file: ReadFile, notes: list[str], seen: list[str]
) -> list[Setting]:
    merged: list[Setting] = []
    for path in _list_parents(file, entries):
        parent = read_file(path) if path not in seen and len(seen) < MAX_PARENTS else None
        seen.append(path)
        try:
            parsed = configuration.parse_entries(parent) if parent is not None and parent.kind == "yaml" else None
        except BadUsage:
            parsed = None
        if parent is None or parsed is None:
            notes.append(f"the configuration file {path} {COULD_NOT_BE_READ}")
            continue
        merged = _put_over(merged, _merge(parent, parsed, read_file, notes, seen))
    return _put_over(merged, list(entries))


def _put_over(below: list[Setting], above: list[Setting]) -> list[Setting]:
    dropped = tuple(entry.name.removesuffix("_override_") for entry in above if entry.name.endswith(MARK))
    return [*(entry for entry in below if not dropped or not entry.name.startswith(dropped)), *above]
