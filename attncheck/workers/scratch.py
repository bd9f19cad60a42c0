"""Temporary folders of this process: private, named after it, and removed even if it is killed.

A folder is named `attncheck-MACHINE-PID-START-…`. MACHINE distinguishes this boot and this container from all others
that may share the parent folder. START is when the kernel started the process. A later process can thus tell folders of
ended processes from those of running ones, and removes the former.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attncheck.core.io.errors import Unanswered

_NAME = re.compile(r"attncheck-([0-9a-f]{8})-(\d+)-(\d+)-\w+")


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """Yield our own folder, and remove it with its content. Raises `Unanswered` if none can be created."""
    folder = make_folder()
    try:
        yield folder
    finally:
        remove_folder(folder)


def make_folder() -> str:
    """Return a new private folder, and remove those of ended processes. Raises `Unanswered`."""
    try:
        _sweep(tempfile.gettempdir())
        return tempfile.mkdtemp(prefix=f"attncheck-{_machine_digest()}-{os.getpid()}-{_start_time(os.getpid())}-")
    except OSError:
        raise Unanswered("no temporary folder can be written to: set TMPDIR to one that can") from None


def remove_folder(folder: str) -> None:
    """Remove a folder of ours, or anything in its place, as far as possible."""
    try:
        _remove(folder)
    except RecursionError:  # it is deeper than Python's own functions support
        with contextlib.suppress(OSError):
            subprocess.run(["rm", "-rf", "--", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _remove(folder: str) -> None:
    if os.path.islink(folder) or not os.path.isdir(folder):  # rmtree would open it, and wait for a pipe's writer
        with contextlib.suppress(OSError):
            os.remove(folder)
        return
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.isdir(folder):  # it contains folders that their owner may not enter
        for path, _, _ in os.walk(folder, topdown=True):
            for name in _list_folders(path):
                with contextlib.suppress(OSError):
                    os.chmod(os.path.join(path, name), 0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _list_folders(path: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


@cache
def empty_folder() -> str:
    """Return the folder in which children start: our own empty one, otherwise the file system's root.

    Python searches modules in its starting folder (`python -c`, `-m`), so a child must not start in the user's folder:
    a `json.py` there would shadow the standard library's.
    """
    try:
        return make_folder()
    except Unanswered:
        return os.path.abspath(os.sep)


def remove_empty_folder() -> None:
    """Remove the folder of `empty_folder`, after the last child has ended."""
    if empty_folder.cache_info().currsize:
        folder = empty_folder()
        empty_folder.cache_clear()
        if os.path.basename(folder):
            remove_folder(folder)


@cache
def _sweep(parent: str) -> None:
    """Remove the folders of this user's killed processes."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is None or match[1] != _machine_digest() or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):
                is_ours = not hasattr(os, "getuid") or entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and _start_time(int(match[2])) != int(match[3]):
                    remove_folder(entry.path)


@cache
def _machine_digest() -> str:
    """Return eight hex digits that distinguish this boot's and container's process numbers from others."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_bytes())
        parts.append(os.readlink(b"/proc/self/ns/pid"))
    return hashlib.blake2b(b"".join(parts), digest_size=4).hexdigest()


def _start_time(pid: int) -> int:
    """Return a process's start time in ticks since boot; 0 if it has ended, or the system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
