"""Reads the settings of a launch from the script that it starts, if they are literals in it."""

import posixpath
from dataclasses import replace

from attncheck.core.launch import Launch, ReadFile, Source
from attncheck.lint.files import configuration, python
from attncheck.lint.open_ends import find_open_ends
from attncheck.lint.programs.places import find_own_program, find_working_folder


def attach_script(launch: Launch, read_file: ReadFile) -> Launch:
    """Return the launch with the literal settings of its script; a configuration file takes precedence."""
    script = next(iter(_read_scripts(launch, read_file)), None) if launch.file is None else None
    if script is None or not python.read_settings_class(script):
        return launch
    return _add_settings(launch, script)


def read_launch(source: Source) -> Launch | None:
    """Return a script that was given by itself as a launch; None if it has no literal settings."""
    return _add_settings(Launch(source), source) if python.read_settings_class(source) else None


def _add_settings(launch: Launch, script: Source) -> Launch:
    parsed = configuration.parse_configuration(script)
    launch = replace(launch, entries=parsed.entries, file=script, notes=(*launch.notes, *parsed.notes))
    return replace(launch, open_ends=find_open_ends(launch))


def find_missing_script(launch: Launch, read_file: ReadFile) -> str:
    """Return the path of the script that a launch starts, if no such file exists; otherwise ""."""
    paths = _list_paths(launch)
    is_found = not paths or _read_scripts(launch, read_file) or find_own_program(launch)
    return "" if is_found else paths[-1]


def _read_scripts(launch: Launch, read_file: ReadFile) -> list[Source]:
    sources = [launch.written] if launch.written else map(read_file, _list_paths(launch))
    return [source for source in sources if source is not None]


def _list_paths(launch: Launch) -> list[str]:
    """Return possible locations of the script: in the launch's working folder, and in its initial folder."""
    word = launch.words[0] if launch.words else None
    if word is None or not word.known:
        return []
    is_module = bool(launch.launcher_words) and launch.launcher_words[-1].text in ("-m", "--module")
    path = f"{word.text.replace('.', '/')}.py" if is_module else word.text
    return (
        list(dict.fromkeys((posixpath.join(find_working_folder(launch), path), path))) if path.endswith(".py") else []
    )
