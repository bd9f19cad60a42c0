"""The child process: deadlines kept, outcomes distinguished, nothing left running."""

from __future__ import annotations

import sys
import time

import pytest

from attncheck.workers.child import Child, ChildResult, require_answer, wait_for_children
from attncheck.workers.process import STDERR_TAIL

ENDLESS = "import os, time\nos.fork()\ntime.sleep(600)\n"
PACKAGE = "planted"


def run_payload(body: str, seconds: float = 20.0) -> ChildResult:
    """Return the result of a payload whose `call` has this body."""
    lines = "\n".join("    " + line for line in body.splitlines())
    sources = {PACKAGE: "", f"{PACKAGE}.main": f"def call(name, request):\n{lines}\n"}
    child = Child(sys.executable, "it", {"package": PACKAGE, "sources": sources, "call": "it", "request": {"x": 1}})
    return wait_for_children([child], time.monotonic() + seconds)["it"]


def test_an_answer_comes_back_whatever_is_printed(marker: str) -> None:
    result = run_payload("print('noise' * 100000)\nimport os\nos.write(1, b'more noise')\nreturn {'got': request['x']}")
    assert result.answer == {"got": 1}
    assert require_answer(result, "python") == {"got": 1}


def test_a_sibling_module_can_be_imported(marker: str) -> None:
    sources = {
        PACKAGE: "",
        f"{PACKAGE}.other": "VALUE = 7\n",
        f"{PACKAGE}.main": "from .other import VALUE\ndef call(name, request):\n    return {'got': VALUE}\n",
    }
    child = Child(sys.executable, "it", {"package": PACKAGE, "sources": sources, "call": "it", "request": {}})
    assert wait_for_children([child], time.monotonic() + 20)["it"].answer == {"got": 7}


def test_a_hang_ends_at_its_deadline_with_its_children(marker: str) -> None:
    started = time.monotonic()
    result = run_payload(ENDLESS, seconds=1.0)
    assert result.outcome == "timed_out"
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ValueError('planted')", "ValueError: planted"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import os\nos._exit(7)", "exit status 7"),
        ("import os\nos.abort()", "SIGABRT"),
        ("return {'x': {1, 2}}", "not JSON serializable"),
    ],
)
def test_a_death_says_how(marker: str, body: str, says: str) -> None:
    result = run_payload(body)
    assert result.outcome == "died"
    assert says in result.describe_failure()


def test_an_answer_is_kept_from_a_child_that_leaves_others_behind(marker: str) -> None:
    body = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nreturn {'got': 1}"
    assert run_payload(body, seconds=3.0).answer == {"got": 1}


def test_a_flood_of_errors_is_cut(marker: str) -> None:
    result = run_payload("import sys\nsys.stderr.write('x' * (1 << 24))\nreturn {'got': 1}")
    assert result.answer == {"got": 1}
    assert len(result.stderr) <= STDERR_TAIL
