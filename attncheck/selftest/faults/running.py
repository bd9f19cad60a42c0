"""Runs attncheck's own command line on a planted ground, in a child, as a user would."""

from __future__ import annotations

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

from attncheck.selftest.faults import Ground
from attncheck.workers.process import Process, ending, piped, uninterrupted

ROOT = Path(__file__).resolve().parents[3]
STDOUT_LIMIT = 64 << 20  # bytes
PATIENCE = 10.0  # seconds that a check gets to stop what it has started
# The first program gives itself exactly the planted variables; the second is the command line, found after all else.
RUN = "import sys; sys.path.append(sys.argv.pop(1)); from attncheck.__main__ import main; main()"
BECOME = (
    "import json, os, sys; environ = json.loads(sys.argv[1]); "
    "os.execve(sys.executable, [sys.executable, '-B', '-c', *sys.argv[2:]], environ)"
)
# Left out, as selftest is no rank of any group, and what it plants is all that shall be seen.
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
PREFIXES = ("SLURM_", "TORCHELASTIC_", "OMPI_", "PMI_")


@dataclass(frozen=True)
class Ended:
    """How a check ended: its findings, or None and the reason; `passed` counts what it measured and found right."""

    seconds: float
    returncode: int
    findings: tuple[dict[str, Any], ...] | None
    reason: str = ""
    passed: int = 0


class Check(Process):
    """One run of the command line."""

    def __init__(self, ground: Ground) -> None:
        self._said: list[bytes] = []
        self._began = time.monotonic()
        environ = environment(ground, os.environ)
        words = ["-c", BECOME, json.dumps(environ), RUN, str(ROOT), *ground.words]
        super().__init__(sys.executable, words, None, str(ground.folder))

    def _servers(self) -> list[Callable[[], None]]:
        return [self._close_input, self._read_report, *super()._servers()]

    def _read_report(self) -> None:
        size = 0
        with contextlib.suppress(OSError, ValueError), piped(self._process.stdout) as stream:
            while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
                size += len(chunk)
                if size <= STDOUT_LIMIT:
                    self._said.append(chunk)

    def look(self, seconds: float) -> Ended | None:
        """Return how it ended, None while it runs; after `seconds` it is stopped."""
        late = time.monotonic() - self._began > seconds
        if self.returncode is None and not late:
            return None
        if late:
            self.stop()
        for thread in self._threads:
            thread.join(PATIENCE)
        self.kill()
        took = round(time.monotonic() - self._began, 2)
        if late:
            return Ended(took, -1, None, f"the check had not ended after {seconds:.0f} s and was stopped")
        return _read(b"".join(self._said), took, self.returncode or 0, self.stderr)

    def stop(self) -> None:
        """End it as Ctrl-C would, so that it stops what it has started; then kill what is left."""
        with uninterrupted():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, signal.SIGTERM)
            self.ended(PATIENCE)
            self.kill()


def start(ground: Ground) -> Check:
    """Start the command of a ground."""
    return Check(ground)


def environment(ground: Ground, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the check: the user's own, or none where the ground is hermetic, and the planted."""
    kept = {} if ground.hermetic else dict(own)
    kept = {name: value for name, value in kept.items() if name not in LAUNCHERS and not name.startswith(PREFIXES)}
    kept.update((name, value) for name, value in ground.environ.items() if value is not None)
    gone = [name for name, value in ground.environ.items() if value is None]
    return {name: value for name, value in kept.items() if name not in gone}


def _read(said: bytes, seconds: float, returncode: int, stderr: str) -> Ended:
    try:
        report = json.loads(said)
        findings = tuple(report["findings"])
        passed = int(report["answers"]["pass"])
    except (ValueError, KeyError, TypeError):
        return Ended(seconds, returncode, None, f"the check gave no report: {ending(returncode, stderr)}")
    return Ended(seconds, returncode, findings, passed=passed)
