"""A filter for system calls that Landlock does not cover: metadata changes, and truncation before version 3.

Calls that change a file's mode, owner, times or attributes do nothing and return 0. Calls that truncate by name fail,
and so does opening only for truncation. Calls that set another process's limits or priority, or a file's flags by
ioctl, fail too. `openat2` and io_uring, whose arguments a filter cannot see, and the kernel's keyrings appear to be
missing: programs then use older calls. Sources: Linux 6.18 include/uapi/linux/seccomp.h and filter.h;
arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h (arm64);
Documentation/userspace-api/landlock.rst ("Current limitations").
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from . import calls

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
ALLOW, FAIL = 0x7FFF0000, 0x00050000  # with FAIL, the low bits are the error; 0 is success
LOAD, JUMP_EQUAL, JUMP_NOT_BELOW, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets into seccomp_data
X32 = 0x40000000  # calls of x86-64's other table, which share its architecture
FAILED_OPENING = os.O_ACCMODE | os.O_TRUNC  # the flags that are checked
MISSING = (425, 437)  # io_uring_setup, openat2; one table since Linux 5.0
SETTING_FLAGS = (0x40086602, 0x401C5820)  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR: read-only descriptors are sufficient
IGNORED = (452, 463, 466, 469)  # fchmodat2, setxattrat, removexattrat, file_setattr; also one table


class Table(NamedTuple):
    """The numbers of an architecture's calls."""

    architecture: int  # AUDIT_ARCH_*
    ignored: tuple[int, ...]  # chmod, chown, utime, setxattr, removexattr, and similar ones
    truncate: int
    opening: tuple[tuple[int, int], ...]  # open and openat, each with the position of its flags
    keys: tuple[int, ...]  # add_key, request_key, keyctl
    # prlimit64, setpriority, ioprio_set, each with the position of the process argument; 0 is the own process
    of_others: tuple[tuple[int, int], ...]
    ioctl: int


TABLES = {
    "x86_64": Table(
        0xC000003E,
        (90, 91, 92, 93, 94, 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280),
        76,
        ((2, 1), (257, 2)),
        (248, 249, 250),
        ((302, 0), (141, 1), (251, 1)),
        16,
    ),
    "aarch64": Table(
        0xC00000B7,
        (5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88),
        45,
        ((56, 2),),
        (217, 218, 219),
        ((261, 0), (140, 1), (30, 1)),
        29,
    ),
}


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def restrict(truncates: bool, is_in_namespaces: bool) -> None:
    """Install the filter, for this process and its children.

    `truncates`: calls that truncate are allowed. `is_in_namespaces`: everything is allowed except keyrings, which are
    not namespaced. Raises `OSError` if it cannot be installed, or if the architecture's calls are unknown.
    """
    table = TABLES.get(os.uname().machine)
    if table is None:
        raise OSError(f"the system call numbers of {os.uname().machine} are unknown")
    instructions = [_Instruction(*instruction) for instruction in _write_program(table, truncates, is_in_namespaces)]
    program = _Program(len(instructions), (_Instruction * len(instructions))(*instructions))
    calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
    calls.prctl_pointer(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))


def _write_program(table: Table, truncates: bool, is_in_namespaces: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield the instructions, each (code, jump if so, jump if not, value)."""
    denied = FAIL | errno.EPERM
    yield LOAD, 0, 0, ARCHITECTURE
    yield JUMP_EQUAL, 1, 0, table.architecture
    yield RETURN, 0, 0, denied  # 32-bit calls, which have other numbers
    yield LOAD, 0, 0, NUMBER
    yield JUMP_NOT_BELOW, 0, 1, X32
    yield RETURN, 0, 0, denied
    for number in (*MISSING, *table.keys):
        yield JUMP_EQUAL, 0, 1, number
        yield RETURN, 0, 0, FAIL | errno.ENOSYS
    if is_in_namespaces:
        yield RETURN, 0, 0, ALLOW
        return
    answers = dict.fromkeys((*table.ignored, *IGNORED), FAIL)
    if not truncates:
        answers[table.truncate] = denied
    for number, answer in answers.items():
        yield JUMP_EQUAL, 0, 1, number
        yield RETURN, 0, 0, answer
    for number, place in table.of_others:
        yield JUMP_EQUAL, 0, 4, number
        yield LOAD, 0, 0, ARGUMENTS + 8 * place
        yield JUMP_EQUAL, 1, 0, 0
        yield RETURN, 0, 0, denied
        yield RETURN, 0, 0, ALLOW
    for request in SETTING_FLAGS:
        yield JUMP_EQUAL, 0, 4, table.ioctl
        yield LOAD, 0, 0, ARGUMENTS + 8
        yield JUMP_EQUAL, 0, 1, request
        yield RETURN, 0, 0, denied
        yield LOAD, 0, 0, NUMBER
    for number, place in () if truncates else table.opening:
        yield JUMP_EQUAL, 0, 5, number
        yield LOAD, 0, 0, ARGUMENTS + 8 * place
        yield AND, 0, 0, FAILED_OPENING
        yield JUMP_EQUAL, 0, 1, os.O_TRUNC | os.O_RDONLY
        yield RETURN, 0, 0, denied
        yield RETURN, 0, 0, ALLOW
    yield RETURN, 0, 0, ALLOW
