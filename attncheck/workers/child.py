"""Runs attncheck's payload in a Python interpreter: a child process with a deadline that leaves nothing running."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from attncheck.core.io import interrupts
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.workers.process import CHILD_ENVIRONMENT, Process, closing_stream, describe_exit, kill_all
from attncheck.workers.scratch import empty_folder

STDOUT_LIMIT = 64 << 20  # bytes; every document is far smaller, the output of a runaway program is not
POLL_SECONDS = 0.25  # between two checks for an interrupt
# Python 2 must be able to parse this part, so that it can report that it is too old.
BOOTSTRAP = """\
import sys
if sys.version_info < (3, 8):
    sys.stdout.write('{"too_old": "%d.%d"}' % sys.version_info[:2])
    sys.exit(0)
import os
out = os.dup(1)
os.dup2(2, 1)
sys.path[:] = [entry for entry in sys.path if entry and entry != os.getcwd()]
import json
from importlib.machinery import ModuleSpec
message = json.loads(sys.stdin.buffer.read().decode("utf-8"))
sources, package = message["sources"], message["package"]
class PayloadImporter:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=not sources[name]) if name in sources else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(sources[name], "<" + name + ">", "exec"), module.__dict__)
sys.meta_path.insert(0, PayloadImporter())
answer = __import__(package + ".main", fromlist=["call"]).call(message["call"], message["request"])
with os.fdopen(out, "wb") as stream:
    stream.write(json.dumps(answer).encode("utf-8", "backslashreplace"))
    stream.flush()
    os._exit(0)
"""


class ChildResult(NamedTuple):
    """How a child ended, and its answer if it has one."""

    outcome: Literal["ok", "died", "timed_out"]
    answer: object = None
    returncode: int = 0
    stderr: str = ""

    def describe_failure(self) -> str:
        """Return, in a few words, why there is no answer."""
        if self.outcome == "timed_out":
            return "it did not answer before its deadline and was stopped"
        return describe_exit(self.returncode, self.stderr)


class Child(Process):
    """One interpreter that runs one call of the payload."""

    def __init__(self, python: str, call: str, message: Mapping[str, object]) -> None:
        """Start `python`. Raises `BadUsage` if it cannot be started."""
        self.call = call
        self._message = message
        self._stdout: list[bytes] = []
        super().__init__(python, ["-c", BOOTSTRAP], _make_environment(call))

    def _stream_handlers(self) -> list[Callable[[], None]]:
        return [self._write_message, self._read_answer, *super()._stream_handlers()]

    def wait(self, deadline: float) -> ChildResult:
        """Return the child's result; at `deadline` (a time.monotonic() value) it is killed."""
        try:
            for thread in self._threads:
                while thread.is_alive() and time.monotonic() < deadline:
                    thread.join(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
                    interrupts.raise_if_interrupted()
            timed_out = any(thread.is_alive() for thread in self._threads)
            if not timed_out:
                try:
                    self._process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    timed_out = True
        finally:
            self.kill()
        return self._make_result(timed_out)

    def _make_result(self, timed_out: bool) -> ChildResult:
        try:
            answer = json.loads(b"".join(self._stdout))
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return ChildResult("ok", answer, stderr=self.stderr)
        return ChildResult("timed_out" if timed_out else "died", None, self._process.returncode or 0, self.stderr)

    def _write_message(self) -> None:
        with contextlib.suppress(OSError), closing_stream(self._process.stdin) as stream:
            stream.write(json.dumps(self._message).encode())

    def _read_answer(self) -> None:
        size = 0
        with contextlib.suppress(OSError, ValueError), closing_stream(self._process.stdout) as stream:
            while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
                size += len(chunk)
                if size > STDOUT_LIMIT:
                    self._stdout.clear()
                    return
                self._stdout.append(chunk)


def _make_environment(call: str) -> dict[str, str]:
    """Return the variables that a call adds; the static lane reads the user's own, and sets none."""
    if call == "static":
        return {}
    folder = empty_folder()
    is_ours = folder != os.path.abspath(os.sep)
    caches = {"TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
    return {**CHILD_ENVIRONMENT, **(caches if is_ours else {})}


def wait_for_children(children: Sequence[Child], deadline: float) -> dict[str, ChildResult]:
    """Wait for `children` and return their results by call; all have ended when this function ends in any way."""
    try:
        return {child.call: child.wait(deadline) for child in children}
    finally:
        kill_all()


def require_answer(result: ChildResult, python: str) -> dict[str, object]:
    """Return a child's answer. Raises `BadUsage` for an unusable interpreter, `Unanswered` for one that timed out."""
    if isinstance(result.answer, dict):
        if "too_old" in result.answer:
            raise BadUsage(f"{python} is Python {result.answer['too_old']}; attncheck can examine Python 3.8 or newer")
        return result.answer
    if result.outcome == "timed_out":
        raise Unanswered(f"the interpreter {python} did not answer: {result.describe_failure()}")
    raise BadUsage(f"{python} does not behave like a Python interpreter: {result.describe_failure()}")
