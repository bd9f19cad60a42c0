"""Describes the interpreter and the machine within this process's limits, including affinity and cgroups."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from . import files
from .facts import absent, known, unreadable

_CGROUPS = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2**63 for "no limit"


def collect_host() -> dict[str, Any]:
    """Return the record `core.environment.Host`."""
    total, available = measure_memory()
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
        "glibc": _read_glibc_version(),
        "kernel": os.uname().release if hasattr(os, "uname") else "",
        "cpu_count": count_cpus(),
        "memory_total_bytes": total,
        "memory_available_bytes": available,
        "shm_bytes": _read_shm_size(),
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


def _read_glibc_version() -> dict[str, object]:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        text = ""
    parts = text.split()
    return known(parts[-1]) if len(parts) == 2 and parts[0] == "glibc" else absent("the C library is not glibc")


def _read_shm_size() -> dict[str, object]:
    try:
        status = os.statvfs("/dev/shm")
    except (AttributeError, OSError):
        return absent("there is no /dev/shm")
    return known(status.f_frsize * status.f_blocks)


def count_cpus() -> int:
    """Return how many processors this process may use; at least 1."""
    try:
        count = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        count = os.cpu_count() or 1
    for folder in cgroup_folders("cpu"):
        quota, period = _read_cpu_quota(folder)
        if quota > 0 and period > 0:
            count = min(count, -(-quota // period))
    return max(count, 1)


def _read_cpu_quota(folder: str) -> tuple[int, int]:
    fields = files.read_text(folder + "/cpu.max").split()
    if len(fields) != 2:
        fields = [files.read_text(folder + "/cpu.cfs_quota_us"), files.read_text(folder + "/cpu.cfs_period_us")]
    return _parse_number(fields[0]), _parse_number(fields[1])


def measure_memory() -> tuple[dict[str, object], dict[str, object]]:
    """Return total and available memory in bytes as facts, of the machine or a cgroup, whichever is less."""
    total, available = _read_machine_memory()
    for folder in cgroup_folders("memory"):
        limit = _read_first_number(folder + "/memory.max", folder + "/memory.limit_in_bytes")
        if not 0 < limit < _UNLIMITED:
            continue
        total = min(total, limit) if total > 0 else limit
        used = _read_first_number(folder + "/memory.current", folder + "/memory.usage_in_bytes")
        if used >= 0:
            # The inactive page cache counts as free, because the kernel drops it first.
            free = max(limit - max(used - _read_inactive_file_bytes(folder), 0), 0)
            available = min(available, free) if available >= 0 else free
    return (
        known(total) if total > 0 else unreadable("no /proc/meminfo"),
        known(available) if available >= 0 else unreadable("no /proc/meminfo"),
    )


def _read_machine_memory() -> tuple[int, int]:
    lines = (line.split() for line in files.read_text("/proc/meminfo").splitlines())
    sizes = {fields[0]: _parse_number(fields[1]) * 1024 for fields in lines if len(fields) >= 2}
    total = sizes.get("MemTotal:", -1)
    if total <= 0:
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            total = -1
    return total, sizes.get("MemAvailable:", sizes.get("MemFree:", -1))


def _read_inactive_file_bytes(folder: str) -> int:
    for line in files.read_text(folder + "/memory.stat").splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[0] in ("inactive_file", "total_inactive_file"):
            return max(_parse_number(fields[1]), 0)
    return 0


def cgroup_folders(controller: str) -> Iterator[str]:
    """Yield the folders with the limits of `controller` (cgroup version 1 or 2) for this process, innermost first.

    Inside a container, the path in /proc/self/cgroup is often the host's; then only the mount's root exists.
    """
    for line in files.read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if controllers and controller not in controllers.split(","):
            continue
        mount = _find_cgroup_mount(controllers, controller)
        path = os.path.normpath(path)
        while path not in ("/", ".", ""):
            if os.path.isdir(mount + path):
                yield mount + path
            path = os.path.dirname(path)
        yield mount


def _find_cgroup_mount(controllers: str, controller: str) -> str:
    if controllers:
        joint = f"{_CGROUPS}/{controllers}"
        return joint if os.path.isdir(joint) else f"{_CGROUPS}/{controller}"
    unified = _CGROUPS + "/unified"
    return unified if os.path.isdir(unified) else _CGROUPS


def _read_first_number(*paths: str) -> int:
    return next((number for number in map(_parse_number, map(files.read_text, paths)) if number >= 0), -1)


def _parse_number(text: str) -> int:
    """Return a decimal number; -1 for any other text ("max", garbage)."""
    text = text.strip()
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else -1
