"""Linux system calls without a Python function, by ctypes. Each raises `OSError` if it fails, or on other systems."""

import ctypes
import errno
import os
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE, MS_STRICTATIME = 1 << 14, 1 << 18, 1 << 24
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
# The same number on every architecture: system calls since Linux 5.0 share one table.
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_ADD_RULE, SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446

_LIBC = ctypes.CDLL(None, use_errno=True)


def _function(name: str) -> Any:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"{name}: {os.strerror(errno.ENOSYS)}")
    return getattr(_LIBC, name)


def _check(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount `source` on `target` (mount(2))."""
    texts = [os.fsencode(text) if text else None for text in (source, target, kind)]
    _check(_function("mount")(*texts, ctypes.c_ulong(flags), os.fsencode(data) if data else None), f"mount {target}")


def unshare(flags: int) -> None:
    """Move into new namespaces of the kinds in `flags` (unshare(2))."""
    _check(_function("unshare")(flags), "unshare")


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process (prctl(2))."""
    _check(_function("prctl")(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def syscall(number: int, name: str, *arguments: object) -> int:
    """Return the result of a system call without a libc function."""
    return _check(_function("syscall")(ctypes.c_long(number), *arguments), name)


def prctl_pointer(option: int, value: int, pointer: object) -> None:
    """Set an attribute of this process that is passed as a structure (prctl(2))."""
    _check(_function("prctl")(option, ctypes.c_ulong(value), pointer, 0, 0), "prctl")
