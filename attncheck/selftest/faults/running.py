"""Runs attncheck's own command line in a sandbox, as a child process, like a user."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attncheck.selftest.faults import Sandbox
from attncheck.workers.process import Process, closing_stream, defer_signals, describe_exit

ROOT = Path(__file__).resolve().parents[3]
STDOUT_LIMIT = 64 << 20  # bytes
STOP_SECONDS = 10.0  # time for a check to stop the processes that it started
# EXEC_SCRIPT starts CLI_SCRIPT with exactly the sandbox's variables; attncheck is last on CLI_SCRIPT's sys.path.
CLI_SCRIPT = "import sys; sys.path.append(sys.argv.pop(1)); from attncheck.__main__ import main; main()"
EXEC_SCRIPT = (
    "import json, os, sys; environ = json.loads(sys.argv[1]); "
    "os.execve(sys.executable, [sys.executable, '-B', '-c', *sys.argv[2:]], environ)"
)
# Removed, because selftest is no rank of a group, and the check should see only the injected fault.
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
LAUNCHER_PREFIXES = ("SLURM_", "TORCHELASTIC_", "OMPI_", "PMI_")


@dataclass(frozen=True)
class CheckOutcome:
    """How a check ended: its findings, or None and the reason; `passed` counts the correct measurements.

    `skips` are the inconclusive rules.
    """

    seconds: float
    returncode: int
    findings: tuple[dict[str, Any], ...] | None
    reason: str = ""
    passed: int = 0
    skips: tuple[dict[str, Any], ...] = ()


class CheckProcess(Process):
    """One run of the command line in a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._stdout: list[bytes] = []
        self._began = time.monotonic()
        environ = check_environment(sandbox, os.environ)
        arguments = ["-c", EXEC_SCRIPT, json.dumps(environ), CLI_SCRIPT, str(ROOT), *sandbox.arguments]
        super().__init__(sys.executable, arguments, None, str(sandbox.folder))

    def _stream_handlers(self) -> list[Callable[[], None]]:
        return [self._close_stdin, self._read_report, *super()._stream_handlers()]

    def _read_report(self) -> None:
        size = 0
        with contextlib.suppress(OSError, ValueError), closing_stream(self._process.stdout) as stream:
            while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
                size += len(chunk)
                if size <= STDOUT_LIMIT:
                    self._stdout.append(chunk)

    def poll(self, seconds: float) -> CheckOutcome | None:
        """Return how the check ended, None while it runs; after `seconds` it is stopped."""
        timed_out = time.monotonic() - self._began > seconds
        if self.returncode is None and not timed_out:
            return None
        if timed_out:
            self.stop()
        for thread in self._threads:
            thread.join(STOP_SECONDS)
        self.kill()
        elapsed = round(time.monotonic() - self._began, 2)
        if timed_out:
            return CheckOutcome(elapsed, -1, None, f"the check had not ended after {seconds:.0f} s and was stopped")
        return _parse_report(b"".join(self._stdout), elapsed, self.returncode or 0, self.stderr)

    def stop(self) -> None:
        """End the check as Ctrl-C would, so that it stops its own processes; then kill the remaining ones."""
        with defer_signals():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, signal.SIGTERM)
            self.wait_for_exit(STOP_SECONDS)
            self.kill()


def start_check(sandbox: Sandbox) -> CheckProcess:
    """Start the command of a sandbox."""
    return CheckProcess(sandbox)


def check_environment(sandbox: Sandbox, user_environ: Mapping[str, str]) -> dict[str, str]:
    """Return the check's variables: the user's (none if the sandbox is hermetic), changed by the sandbox's."""
    variables = {} if sandbox.hermetic else dict(user_environ)
    launcher = [name for name in variables if name in RANK_VARIABLES or name.startswith(LAUNCHER_PREFIXES)]
    variables = {name: value for name, value in variables.items() if name not in launcher}
    variables.update((name, value) for name, value in sandbox.environ.items() if value is not None)
    removed = [name for name, value in sandbox.environ.items() if value is None]
    return {name: value for name, value in variables.items() if name not in removed}


def _parse_report(stdout: bytes, seconds: float, returncode: int, stderr: str) -> CheckOutcome:
    try:
        report = json.loads(stdout)
        findings = tuple(report["findings"])
        passed = int(report["answers"]["pass"])
        skips = tuple(report["skips"])
    except (ValueError, KeyError, TypeError):
        return CheckOutcome(
            seconds, returncode, None, f"the check wrote no report: {describe_exit(returncode, stderr)}"
        )
    return CheckOutcome(seconds, returncode, findings, passed=passed, skips=skips)
