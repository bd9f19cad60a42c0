"""What several test modules share: running the real command, and finding what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
MARKER = "ATTNCHECK_TEST_RUN"


def processes_marked(marker: str) -> list[int]:
    """Return the running processes whose environment carries `marker` (Linux)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARKER}={marker}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark every process started by this test, and fail it where one outlives it."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARKER, value)
    yield value
    left = [pid for pid in processes_marked(value) if pid != os.getpid()]
    assert left == [], f"processes left behind: {left}"


@pytest.fixture
def attncheck(tmp_path: Path) -> Run:
    """Return a function that runs the real command in an empty folder."""

    def run(*words: str, timeout: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
        settings: dict[str, object] = {"cwd": tmp_path, "capture_output": True, "text": True, **options}
        return subprocess.run([sys.executable, "-m", "attncheck", *words], timeout=timeout, **settings)  # type: ignore[call-overload, no-any-return]

    return run
