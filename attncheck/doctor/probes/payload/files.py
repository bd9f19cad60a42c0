"""Reads small files that may be damaged, huge, or not regular files, and parses text that may not be Python."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast

# O_NONBLOCK: a named pipe in place of a file must not block the process.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def read_bytes(path: str, limit: int = 1 << 16) -> bytes:
    """Return up to `limit` bytes of a regular file. Raises OSError or ValueError."""
    descriptor = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        chunks = []
        while limit > 0:
            chunk = os.read(descriptor, min(limit, 1 << 20))
            if not chunk:
                break
            chunks.append(chunk)
            limit -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def read_content(path: str, limit: int = 1 << 16) -> bytes:
    """Return up to `limit` bytes of a regular file; none if it cannot be read."""
    try:
        return read_bytes(path, limit)
    except (OSError, ValueError):
        return b""


def read_text(path: str, limit: int = 1 << 16) -> str:
    """Return up to `limit` bytes of a file as text; "" if it cannot be read."""
    return read_content(path, limit).decode("utf-8", "replace")


def list_folder(path: str) -> list[str]:
    """Return the names inside a directory; empty if it cannot be listed."""
    try:
        return os.listdir(path)
    except (OSError, ValueError):
        return []


def find_program(name: str) -> str:
    """Return the path of the program `name` on PATH; "" if there is none. Relative entries of PATH are ignored."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, name)
        if os.path.isabs(folder) and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def parse_source(text: str) -> ast.Module | None:
    """Return the syntax tree of `text`; None if it is not valid Python for this interpreter."""
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's strings may hold invalid escapes
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
