"""A pool's deadlines: a hang is told from a machine that is busy, which costs an item another try and no blame."""

from __future__ import annotations

import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.io.errors import Unanswered
from attncheck.workers.pool import NO_TIME_LEFT, Event, Job, Pool, _PoolRun, _RunningWorker, describe_timeout
from attncheck.workers.process import describe_exit
from attncheck.workers.processor_time import CpuUse

# A worker's task without torch. An item of 20 ms of work in every 80 is what a busy machine makes of a computation.
TASKS = """
import ctypes, os, time

def starve(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stop = time.thread_time() + 0.02
        while time.thread_time() < stop:
            pass
        time.sleep(0.06)

def work(message, send):
    send({"device": {"kind": "cpu"}})
    for item in message["items"]:
        send({"started": item})
        with open(message["log"], "a") as log:
            print(item, file=log)
        tries = open(message["log"]).read().split().count(item)
        if item == "sleeps":
            time.sleep(100)
        if item == "dies":
            ctypes.string_at(0)
        if item == "starves" or (item == "starves_once" and tries < 2):
            starve(100)
        send({"item": item, "answer": os.environ.get("OMP_WAIT_POLICY", "") + str(tries)})

def lacking(message, send):
    raise ModuleNotFoundError("No module named 'x'", name=message["items"][0])
"""
SECONDS = 3.0


def make_job(folder: Path, *items: str, name: str = "job") -> Job:
    (folder / "planted_tasks.py").write_text(TASKS)
    message = {"task": "planted_tasks:work", "log": str(folder / "log"), "threads": 1}
    return Job(name, message, items, SECONDS, str(folder))


def run_jobs(folder: Path, *jobs: Job, until: float | None = None) -> tuple[dict[str, Event], tuple[str, ...]]:
    """Return the last event of each item, and the items that were not reached."""
    events: list[Event] = []
    unreached = Pool(sys.executable, 2).run(jobs, events.append, until)
    last = {event.item: event for event in events if event.kind != "started"}
    assert len(last) == sum(event.kind != "started" for event in events), "an item has one outcome"
    return last, unreached


def test_a_hang_is_told_at_once_with_the_time_that_it_used(tmp_path: Path, marker: str) -> None:
    events, _ = run_jobs(tmp_path, make_job(tmp_path, "sleeps", "works"))
    assert events["sleeps"].kind == "timed_out"
    assert events["sleeps"].reason.startswith("no answer within 3 s; it was stopped; it slept: 0.0 s of CPU time in")
    assert events["works"].kind == "answer"
    assert (tmp_path / "log").read_text().split().count("sleeps") == 1


def test_a_fatal_signal_is_told_with_the_function_that_met_it(tmp_path: Path, marker: str) -> None:
    events, _ = run_jobs(tmp_path, make_job(tmp_path, "dies", "works"))
    assert events["dies"].kind == "died"
    assert re.fullmatch(r"it ended with SIGSEGV in string_at \(ctypes/__init__\.py:\d+\)", events["dies"].reason)
    assert events["works"].kind == "answer"


STACK = """\
{before}Fatal Python error: Aborted

Current thread 0x00007f15eb3dc140 (most recent call first):
  File "/env/site-packages/torch/_ops.py", line 1269 in __call__
  File "/env/site-packages/flash_attn_interface.py", line 107 in _flash_attn_forward

Extension modules: numpy, torch._C
"""


NO_FRAME = "Fatal Python error: init_fs_encoding: failed\n\nCurrent thread 0x1:\n  <no Python frame>\n"
PLACE = "_flash_attn_forward (site-packages/flash_attn_interface.py:107)"


@pytest.mark.parametrize(
    ("stderr", "described"),
    [
        (STACK.format(before="  what():  no memory\n"), f"SIGABRT in {PLACE}: what():  no memory"),
        (STACK.format(before=""), f"SIGABRT in {PLACE}"),
        (STACK.format(before=STACK.format(before="one\n")), f"SIGABRT in {PLACE}: one"),
        (NO_FRAME, "SIGABRT: Fatal Python error: init_fs_encoding: failed"),
        (f"two\n{NO_FRAME}", "SIGABRT: two"),
        ("one\ntwo\n", "SIGABRT: two"),
    ],
)
def test_an_end_is_described_by_where_it_was_and_what_was_said(stderr: str, described: str) -> None:
    assert describe_exit(-signal.SIGABRT, stderr) == f"it ended with {described}"


TRACEBACK = """Traceback (most recent call last):
  File "<string>", line 1, in <module>
    import json; json.dumps({"x": {1}})
                 ~~~~~~~~~~^^^^^^^^^^^^
%s
"""


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        (TRACEBACK % "TypeError: no set\nwhen serializing dict item 'x'", "TypeError: no set"),
        (TRACEBACK % "KeyError: 1" + "\nDuring handling of …\n\n" + TRACEBACK % "ValueError: 2", "ValueError: 2"),
        ("the launcher: no such rank\n", "the launcher: no such rank"),
        ("", "no message"),
    ],
)
def test_an_error_that_nothing_caught_is_described_by_its_own_line(stderr: str, line: str) -> None:
    assert describe_exit(1, stderr) == f"it ended with exit status 1: {line}"


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_without_what_everything_is_measured_by_nothing_is_answered(tmp_path: Path, marker: str, module: str) -> None:
    job = make_job(tmp_path, module)
    with pytest.raises(Unanswered, match=f"{module} is not installed in the environment of {sys.executable}"):
        run_jobs(tmp_path, replace(job, message={**job.message, "task": "planted_tasks:lacking"}))


def test_without_another_module_a_worker_dies(tmp_path: Path, marker: str) -> None:
    job = make_job(tmp_path, "torch._C")
    events, _ = run_jobs(tmp_path, replace(job, message={**job.message, "task": "planted_tasks:lacking"}))
    assert events["torch._C"].kind == "died" and "No module named" in events["torch._C"].reason


def test_an_item_that_a_busy_machine_held_up_is_tried_again_alone(tmp_path: Path, marker: str) -> None:
    events, _ = run_jobs(tmp_path, make_job(tmp_path, "starves_once", "works"), make_job(tmp_path, "other", name="b"))
    assert {item: event.kind for item, event in events.items()} == dict.fromkeys(events, "answer")
    log = (tmp_path / "log").read_text().split()
    assert log.count("starves_once") == 2
    assert log[-1] == "starves_once", "after all others"


def test_an_item_that_runs_out_of_time_twice_is_not_judged_and_blames_nobody(tmp_path: Path, marker: str) -> None:
    events, unreached = run_jobs(tmp_path, make_job(tmp_path, "works", "starves", "works_too"))
    assert events["starves"].kind == "out_of_time"
    assert "ran out of time twice, the second time alone, after 9 s: not judged" in events["starves"].reason
    assert events["works"].kind == events["works_too"].kind == "answer"
    assert unreached == ()


def test_what_no_time_is_left_for_is_reported_and_not_called_unreached(tmp_path: Path, marker: str) -> None:
    job = make_job(tmp_path, "starves", "works")
    events, unreached = run_jobs(tmp_path, job, until=time.monotonic() + 2 * SECONDS)
    assert events["starves"].kind == "out_of_time" and events["starves"].reason == NO_TIME_LEFT
    assert unreached == ()


@pytest.mark.nightly
def test_a_job_that_ran_out_of_time_too_often_goes_on_afterwards(tmp_path: Path, marker: str) -> None:
    """Three items held up would have given up all that follow."""
    events, _ = run_jobs(tmp_path, make_job(tmp_path, "starves_once", "sleeps", "works", "starves", "late"))
    assert {item: event.kind for item, event in events.items()} == {
        "starves_once": "answer",
        "sleeps": "timed_out",
        "works": "answer",
        "starves": "out_of_time",
        "late": "out_of_time",
    }


USES = {  # what a worker did, whether it was tried before: what that is called, in which words
    "asleep": (CpuUse("asleep", 0.0, 30.0), False, "timed_out", "it slept: 0.0 s of CPU time in its last 30 s"),
    "endless": (CpuUse("computing", 89.0, 90.0), True, "timed_out", "it computed without stopping: 89.0 s"),
    "starved": (CpuUse("starved", 9.0, 90.0), True, "out_of_time", "not judged; 9.0 s of CPU time in its last 90 s"),
    "unknown": (CpuUse("unknown"), True, "out_of_time", "not judged; --timeout allows more"),
}


@pytest.mark.parametrize("name", USES)
def test_what_a_worker_did_decides_whose_fault_it_is(name: str) -> None:
    use, is_retry, kind, words = USES[name]
    told = describe_timeout(use, 180.0, is_retry)
    assert told[0] == kind and words in told[1]


def test_a_computation_is_never_blamed_the_first_time() -> None:
    assert describe_timeout(CpuUse("computing", 30.0, 30.0), 60.0, False)[0] == "out_of_time"


def test_the_rest_of_a_work_is_queued_once_if_its_worker_asks_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two workers would run its items if they are not skipped after all."""
    run = _PoolRun(Pool(sys.executable, 1), [make_job(tmp_path, "skipped")], lambda event: None, None, str(tmp_path))
    monkeypatch.setattr(run.losses["job"], "reason_to_skip", lambda item: "it shares a feature")
    sent: list[object] = []
    worker: Any = SimpleNamespace(send=sent.append, stop=lambda: "")
    run.running.append(_RunningWorker(worker, run.waiting.pop(), ("answered",), SECONDS))
    run._handle_message(run.running[0], {"more": True})
    run._handle_message(run.running[0], None)
    assert sent == [{}] and [work.items for work in (*run.waiting, *run.parked)] == [["skipped"]]
