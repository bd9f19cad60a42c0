"""The command's file system: everything is readable, its folders are writable, overlays receive other writes.

It is in a new mount namespace, which is invisible outside. An overlay shows a folder's content and keeps every change
in an upper folder, which is removed with the sandbox; the report lists the changes in that folder. Sources: Linux 6.18
Documentation/filesystems/overlayfs.rst (whiteouts are character devices 0:0; `userxattr` in a user namespace; upper and
lower folders may not overlap), mount_namespaces(7).
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from . import calls

SHARED_MEMORY, TERMINALS = "/dev/shm", "/dev/pts"
MOUNT_FLAGS = {"nosuid": calls.MS_NOSUID, "nodev": calls.MS_NODEV, "noexec": calls.MS_NOEXEC}
MOUNT_FLAGS |= {"noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21, "nosymfollow": 256}
KERNEL_MEMORY = ("mem", "kmem", "port", "kmsg")
PROC = "/proc"  # a process may write its own entries; CUDA does not start if it cannot name its threads there
KERNEL_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "kcore", "mtrr", "driver")
USED_SOCKETS = ("nvidia-mps", "/nscd", "/sssd")  # programs read the machine's state through these
SOCKETS = "/run"
OPAQUE = "user.overlay.opaque"


class Overlay(NamedTuple):
    """A folder with an overlay on it, and the folder for its changes."""

    folder: str
    upper: str


def restrict(writable: Sequence[str], overlaid: Iterable[str], uppers: str, sockets: Iterable[str]) -> list[Overlay]:
    """Make everything read-only except the folders `writable`; return the possible overlays on `overlaid`.

    `uppers` is an empty folder for the overlays' changes. Raises `OSError` if anything stays writable.
    """
    descriptors = {folder: os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in writable}
    work_folder = os.getcwd()
    calls.mount("", "/", flags=calls.MS_REC | calls.MS_PRIVATE)
    overlays = list(_mount_overlays(overlaid, uppers))
    for folder, descriptor in descriptors.items():  # an overlay may hide it
        calls.mount(f"/proc/self/fd/{descriptor}", folder, flags=calls.MS_BIND)
        os.close(descriptor)
    kept = {*writable, *(overlay.folder for overlay in overlays), PROC}
    if os.path.isdir(SHARED_MEMORY):
        calls.mount("tmpfs", SHARED_MEMORY, "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=1777")
        kept.add(SHARED_MEMORY)
    if os.path.isdir(TERMINALS):  # the user's terminals could be written to, also as input
        calls.mount("devpts", TERMINALS, "devpts", calls.MS_NOSUID | calls.MS_NOEXEC, "newinstance,ptmxmode=0666")
    _hide_devices_and_sockets(sockets)
    for path, options in _list_mounts():
        if path not in kept:
            _make_read_only(path, options)
    os.chdir(work_folder)  # the current folder was below the overlay
    return overlays


def _mount_overlays(overlaid: Iterable[str], uppers: str) -> Iterator[Overlay]:
    """Mount an overlay on each folder, if possible: changes are kept on disk, otherwise in memory."""
    chosen = _choose_folders(overlaid)
    # Folders that contain `uppers` are last: a folder under an overlay cannot be the upper folder of another.
    for index, folder in enumerate(sorted(chosen, key=lambda folder: uppers.startswith(f"{folder}/"))):
        for kind in ("memory",) if uppers.startswith(f"{folder}/") else ("disk", "memory"):
            upper = os.path.join(uppers, f"{index}-{kind}")
            with contextlib.suppress(OSError):
                os.mkdir(upper)
                if kind == "memory":
                    calls.mount("tmpfs", upper, "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=700")
                yield _mount_overlay(folder, upper)
                break


def _choose_folders(overlaid: Iterable[str]) -> list[str]:
    """Return the folders that are in no other and contain no mount, which an overlay would hide."""
    mounted = [path for path, _ in _list_mounts()]
    chosen: list[str] = []
    for folder in sorted({os.path.realpath(folder) for folder in overlaid} - {"/"}):
        is_inside = any(folder.startswith(f"{other}/") for other in chosen)
        if not is_inside and not any(path.startswith(f"{folder}/") for path in mounted):
            chosen.append(folder)
    return chosen


def _mount_overlay(folder: str, upper: str) -> Overlay:
    """Mount an overlay on a folder. Raises `OSError`; the paths may not contain an option separator."""
    changed, work = os.path.join(upper, "upper"), os.path.join(upper, "work")
    if any(mark in path for path in (folder, upper) for mark in ",:\\"):
        raise OSError(f"an overlay cannot be mounted on {folder}")
    held = os.stat(folder)
    for path in (changed, work):
        os.mkdir(path)
    os.chmod(changed, stat.S_IMODE(held.st_mode))
    # Open, it can be read after the overlay has hidden its path.
    descriptor = os.open(changed, os.O_PATH | os.O_DIRECTORY)
    options = f"lowerdir={folder},upperdir={changed},workdir={work}"
    try:
        calls.mount("overlay", folder, "overlay", data=f"{options},userxattr")
    except OSError:
        calls.mount("overlay", folder, "overlay", data=options)
    return Overlay(folder, f"/proc/self/fd/{descriptor}")


def _list_mounts() -> list[tuple[str, list[str]]]:
    """Return every mount point with its options, the last mounted last."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        fields = [line.split(" ") for line in stream]
    return [
        (re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field[4]), field[5].split(","))
        for field in fields
    ]


def _make_read_only(path: str, options: Sequence[str]) -> None:
    if "ro" in options:
        return
    flags = sum(MOUNT_FLAGS.get(option, 0) for option in options)  # an omitted flag would be cleared
    if not {"noatime", "relatime"} & set(options):
        flags |= calls.MS_STRICTATIME
    try:
        calls.mount("", path, flags=calls.MS_REMOUNT | calls.MS_BIND | calls.MS_RDONLY | flags)
    except (FileNotFoundError, NotADirectoryError):
        pass  # another mount hides it
    except OSError:
        with contextlib.suppress(OSError):
            if not os.path.ismount(path):
                return  # the same
        raise


def _hide_devices_and_sockets(sockets: Iterable[str]) -> None:
    """Hide disks, the kernel's memory, and sockets of services that act for others."""
    paths = [path for path in sockets if not any(name in path for name in USED_SOCKETS)]
    for name in os.listdir("/dev"):
        with contextlib.suppress(OSError):
            if name in KERNEL_MEMORY or stat.S_ISBLK(os.stat(f"/dev/{name}").st_mode):
                paths.append(f"/dev/{name}")
    for path in paths:
        with contextlib.suppress(OSError):
            calls.mount("/dev/null", path, flags=calls.MS_BIND)


def list_sockets() -> list[str]:
    """Return the paths of the sockets of services: in this network namespace, and those passed in from others."""
    paths = [path for path, _ in _list_mounts()]  # a container gets its host's socket as a mount
    paths += [value.removeprefix("unix://") for value in os.environ.values()]  # DOCKER_HOST, SSH_AUTH_SOCK
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as stream:
        paths += [f"/{line.rstrip()}" for line in (line.partition(" /")[2] for line in stream) if line]
    for folder, _, names in os.walk(SOCKETS):
        paths += [f"{folder}/{name}" for name in names]
    return sorted({path for path in paths if _is_socket(path)})


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def restrict_proc(is_init: bool) -> None:
    """Make the kernel's settings in /proc read-only; `is_init`: show only the processes of our PID namespace."""
    if is_init:
        calls.mount("proc", PROC, "proc", calls.MS_NOSUID | calls.MS_NODEV | calls.MS_NOEXEC)
    mounted = dict(_list_mounts())
    for name in KERNEL_SETTINGS:
        path = f"{PROC}/{name}"
        if os.path.exists(path) and "ro" not in mounted.get(path, ()):
            calls.mount(path, path, flags=calls.MS_BIND)
            flags = calls.MS_NOSUID | calls.MS_NODEV | calls.MS_NOEXEC
            calls.mount("", path, flags=calls.MS_REMOUNT | calls.MS_BIND | calls.MS_RDONLY | flags)


def is_proc_safe() -> bool:
    """Return whether the kernel's settings in /proc are already not writable, as for most users and containers."""
    paths = [f"{PROC}/{name}" for name in ("sys/kernel/core_pattern", "sysrq-trigger", "irq")]
    return not any(os.access(path, os.W_OK) for path in paths)


def list_changes(overlay: Overlay) -> Iterator[tuple[str, str]]:
    """Yield each path that was changed under an overlay, with "written" or "removed"."""
    for folder, names, files in os.walk(overlay.upper):
        shown = overlay.folder + folder[len(overlay.upper) :]
        with contextlib.suppress(OSError):
            if folder != overlay.upper and os.getxattr(folder, OPAQUE) == b"y":
                yield shown, "removed"  # and created again
        for name in sorted((*files, *(name for name in names if os.path.islink(f"{folder}/{name}")))):
            with contextlib.suppress(OSError):
                status = os.lstat(f"{folder}/{name}")
                is_whiteout = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
                yield f"{shown}/{name}", "removed" if is_whiteout else "written"
