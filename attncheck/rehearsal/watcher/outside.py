"""Records refused writes outside the rehearsal's folder, by Python's audit events (PEP 578).

Files in an overlay are listed from the overlay. This module records refused writes, which may be why a launch fails.
Without a network namespace it also refuses connections of Python's own sockets to other machines.
"""

from __future__ import annotations

import os
import sys
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of CPython 3.10 to 3.14, "Audit events table": the positions of the changed paths.
CHANGES = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "shutil.rmtree": (0,),
}
IGNORED = ("/dev/", "/proc/", "/sys/")
MAX_NOTES = 100
LOCAL = ("127.", "::1", "localhost", "0.0.0.0", "::ffff:127.")


def install(folder: str) -> None:
    """Watch this process. The rehearsal may write only to `folder`."""
    noted: set[str] = set()
    # set by the sandbox if there is no network namespace
    keeps_local = bool(os.environ.get("http_proxy", "").endswith(":9"))
    is_noting: list[bool] = []

    def note(path: Any) -> None:
        if not isinstance(path, (str, bytes)) or len(noted) >= MAX_NOTES or is_noting:
            return
        is_noting.append(True)
        try:
            text = os.path.realpath(os.fsdecode(path))
            if text in noted or text.startswith((folder, *IGNORED)) or _can_write(text):
                return
            noted.add(text)
            with open(os.path.join(folder, "watch", f"denied-{os.getpid()}"), "a") as stream:
                stream.write(ascii(text)[1:-1] + "\n")
        except Exception:
            pass
        finally:
            is_noting.clear()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            flags = arguments[2]
            if isinstance(flags, int) and flags & WRITING:
                note(arguments[0])
        elif event in CHANGES:
            for place in CHANGES[event]:
                note(arguments[place])
        elif event == "socket.connect" and keeps_local and _is_elsewhere(arguments[1]):
            raise PermissionError(f"attncheck rehearses without a network: {arguments[1]}")

    sys.addaudithook(hook)


def _can_write(path: str) -> bool:
    """Return whether a path can be written, or the folder in which it would be created."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.access(path, os.W_OK)


def _is_elsewhere(address: Any) -> bool:
    return isinstance(address, tuple) and bool(address) and not str(address[0]).startswith(LOCAL)
