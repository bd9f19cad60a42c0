"""Reads the text to lint from a file, standard input or the words of a command, and detects its kind."""

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

MAX_BYTES = 4 << 20  # of a script or a configuration file
KIND_BY_SUFFIX: Mapping[str, Kind] = {
    ".sh": "shell", ".bash": "shell", ".slurm": "shell", ".sbatch": "shell", ".job": "shell", ".zsh": "shell",
    ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml",
}  # fmt: skip


def read_source(path: str) -> Source:
    """Return the file at `path`, "-" for standard input. Raises `BadUsage`, in one line, for what is not text."""
    content = _read_bytes(path)
    if b"\0" in content:
        raise BadUsage(f"{path}: a binary file, not a launch script or a configuration")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadUsage(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    if text.count("\r\n") == text.count("\n"):
        text = text.replace("\r\n", "\n")
    return Source(path, text, _detect_kind(path, text))


def _read_bytes(path: str) -> bytes:
    try:
        if path == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb", opener=_open_without_blocking) as stream:
                content = stream.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise BadUsage(f"{path}: a directory; name a launch script or a configuration file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadUsage(f"cannot read {path!r}: {reason}") from None
    if len(content) > MAX_BYTES:
        raise BadUsage(f"{path}: larger than {MAX_BYTES >> 20} MiB; no launch script is")
    return content


def _open_without_blocking(path: str, flags: int) -> int:
    """Open a file without blocking: a named pipe is refused, for it may have no writer."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode) and not path.startswith(
        ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
    ):
        os.close(descriptor)
        raise OSError(0, "a named pipe")
    os.set_blocking(descriptor, True)
    return descriptor


def _detect_kind(path: str, text: str) -> Kind:
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in KIND_BY_SUFFIX:
        return KIND_BY_SUFFIX[suffix]
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


def source_from_argv(argv: Sequence[str]) -> Source:
    """Return the source of the command `argv`, quoted for a shell."""
    return Source(COMMAND, shlex.join(argv), "command")
