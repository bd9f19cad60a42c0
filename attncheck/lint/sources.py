"""Where the text to read comes from: a file, standard input or the words of a command; one line where it is no text."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from attncheck.core.errors import BadUsage
from attncheck.core.launch import COMMAND, Kind, Source

LARGEST = 4 << 20  # bytes of a script or a configuration file
SUFFIXES: Mapping[str, Kind] = {
    ".sh": "shell", ".bash": "shell", ".slurm": "shell", ".sbatch": "shell", ".job": "shell", ".zsh": "shell",
    ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml",
}  # fmt: skip


def source_of(path: str) -> Source:
    """Return the file at `path`, "-" for standard input. Raises `BadUsage`, in one line, for what is no text."""
    data = _read(path)
    if b"\0" in data:
        raise BadUsage(f"{path}: a binary file, not a launch script or a configuration")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadUsage(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    if text.count("\r\n") == text.count("\n"):
        text = text.replace("\r\n", "\n")
    return Source(path, text, _kind(path, text))


def _read(path: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with open(path, "rb", opener=_without_waiting) as stream:
                data = stream.read(LARGEST + 1)
    except IsADirectoryError:
        raise BadUsage(f"{path}: a directory; name a launch script or a configuration file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadUsage(f"cannot read {path!r}: {reason}") from None
    if len(data) > LARGEST:
        raise BadUsage(f"{path}: larger than {LARGEST >> 20} MiB; no launch script is")
    return data


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to is refused and not waited for."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode) and not path.startswith(
        ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
    ):
        os.close(descriptor)
        raise OSError(0, "a named pipe")
    os.set_blocking(descriptor, True)
    return descriptor


def _kind(path: str, text: str) -> Kind:
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    start = text.lstrip()
    if start.startswith("#!"):
        return "shell"
    if start.startswith("{") and re.match(r'\{\s*("|\})', start):
        return "json"
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    first = lines[0] if lines else ""
    if first == "---" or re.match(r"[A-Za-z_][\w.-]*:(\s|$)", first):
        return "yaml"
    if re.fullmatch(r"\s*\[+[\w.\"-]+\]+\s*(#.*)?|[A-Za-z_][\w.-]*\s+=\s+\S.*", first):
        return "toml"
    return "shell"


def source_of_words(words: Sequence[str]) -> Source:
    """Return the command that `words` are, quoted as a shell wants it."""
    return Source(COMMAND, shlex.join(words), "command")
