"""Helpers of several test modules: running the real command, and finding the processes it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pythons.interpreters import VARIABLE, find_interpreter

Run = Callable[..., "subprocess.CompletedProcess[str]"]
MARKER = "ATTNCHECK_TEST_RUN"
ROOT = Path(__file__).parents[1]


# A shell that starts the tests in the background has them ignore SIGINT, nohup SIGHUP, and so every process of theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def find_marked_processes(marker: str) -> list[int]:
    """Return the running processes whose environment carries `marker` (Linux)."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARKER}={marker}".encode() in (folder / "environ").read_bytes():
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


def all_processes_gone(marker: str) -> bool:
    """Return whether no marked process is left; one that was just killed may take a moment to go."""
    deadline = time.monotonic() + 30
    while set(find_marked_processes(marker)) - {os.getpid()}:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def find_python(version: str) -> str:
    """Return a Python of this version, or skip: a machine has only those that were installed on it."""
    interpreter = find_interpreter(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} on this machine; {VARIABLE} names interpreters elsewhere")
    return interpreter


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark every process started by this test, and fail it if one outlives it."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARKER, value)
    yield value
    assert all_processes_gone(value), f"processes left behind: {find_marked_processes(value)}"


@pytest.fixture(autouse=True)
def environment_kept() -> Iterator[None]:
    """Put back the variables that a test has changed: workers that run in this process set some for good."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


DURATIONS = Path(__file__).parent / "data" / "durations.json"
_durations: dict[str, float] = defaultdict(float)  # seconds by file


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records how long each file of tests takes."""
    parser.addoption("--record-durations", action="store_true", help=f"write {DURATIONS.name}: seconds by file")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a test's time to its file's."""
    _durations[report.nodeid.partition("::")[0]] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the times of files that take long, if that was queried."""
    if session.config.getoption("--record-durations") and not hasattr(session.config, "workerinput"):
        seconds = {
            file: round(time) for file, time in sorted(_durations.items(), key=lambda item: -item[1]) if time >= 10
        }
        DURATIONS.write_text(json.dumps(seconds, indent=1) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files that take longest first: one that starts last would run alone while the other workers idle."""
    seconds = {ROOT / file: time for file, time in json.loads(DURATIONS.read_text()).items()}
    items.sort(key=lambda item: -seconds.get(item.path, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Sum up what was skipped, by reason: one line a reason, most frequent first."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section(f"{len(skipped)} tests were skipped")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:4} {reason}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Give torch one thread in each worker: those of two workers spin for each other's cores, ten times as long."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _hide_github_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide GitHub Actions, so that commands run by tests do not annotate the run that the tests are part of."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def without_progress(stderr: str) -> str:
    """Return what was written to standard error, less the lines that a slow machine gets every 14 seconds."""
    return re.sub(r"^attncheck: \d+ s: .*\n", "", stderr, flags=re.MULTILINE)


@pytest.fixture
def attncheck(tmp_path: Path) -> Run:
    """Return a function that runs the real command in an empty folder."""

    def run(*argv: str, timeout: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
        settings: dict[str, object] = {"cwd": tmp_path, "capture_output": True, "text": True, **options}
        done = subprocess.run([sys.executable, "-m", "attncheck", *argv], timeout=timeout, **settings)  # type: ignore[call-overload]
        if isinstance(done.stderr, str):
            done.stderr = without_progress(done.stderr)
        return done  # type: ignore[no-any-return]

    return run
