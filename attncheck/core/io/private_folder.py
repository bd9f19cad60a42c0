"""Our folders for caches and state: readable by this user only; not having one is not an error."""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from attncheck.core.io.files import replace_file

VARYING = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "WINDOWID"})  # variables that differ between shells of one user


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return our private cache folder; None if it cannot be created, or if others can access it."""
    path = cache_path(environ)
    return make_private(path) if path is not None else None


def digest_facts(facts: object) -> str:
    """Return a digest of facts that have the same `repr` whenever they are equal."""
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def list_variables(environ: Mapping[str, str], ignored: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return the variables that an answer may depend on, without those that differ between shells, and `ignored`."""
    return sorted((name, value) for name, value in environ.items() if name not in VARYING.union(ignored))


def read_kept(path: Path | None, max_bytes: int) -> bytes:
    """Return the content of a kept file; empty if there is none."""
    if path is not None:
        with contextlib.suppress(OSError), path.open("rb") as stream:
            return stream.read(max_bytes)
    return b""


def forget_oldest(folder: Path, pattern: str, kept: int) -> None:
    """Remove files of a folder that fit a pattern, but for the `kept` newest ones. Raises `OSError`."""
    paths = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in paths[kept:]:
        path.unlink(missing_ok=True)


def cache_path(environ: Mapping[str, str]) -> Path | None:
    """Return the path of our cache folder, whether or not it exists; None if there can be none."""
    return _user_path(environ, "XDG_CACHE_HOME", ".cache")


def state_path(environ: Mapping[str, str]) -> Path | None:
    """Return the path of our state folder, which may not exist; None if there can be none."""
    return _user_path(environ, "XDG_STATE_HOME", ".local/state")


def _user_path(environ: Mapping[str, str], variable: str, below_home: str) -> Path | None:
    base = environ.get(variable, "")
    if not os.path.isabs(base):  # the specification says to ignore relative paths
        home = environ.get("HOME", "")
        base = os.path.join(home, below_home) if os.path.isabs(home) else ""
    return Path(base) / "attncheck" if base else None


def temporary_folder() -> Path | None:
    """Return a private folder of this user on this machine, for use if there is no cache folder."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    return make_private(Path(tempfile.gettempdir()) / f"attncheck-{user}")


def make_private(path: Path) -> Path | None:
    """Return a folder that only we can read and write, created if it is missing; None if that is impossible."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
            return None
        if status.st_mode & 0o077:
            path.chmod(0o700)
        return path if os.access(path, os.W_OK | os.X_OK) else None
    except (OSError, ValueError):
        return None


def describe_other_writers(path: str | os.PathLike[str]) -> str:
    """Return which other users can change a file; "" if only its owner can, and the owner is this user or root.

    A writable group counts as this user's own on systems that give each user a group (umask 002).
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        return f"cannot examine it: {getattr(error, 'strerror', None) or error}"
    if status.st_uid not in (0, os.getuid()):
        return f"it is owned by another user (uid {status.st_uid})"
    if status.st_mode & stat.S_IWOTH:
        return f"every user can write it (mode {stat.S_IMODE(status.st_mode):o})"
    if status.st_mode & stat.S_IWGRP and status.st_gid != os.getgid():
        return f"its group can write it (gid {status.st_gid}, mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def replace_private_file(path: Path, text: str) -> None:
    """Write a whole file that only we can read, or write nothing."""
    replace_file(path, text.encode("utf-8", "surrogatepass"), 0o600)
