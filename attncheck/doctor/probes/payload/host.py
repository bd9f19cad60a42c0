"""The interpreter, and what of the machine this process may use: affinity and cgroup limits counted."""

from __future__ import annotations

import os
import sys

from . import files
from .facts import absent, known, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

_CGROUPS = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2**63 for "no limit"


def look() -> dict[str, Any]:
    """Return the record `snapshot.Host`."""
    total, available = memory()
    return {
        "python_version": _python_version(),
        "python_implementation": sys.implementation.name,
        "python_abi": _python_abi(),
        "executable": sys.executable or "",
        "prefix": sys.prefix,
        "virtual_environment": sys.prefix != sys.base_prefix,
        "conda": os.path.isdir(os.path.join(sys.prefix, "conda-meta")),
        "platform": sys.platform,
        "machine": os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", ""),
        "glibc": _glibc(),
        "kernel": os.uname().release if hasattr(os, "uname") else "",
        "cpu_count": cpu_count(),
        "memory_total_bytes": total,
        "memory_available_bytes": available,
        "shm_bytes": _shm(),
    }


def _python_version() -> str:
    major, minor, micro, level, serial = sys.version_info
    stage = {"alpha": "a", "beta": "b", "candidate": "rc"}.get(level, "")
    return f"{major}.{minor}.{micro}" + (f"{stage}{serial}" if stage else "")


def _python_abi() -> str:
    """Return the wheel tag: "cp311", "cp313t" for a free-threaded build."""
    name = {"cpython": "cp", "pypy": "pp"}.get(sys.implementation.name, sys.implementation.name)
    thread = "t" if "t" in getattr(sys, "abiflags", "") else ""
    return f"{name}{sys.version_info[0]}{sys.version_info[1]}{thread}"


def _glibc() -> dict[str, object]:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        text = ""
    words = text.split()
    return known(words[-1]) if len(words) == 2 and words[0] == "glibc" else absent("the C library is not glibc")


def _shm() -> dict[str, object]:
    try:
        status = os.statvfs("/dev/shm")
    except (AttributeError, OSError):
        return absent("there is no /dev/shm")
    return known(status.f_frsize * status.f_blocks)


def cpu_count() -> int:
    """Return how many processors this process may use, at least 1."""
    try:
        count = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        count = os.cpu_count() or 1
    for folder in cgroup_folders("cpu"):
        quota, period = _quota(folder)
        if quota > 0 and period > 0:
            count = min(count, -(-quota // period))
    return max(count, 1)


def _quota(folder: str) -> tuple[int, int]:
    words = files.text(folder + "/cpu.max").split()
    if len(words) != 2:
        words = [files.text(folder + "/cpu.cfs_quota_us"), files.text(folder + "/cpu.cfs_period_us")]
    return _number(words[0]), _number(words[1])


def memory() -> tuple[dict[str, object], dict[str, object]]:
    """Return total and available memory, the machine's or a cgroup's, whichever is less."""
    total, available = _machine_memory()
    for folder in cgroup_folders("memory"):
        limit = _first_number(folder + "/memory.max", folder + "/memory.limit_in_bytes")
        if not 0 < limit < _UNLIMITED:
            continue
        total = min(total, limit) if total > 0 else limit
        used = _first_number(folder + "/memory.current", folder + "/memory.usage_in_bytes")
        if used >= 0:
            # The page cache that the kernel would drop first is not in anyone's way.
            free = max(limit - max(used - _inactive_file(folder), 0), 0)
            available = min(available, free) if available >= 0 else free
    return (
        known(total) if total > 0 else unreadable("no /proc/meminfo"),
        known(available) if available >= 0 else unreadable("no /proc/meminfo"),
    )


def _machine_memory() -> tuple[int, int]:
    lines = (line.split() for line in files.text("/proc/meminfo").splitlines())
    found = {words[0]: _number(words[1]) * 1024 for words in lines if len(words) >= 2}
    total = found.get("MemTotal:", -1)
    if total <= 0:
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            total = -1
    return total, found.get("MemAvailable:", found.get("MemFree:", -1))


def _inactive_file(folder: str) -> int:
    for line in files.text(folder + "/memory.stat").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] in ("inactive_file", "total_inactive_file"):
            return max(_number(words[1]), 0)
    return 0


def cgroup_folders(controller: str) -> Iterator[str]:
    """Yield the folders that hold the limits of `controller` (version 1 or 2) on this process, innermost first.

    Inside a container the path in /proc/self/cgroup is often the host's; then only the mount's root is there.
    """
    for line in files.text("/proc/self/cgroup").splitlines():
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if controllers and controller not in controllers.split(","):
            continue
        mount = _mount(controllers, controller)
        path = os.path.normpath(path)
        while path not in ("/", ".", ""):
            if os.path.isdir(mount + path):
                yield mount + path
            path = os.path.dirname(path)
        yield mount


def _mount(controllers: str, controller: str) -> str:
    if controllers:
        both = f"{_CGROUPS}/{controllers}"
        return both if os.path.isdir(both) else f"{_CGROUPS}/{controller}"
    unified = _CGROUPS + "/unified"
    return unified if os.path.isdir(unified) else _CGROUPS


def _first_number(*paths: str) -> int:
    return next((number for number in map(_number, map(files.text, paths)) if number >= 0), -1)


def _number(text: str) -> int:
    """Return a decimal number, -1 where it is none ("max", garbage)."""
    text = text.strip()
    return int(text) if text.isdigit() and text.isascii() and len(text) < 20 else -1
