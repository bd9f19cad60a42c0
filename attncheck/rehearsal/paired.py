"""Finds the command that starts a user's program with a configuration file, for a file that is given alone.

Its own comments, launch scripts and READMEs of its tree name it: `train.py --config recipes/a.yaml`. If none does, but
one program gets all the other files of its folder, it gets this one too. Likewise for a script whose arguments name its
program: `sbatch train.slurm sft`.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.core.launch import Source
from attncheck.lint.called_scripts import SCRIPT_SUFFIXES
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal.columns import find_script

FENCED = re.compile(r"^ *```[\w-]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)  # a command in Markdown
PASSED = re.compile(r"((?:--config[ =]|\.py )[\"']?)((?!-)[\w./-]+)(?![\w./-])")  # a file that a program gets
COMMENT = re.compile(r"^# ?", re.MULTILINE)
CONTINUED = re.compile(r"[ \\]*\n[ #]*(?=-|>)")  # a command's next line in a comment
PAIRED = (*SCRIPT_SUFFIXES, ".md")
MAX_FOLDERS = 5000
MAX_COMMANDS = 20  # that name the file
MAX_BYTES = 1 << 18  # of a file


def is_alone(read: ReadLaunch) -> bool:
    """Return whether a launch is only a configuration file, of a framework whose users start their own programs."""
    framework = read.recognised.framework
    return read.recognised.launch.file is read.recognised.launch.source and (
        framework.general or framework.distribution == "trl"
    )


def reads_file(read: ReadLaunch, source: Source) -> bool:
    """Return whether a launch is in a file or reads it, maybe by another machine's path, and its program is found."""
    launch = read.recognised.launch
    files = [(os.path.basename(file.name), file.text) for file in (launch.file, launch.source) if file is not None]
    return (
        (os.path.basename(source.name), source.text) in files
        and not launch.is_remote
        and bool(launch.words)
        and find_script(launch) is not None
    )


def list_commands(source: Source) -> tuple[Source, ...]:
    """Return the texts of shell commands that name a file, of the nearest scripts and READMEs first."""
    named = re.compile(rf"(?<![\w.-]){re.escape(os.path.basename(source.name))}(?![\w-])")
    return tuple(text for text in _iter_texts(source) if named.search(text.text))[:MAX_COMMANDS]


def list_commands_of_others(source: Source) -> tuple[Source, ...]:
    """Return the texts of shell commands that name other files of a file's kind and first folder, which it replaces."""
    folder, ending = Path(source.name).parts[0], os.path.splitext(source.name)[1]

    def pass_own(match: re.Match[str]) -> str:
        is_other = match[2].endswith(ending) and folder in Path(match[2]).parts[:-1]
        return match[1] + source.name if is_other else match[0]

    texts = ((text, PASSED.sub(pass_own, text.text)) for text in _iter_texts(source))
    return tuple(replace(text, text=own, editable=False) for text, own in texts if own != text.text)[:MAX_COMMANDS]


def _iter_texts(source: Source) -> Iterator[Source]:
    """Yield a file's own comments, then the scripts and the Markdown commands of the tree, those nearest first."""
    comments = (line for line in source.text.splitlines() if line.startswith("#"))
    yield Source(source.name, COMMENT.sub("", CONTINUED.sub(" ", "\n".join(comments))), "shell", editable=False)
    own = Path(os.path.abspath(source.name)).parent
    paths = [Path(path) for path in _list_paths(os.getcwd())]
    for path in sorted(paths, key=lambda path: (-len(os.path.commonpath((own, path.parent))), path.suffix == ".md")):
        with contextlib.suppress(CannotRead):
            text = read_bounded(path, MAX_BYTES).decode(errors="replace")
            name = os.path.relpath(path)
            if path.suffix != ".md":
                yield Source(name, text, "shell")
                continue
            for block in FENCED.finditer(text):  # on its own lines
                above = "\n" * text.count("\n", 0, block.start(1))
                yield Source(name, above + block[1], "shell", editable=False)


@functools.lru_cache(maxsize=4)
def _list_paths(root: str) -> tuple[str, ...]:
    paths: list[str] = []
    for count, (folder, names, files) in enumerate(os.walk(root)):
        names[:] = [name for name in names if not name.startswith(".")] if count < MAX_FOLDERS else []
        paths += [os.path.join(folder, name) for name in sorted(files) if name.endswith(PAIRED)]
    return tuple(paths)
