"""Landlock: the kernel denies every write outside some folders, permanently, for this process and its children.

Source: Linux 6.18 Documentation/userspace-api/landlock.rst. Reading is not restricted. Landlock 3 (Linux 6.2) is the
first version that covers truncation. None covers calls that change only metadata, so `metadata.py` does. Version 6 also
blocks signals to processes outside.
"""

import ctypes
import os
import stat
from collections.abc import Iterable, Iterator

from . import calls

WRITE_FILE, REMOVE_DIR, REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_SYM = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 12
MAKE_DEVICES = 1 << 6 | 1 << 11  # never granted
REFER, TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3
WRITES = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_SYM
SCOPES = 1 << 0 | 1 << 1  # abstract sockets, signals
ON_FILES = WRITE_FILE | TRUNCATE  # the rights that a rule for a file, not a folder, can have
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH, RULE_NET_PORT = 1, 2
CONNECT_TCP = 1 << 1
NETWORK_SINCE = 4  # the first version that covers ports
OPEN_PORTS = range(1024, 1 << 16)  # ranks meet on these; network services such as HTTP and SSH are below
# Character devices that programs write to. They include no disks, memory or user terminals.
DEVICES = ("null", "zero", "full", "random", "urandom", "ptmx")
ACCELERATORS = ("nvidia", "dri", "kfd", "infiniband", "accel", "gdrdrv", "neuron", "davinci", "hisi")


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _Port(ctypes.Structure):
    _fields_ = [("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # Python 3.14 requires it for a packed structure
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def get_version() -> int:
    """Return the kernel's Landlock version, 0 if it has none or it is turned off."""
    arguments = (None, ctypes.c_size_t(0), ctypes.c_uint32(CREATE_RULESET_VERSION))
    try:
        return calls.syscall(calls.SYS_LANDLOCK_CREATE_RULESET, "landlock", *arguments)
    except OSError:
        return 0


def restrict(folders: Iterable[str], closes_ports: bool = False) -> None:
    """Deny writes outside these folders and the usual devices, and connections to TCP ports below 1024.

    `closes_ports`: whether to deny connections; before version 4 ports stay open. Raises `OSError` without Landlock.
    """
    version = get_version()
    if not version:
        raise OSError("Landlock is not available")
    handled = WRITES | MAKE_DEVICES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    closes_ports = closes_ports and version >= NETWORK_SINCE
    ruleset = _Ruleset(handled, CONNECT_TCP * closes_ports, SCOPES if version >= 6 else 0)
    # size of the part of the structure that this version knows
    size = 24 if version >= 6 else 16 if version >= NETWORK_SINCE else 8
    sizes = (ctypes.c_size_t(size), ctypes.c_uint32(0))
    descriptor = calls.syscall(
        calls.SYS_LANDLOCK_CREATE_RULESET, "landlock_create_ruleset", ctypes.byref(ruleset), *sizes
    )
    try:
        for path in (*folders, *_iter_devices()):
            _allow(descriptor, path, handled & ~MAKE_DEVICES)
        for port in OPEN_PORTS if closes_ports else ():
            _add_rule(descriptor, RULE_NET_PORT, _Port(CONNECT_TCP, port))
        calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
        restricted = (ctypes.c_int(descriptor), ctypes.c_uint32(0))
        calls.syscall(calls.SYS_LANDLOCK_RESTRICT_SELF, "landlock_restrict_self", *restricted)
    finally:
        os.close(descriptor)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule for a path, if it exists."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        _add_rule(ruleset, RULE_PATH_BENEATH, _PathBeneath(rights if is_folder else rights & ON_FILES, descriptor))
    finally:
        os.close(descriptor)


def _add_rule(ruleset: int, kind: int, rule: ctypes.Structure) -> None:
    arguments = (ctypes.c_int(ruleset), ctypes.c_int(kind), ctypes.byref(rule), ctypes.c_uint32(0))
    calls.syscall(calls.SYS_LANDLOCK_ADD_RULE, "landlock_add_rule", *arguments)


def _iter_devices() -> Iterator[str]:
    """Yield the devices that a program may write to: the standard ones, and accelerators."""
    for name in os.listdir("/dev"):
        path = f"/dev/{name}"
        if name in DEVICES or name.startswith(ACCELERATORS):
            yield from (path,) if not os.path.isdir(path) else (f"{path}/{inner}" for inner in os.listdir(path))
