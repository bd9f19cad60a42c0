"""Small repositories for the reader of programs, written for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

from attncheck.core.program import Program, ProgramOption
from attncheck.lint.programs.modules import SourceTree
from attncheck.lint.programs.program import Entry, reach_program, read_program


def write_tree(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder, and return the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


def find_nothing(name: str) -> Mapping[str, ProgramOption] | None:
    """Know no class of any package."""
    return None


def read_script(
    folder: Path, script: str = "train.py", config: Sequence[str] = (), more_folders: Sequence[Path] = ()
) -> Program | None:
    """Return what the reader makes of a script of a folder."""
    tree = SourceTree((folder, *more_folders), folder)
    return read_program(reach_program(Entry(str(folder / script)), tree), find_nothing, config)
