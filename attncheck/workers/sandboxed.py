"""A shell command in a sandbox: it writes only to its folders, has no network, and leaves no process running.

How much of that is possible depends on the kernel (`sandbox/supervisor.py` tries); `read_isolation` returns the result.
The variable `ATTNCHECK_ISOLATION` limits what is tried: "landlock" uses no namespaces, "none" nothing.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.core.rehearsal import Isolation
from attncheck.workers.process import Process

LIMIT_VARIABLE = "ATTNCHECK_ISOLATION"
MEANS: Mapping[str, tuple[str, ...]] = {"": ("namespaces", "landlock"), "landlock": ("landlock",), "none": ()}
NOT_STARTED = 125  # same value as in attncheck.workers.sandbox.supervisor
END_SECONDS = 20.0  # more than the supervisor needs to end its processes
MAX_REPORT_BYTES = 4 << 20
# Variables that make the loader run a library's code in every program, including the supervisor (ld.so(8)).
OF_LOADER = ("LD_", "GLIBC_TUNABLES")
START = "import sys; sys.path.append(sys.argv.pop()); from sandbox.supervisor import main; main()"


def _read_means() -> tuple[str, ...]:
    value = os.environ.get(LIMIT_VARIABLE, "")
    if value not in MEANS:
        raise BadUsage(f"{LIMIT_VARIABLE}={value}: expected landlock or none, or leave it unset")
    return MEANS[value]


@dataclass(frozen=True)
class Sandbox:
    """A command's permissions: `writable` are its folders, `overlaid` those with an overlay.

    `folder` is an empty one, which the command cannot write to. With `needs_files` the command starts only if files are
    protected.
    """

    folder: str
    writable: Sequence[str]
    overlaid: Sequence[str] = ()
    needs_files: bool = True
    means: Sequence[str] = field(default_factory=_read_means)

    @property
    def report(self) -> str:
        """The file for the supervisor's report."""
        return os.path.join(self.folder, "report.json")


class SandboxedProcess(Process):
    """A shell that runs a command under the sandbox's supervisor; its standard input is the supervisor's lifeline."""

    options: Sequence[str] = ("-I", "-S", "-B")

    def __init__(self, command: str, environment: Mapping[str, str], folder: str, sandbox: Sandbox) -> None:
        """Start the command in `folder`. Raises `Unanswered` if no program can be started."""
        uppers = os.path.join(sandbox.folder, "uppers")
        os.makedirs(uppers)
        loaded = {name: value for name, value in environment.items() if name.startswith(OF_LOADER)}
        request = {
            "command": [
                "/usr/bin/env",
                *(f"{name}={value}" for name, value in loaded.items()),
                "/bin/bash",
                "-c",
                command,
            ],
            "writable": [*sandbox.writable],
            "overlaid": [*sandbox.overlaid],
            "uppers": uppers,
            "report": sandbox.report,
            "means": [*sandbox.means],
            "needs_files": sandbox.needs_files,
        }
        arguments = ["-c", START, json.dumps(request), os.path.dirname(__file__)]
        outside = {name: value for name, value in environment.items() if name not in loaded}
        super().__init__(sys.executable, arguments, outside, folder)

    def kill(self) -> None:
        """Request the supervisor to end the command and its processes; kill it if it does not respond."""
        stdin = self._process.stdin
        if self._process.poll() is None and stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                stdin.write(b"e")
                stdin.flush()
            self.wait_for_exit(END_SECONDS)
        super().kill()
        with contextlib.suppress(OSError, ValueError):
            if stdin is not None:
                stdin.close()


def read_isolation(sandbox: Sandbox) -> Isolation:
    """Return how a finished command was isolated, and its writes that an overlay kept."""
    try:
        document: dict[str, Any] = json.loads(read_bounded(sandbox.report, MAX_REPORT_BYTES))
        return Isolation(
            document["files"],
            document["network"],
            document["processes"],
            tuple(document["overlaid"]),
            tuple(path for path, kind in document["changes"] if kind == "written"),
            tuple(path for path, kind in document["changes"] if kind == "removed"),
        )
    except (OSError, CannotRead, ValueError, KeyError, TypeError):
        return Isolation()
