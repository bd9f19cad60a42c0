"""The file system as the command sees it: everything is readable, its own folders are writable, and overlays receive
other writes.

It runs in a new mount namespace, which nothing outside sees. An overlay shows a folder as it is and keeps every change
in an upper folder that goes with the sandbox; what changed is listed from that folder. Sources: Linux 6.18
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
PROC = "/proc"  # a process may write what is its own in it: CUDA names its threads there, or does not start
KERNEL_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "kcore", "mtrr", "driver")
USED_SOCKETS = ("nvidia-mps", "/nscd", "/sssd")  # that programs read the machine by
SOCKETS = "/run"
OPAQUE = "user.overlay.opaque"


class Overlay(NamedTuple):
    """A folder with an overlay on it, and where what is changed in it is kept."""

    folder: str
    upper: str


def restrict(writable: Sequence[str], overlaid: Iterable[str], uppers: str, sockets: Iterable[str]) -> list[Overlay]:
    """Make everything read-only but the folders `writable`; return the overlays that could be put on `overlaid`.

    `uppers` is an empty folder for what is changed in overlays. Raises `OSError` if something stays writable.
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
    if os.path.isdir(TERMINALS):  # the user's own could be written to, and typed into
        calls.mount("devpts", TERMINALS, "devpts", calls.MS_NOSUID | calls.MS_NOEXEC, "newinstance,ptmxmode=0666")
    _hide_devices_and_sockets(sockets)
    for path, options in _list_mounts():
        if path not in kept:
            _make_read_only(path, options)
    os.chdir(work_folder)  # it was the folder below the overlay
    return overlays


def _mount_overlays(overlaid: Iterable[str], uppers: str) -> Iterator[Overlay]:
    """Mount an overlay on each folder, if it can have one: changes are kept on disk, else in memory."""
    chosen = _choose_folders(overlaid)
    # Last those that hold `uppers`: what lies under an overlay cannot be the upper folder of another.
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
    """Return the folders that are in no other, and that hold no mount, which an overlay would hide."""
    mounted = [path for path, _ in _list_mounts()]
    chosen: list[str] = []
    for folder in sorted({os.path.realpath(folder) for folder in overlaid} - {"/"}):
        is_inside = any(folder.startswith(f"{other}/") for other in chosen)
        if not is_inside and not any(path.startswith(f"{folder}/") for path in mounted):
            chosen.append(folder)
    return chosen


def _mount_overlay(folder: str, upper: str) -> Overlay:
    """Mount an overlay on a folder. Raises `OSError`; the folders may hold no character that ends an option."""
    changed, work = os.path.join(upper, "upper"), os.path.join(upper, "work")
    if any(mark in path for path in (folder, upper) for mark in ",:\\"):
        raise OSError(f"an overlay cannot be mounted on {folder}")
    held = os.stat(folder)
    for path in (changed, work):
        os.mkdir(path)
    os.chmod(changed, stat.S_IMODE(held.st_mode))
    # Held open, it is read after the overlay has hidden its path.
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
    return [(_unescape(field[4]), field[5].split(",")) for field in fields]


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _make_read_only(path: str, options: Sequence[str]) -> None:
    if "ro" in options:
        return
    flags = sum(MOUNT_FLAGS.get(option, 0) for option in options)  # a flag that is left out would be cleared
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
    """Return the paths of the sockets that services listen on: this network's, and those given here from others."""
    paths = [path for path, _ in _list_mounts()]  # a container is given its host's as a mount
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
    """Return whether nothing of the kernel's can be set in /proc as it is: by other users, and in most containers."""
    paths = [f"{PROC}/{name}" for name in ("sys/kernel/core_pattern", "sysrq-trigger", "irq")]
    return not any(os.access(path, os.W_OK) for path in paths)


def list_changes(overlay: Overlay) -> Iterator[tuple[str, str]]:
    """Yield each path that was changed under an overlay, with "written" or "removed"."""
    for folder, names, files in os.walk(overlay.upper):
        shown = overlay.folder + folder[len(overlay.upper) :]
        with contextlib.suppress(OSError):
            if folder != overlay.upper and os.getxattr(folder, OPAQUE) == b"y":
                yield shown, "removed"  # and made again
        for name in sorted((*files, *(name for name in names if os.path.islink(f"{folder}/{name}")))):
            with contextlib.suppress(OSError):
                status = os.lstat(f"{folder}/{name}")
                is_whiteout = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
                yield f"{shown}/{name}", "removed" if is_whiteout else "written"
