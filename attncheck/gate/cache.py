"""Answers of a gate kept for the next start: one small file each, and beside it the report, in a folder of our own.

Many starts may come at once, on one machine or over a shared home: files are put in place by rename, and whatever
cannot be read, is damaged or of another time is as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attncheck.core import codec

FRESH_SECONDS = 24 * 3600.0  # a machine changes in ways that no file shows
MOST = 64  # answers kept
MOST_HASHES = 4096
REPORT_LIMIT = 16 << 20  # bytes
SAMPLED_FROM = 64 << 20  # bytes: of a larger file, pieces stand for the whole
PIECE, PIECES = 256 << 10, 64
HASHES = "hashes.json"


@dataclass(frozen=True)
class Answer:
    """How a gate ended, what it read of the user's (digests by path and by model), and when: seconds since 1970."""

    code: int
    written: float
    files: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)


def folder(environ: Mapping[str, str]) -> Path | None:
    """Return our folder of caches, made private; None where there can be none, or where it is not ours alone."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the specification says to pay no attention to it then
        home = environ.get("HOME", "")
        base = os.path.join(home, ".cache") if os.path.isabs(home) else ""
    return private(Path(base) / "attncheck") if base else None


def private(path: Path) -> Path | None:
    """Return a folder that only we can read and write, made where it is missing; None where it cannot be that."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
            return None
        if found.st_mode & 0o077:
            path.chmod(0o700)
        return path if os.access(path, os.W_OK | os.X_OK) else None
    except (OSError, ValueError):
        return None


def temporary() -> Path | None:
    """Return a private folder of this user on this machine, for where there is no cache."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    return private(Path(tempfile.gettempdir()) / f"attncheck-{user}")


def key(parts: Mapping[str, Any]) -> str:
    """Return the name of everything that an answer depends on."""
    text = json.dumps(codec.plain(parts), sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read(place: Path, name: str, current: Callable[[Answer], bool]) -> Answer | None:
    """Return the answer of this name where there is one, it is fresh, and what it read is `current`."""
    try:
        found = codec.read(Answer, _document(place / f"answer-{name}.json"))
    except codec.BadDocument:
        return None
    age = time.time() - found.written
    return found if 0 <= age <= FRESH_SECONDS and current(found) else None


def report(place: Path, name: str) -> str | None:
    """Return the report of an answer as JSON; None where it was too large to keep, or is gone."""
    with suppress(OSError, ValueError):
        return (place / f"report-{name}.json").read_text("utf-8")
    return None


def write(place: Path, name: str, answer: Answer, text: str) -> None:
    """Keep an answer and its report, and as many of the others as there is room for. A full disk is no error."""
    with suppress(OSError):
        if len(text) <= REPORT_LIMIT:
            put(place / f"report-{name}.json", text)
        put(place / f"answer-{name}.json", codec.dumps(answer))
        _prune(place)


def put(path: Path, text: str) -> None:
    """Write a whole file, or none."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as stream:
            stream.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _prune(place: Path) -> None:
    """Remove the oldest answers beyond `MOST`, and what starts of earlier days left behind."""
    now = time.time()
    ages: list[tuple[float, Path]] = []
    for path in place.iterdir():
        with suppress(OSError):
            age = now - path.stat().st_mtime
            if path.name.startswith("answer-"):
                ages.append((age, path))
            elif path.name.startswith(("launch-", ".part-", "report-")) and age > 2 * FRESH_SECONDS:
                path.unlink()
    for _, path in sorted(ages)[MOST:]:
        with suppress(OSError):
            path.unlink()
            (place / path.name.replace("answer-", "report-")).unlink()


def _document(path: Path) -> Any:
    with suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_bytes())
    return None


class Hashes:
    """Digests of large files, remembered by path, size, times and inode; over `SAMPLED_FROM` bytes, of pieces."""

    def __init__(self, place: Path | None) -> None:
        self._place = place
        document = _document(place / HASHES) if place is not None else None
        self._known: dict[str, Any] = document if isinstance(document, dict) else {}
        self._new = False

    def of(self, path: str) -> str:
        """Return the digest of a file's content, "" where it cannot be read."""
        try:
            found = os.stat(path)
            mark = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]
            known = self._known.get(path)
            if isinstance(known, list) and known[:-1] == mark and isinstance(known[-1], str):
                return known[-1]
            digest = _digest(path, found.st_size)
        except OSError:
            return ""
        self._known[path], self._new = [*mark, digest], True
        return digest

    def save(self) -> None:
        """Keep what was computed for the next time; of two who do so at once, the later one wins."""
        if self._new and self._place is not None:
            kept = dict(list(self._known.items())[-MOST_HASHES:])
            with suppress(OSError):
                put(self._place / HASHES, json.dumps(kept))


def _digest(path: str, size: int) -> str:
    found = hashlib.blake2b(str(size).encode(), digest_size=16)
    with open(path, "rb") as stream:
        if size <= SAMPLED_FROM:
            while chunk := stream.read(1 << 20):
                found.update(chunk)
        else:
            for piece in range(PIECES + 1):
                stream.seek((size - PIECE) * piece // PIECES)
                found.update(stream.read(PIECE))
    return found.hexdigest()
