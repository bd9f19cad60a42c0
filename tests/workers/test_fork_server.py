"""Workers that are forked from one interpreter: they share its imports, and nothing else differs from started ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.workers import fork_server
from attncheck.workers.pool import Event, Job, Pool

pytestmark = pytest.mark.skipif(not fork_server.IS_SUPPORTED, reason="workers are forked on Linux only")

# `shared` is imported once, by the server; a task answers with the process that imported it and its own.
TASKS = """
import ctypes, json, os, sys, time

def work(message, send):
    import shared
    send({"device": {"kind": "cpu"}})
    for item in message["items"]:
        send({"started": item})
        if item == "dies":
            ctypes.string_at(0)
        if item == "sleeps":
            time.sleep(100)
        if item == "raises":
            raise ValueError("planted")
        if item == "prints":
            print("not an answer", flush=True)
        answer = [shared.PID, os.getpid(), os.getsid(0), os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")]
        send({"item": item, "answer": [*answer, sorted(os.listdir("/proc/self/fd"), key=int)]})
    if message.get("has_other_parts"):
        from attncheck.workers.inside.worker import ask_for_more
        if following := ask_for_more(send):
            work(following, send)
"""


def make_jobs(folder: Path, *items: tuple[str, ...], shared: str = "") -> list[Job]:
    (folder / "planted_tasks.py").write_text(TASKS)
    (folder / "shared.py").write_text(f"import os, sys\nPID = os.getpid()\n{shared}")
    message = {"task": "planted_tasks:work", "threads": 1}
    return [Job(f"job{i}", message, own, 3.0, str(folder), imports=("shared",)) for i, own in enumerate(items)]


def run_jobs(jobs: list[Job], slots: int = 2) -> dict[str, Event]:
    events: list[Event] = []
    assert not Pool(sys.executable, slots).run(jobs, events.append)
    return {event.item: event for event in events if event.kind != "started"}


def test_workers_share_the_imports_and_nothing_else(tmp_path: Path, marker: str) -> None:
    events = run_jobs(make_jobs(tmp_path, ("a", "prints"), ("b",), ("c",)))
    answers = {item: event.answer for item, event in events.items()}
    importers, pids, sessions = ({answer[i] for answer in answers.values()} for i in range(3))
    assert len(importers) == 1 and len(pids) == 3 and not importers & pids
    assert sessions == pids  # so that each is killed with all of its own children
    assert {answer[3] for answer in answers.values()} == {os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")}
    assert len({len(answer[4]) for answer in answers.values()}) == 1  # no worker holds a pipe of another


def test_a_single_job_is_started_without_a_server(tmp_path: Path, marker: str) -> None:
    answer = run_jobs(make_jobs(tmp_path, ("a",)))["a"].answer
    assert answer[0] == answer[1]


@pytest.mark.parametrize("fault", ["raise RuntimeError('planted')", "os._exit(3)", "import nowhere_to_be_found"])
def test_if_the_server_cannot_import_each_worker_starts_on_its_own(tmp_path: Path, marker: str, fault: str) -> None:
    # only in the server, which has no message yet: a worker has opened its task's module before
    shared = f"if 'planted_tasks' not in sys.modules:\n    {fault}\n"
    events = run_jobs(make_jobs(tmp_path, ("a",), ("b",), ("c",), shared=shared))
    assert {event.kind for event in events.values()} == {"answer"}
    assert all(event.answer[0] == event.answer[1] for event in events.values())


def test_a_module_that_no_worker_can_import_is_told_as_without_a_server(tmp_path: Path, marker: str) -> None:
    events = run_jobs(make_jobs(tmp_path, ("a",), ("b",), shared="raise RuntimeError('planted')"))
    assert {event.kind for event in events.values()} == {"died"}
    assert all("RuntimeError: planted" in event.reason for event in events.values())


def test_a_crash_a_hang_and_an_error_are_told_as_without_a_server(tmp_path: Path, marker: str) -> None:
    events = run_jobs(make_jobs(tmp_path, ("dies", "a"), ("sleeps", "b"), ("raises", "c")), slots=3)
    assert events["dies"].reason.startswith("it ended with SIGSEGV in string_at")
    assert events["sleeps"].kind == "timed_out" and "; it slept: " in events["sleeps"].reason
    assert events["raises"].kind == "died" and events["raises"].reason.endswith("ValueError: planted")
    assert {events[item].kind for item in "abc"} == {"answer"}


@pytest.mark.parametrize("slots", [1, 3])
def test_a_worker_that_asks_for_more_gets_the_next_part_of_its_work(tmp_path: Path, marker: str, slots: int) -> None:
    parts = make_jobs(tmp_path, ("a",), ("dies", "b"), ("c", "d"), ("e",), ("f",), ("other",))
    jobs = [replace(job, name="parts", message={**job.message, "has_other_parts": True}) for job in parts[:5]]
    events = run_jobs([*jobs, parts[5]], slots)
    assert events.pop("dies").kind == "died" and set(events) == {*"abcdef", "other"}
    assert all(event.kind == "answer" for event in events.values())
    pids = [events[item].answer[1] for item in "abcdef"]
    assert len(set(pids)) == 2 if slots == 1 else len(set(pids)) <= slots + 1
    assert events["other"].answer[1] not in pids


def test_a_prepared_pool_forks_even_a_single_job(tmp_path: Path, marker: str) -> None:
    (job,) = make_jobs(tmp_path, ("a",))
    events: list[Event] = []
    pool = Pool(sys.executable, 2)
    with pool.prepare(job, job):
        assert not pool.run([job], events.append)
    importer, pid = events[-1].answer[:2]
    assert importer != pid
    assert not list_marked(marker)


def test_runs_of_a_prepared_pool_share_its_imports(tmp_path: Path, marker: str) -> None:
    """Each run ends its own workers, also one that has no device, and the next is forked from the same process."""
    dying, living = make_jobs(tmp_path, ("a", "dies"), ("b",))
    events: list[Event] = []
    pool = Pool(sys.executable, 1)
    with pool.prepare(dying):
        pool.run([dying], events.append)
        pool.run([living], events.append)
    answers = {event.item: event.answer for event in events if event.kind == "answer"}
    assert answers["a"][0] == answers["b"][0] != answers["b"][1] and answers["a"][1] != answers["b"][1]
    assert not list_marked(marker)


def list_marked(marker: str) -> list[int]:
    """Return the processes whose environment has the marker."""
    pids = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and marker.encode() in (entry / "environ").read_bytes():
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_fork_server import make_jobs, run_jobs
run_jobs(make_jobs(Path(sys.argv[1]), ("sleeps",), ("sleeps",)))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_a_killed_parent(tmp_path: Path, number: signal.Signals) -> None:
    marker = f"FORKED_{os.getpid()}_{number}"
    command = [sys.executable, "-c", PARENT, str(tmp_path), str(Path(__file__).parent)]
    parent = subprocess.Popen(command, env={**os.environ, "MARKER": marker})
    wait_until(lambda: len(list_marked(marker)) == 4)  # the parent, the server and two workers
    parent.send_signal(number)
    parent.wait(20)
    wait_until(lambda: not list_marked(marker))


def wait_until(is_true: object, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not is_true():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)
