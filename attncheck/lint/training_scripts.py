"""Reads the settings of a launch in the script that it starts, if they are written out there."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import replace

from attncheck.core.launch import Launch, Source
from attncheck.lint.files import configuration, python
from attncheck.lint.open_ends import find_open_ends

ReadFile = Callable[[str], "Source | None"]


def attach_script(launch: Launch, read_file: ReadFile) -> Launch:
    """Return the launch with the settings that its script writes out; a configuration file goes before them."""
    script = next(iter(_read_scripts(launch, read_file)), None) if launch.file is None else None
    return _add_settings(launch, script) if script is not None and python.read_settings_class(script) else launch


def read_launch(source: Source) -> Launch | None:
    """Return a script that was given by itself as a launch, None if it writes out no settings."""
    return _add_settings(Launch(source), source) if python.read_settings_class(source) else None


def _add_settings(launch: Launch, script: Source) -> Launch:
    parsed = configuration.parse_configuration(script)
    launch = replace(launch, entries=parsed.entries, file=script, notes=(*launch.notes, *parsed.notes))
    return replace(launch, open_ends=find_open_ends(launch))


def find_missing_script(launch: Launch, read_file: ReadFile) -> str:
    """Return the path of the script that a launch starts, if there is no such file; else ""."""
    paths = _list_paths(launch)
    return paths[-1] if paths and not _read_scripts(launch, read_file) else ""


def _read_scripts(launch: Launch, read_file: ReadFile) -> list[Source]:
    sources = (read_file(path) for path in _list_paths(launch))
    return [source for source in sources if source is not None and not source.host]


def _list_paths(launch: Launch) -> list[str]:
    """Return where the script may be: in the folder that the launch changes into, and in the one it begins in."""
    word = launch.words[0] if launch.words else None
    if word is None or not word.known:
        return []
    is_module = bool(launch.launcher_words) and launch.launcher_words[-1].text == "-m"
    path = f"{word.text.replace('.', '/')}.py" if is_module else word.text
    return list(dict.fromkeys((posixpath.join(launch.folder, path), path))) if path.endswith(".py") else []
