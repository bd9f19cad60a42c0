"""Reads the text to lint from a file, standard input or the words of a command, and detects its kind."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import read_bounded, read_standard_input
from attncheck.core.launch import COMMAND, Kind, Source

MAX_BYTES = 4 << 20  # for a script or a configuration file
KIND_BY_SUFFIX: Mapping[str, Kind] = {
    ".sh": "shell", ".bash": "shell", ".slurm": "shell", ".sbatch": "shell", ".job": "shell", ".zsh": "shell",
    ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".py": "python",
}  # fmt: skip


def read_source(path: str, pipes: bool = True) -> Source:
    """Return the file at `path`, "-" for standard input. Raises `BadUsage`, in one line, if it is not text.

    A file that a launch names is read without `pipes`, because their content belongs to the job.
    """
    is_standard_input = path == "-" and pipes
    content = read_standard_input(MAX_BYTES) if is_standard_input else read_bounded(path, MAX_BYTES, pipes)
    if b"\0" in content:
        raise BadUsage(f"{path}: a binary file, not a launch script or a configuration")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadUsage(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    has_carriage_returns = "\n" in text and text.count("\r\n") == text.count("\n")
    text = text.replace("\r\n", "\n") if has_carriage_returns else text
    return Source(path, text, detect_kind(path, text), has_carriage_returns=has_carriage_returns)


def detect_kind(path: str, text: str) -> Kind:
    """Return the kind of a text from its path's suffix, or else from its beginning."""
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in KIND_BY_SUFFIX:
        return KIND_BY_SUFFIX[suffix]
    start = text.lstrip()
    if start.startswith("#!"):
        return "python" if re.match(r"#!.*\bpython[\d.]*(\s|$)", start) else "shell"
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
