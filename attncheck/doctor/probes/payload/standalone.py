"""The whole probe as one program: each call in its own process, then the snapshot on standard output.

`attncheck probe --standalone` writes it into one file with everything that it needs. It leaves no file behind: files
that packages write during import go to a temporary folder. The children start in that folder, because Python searches
the working folder for modules.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor

from .joining import LANE_CALLS, join_lanes
from .links.suspects import find_suspects
from .processes import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    Plan = Dict[str, Any]  # "lanes", "request", "sources", "package", "bootstrap", "environment", "snapshot", "folder"
    Mask = Callable[[str, str], str]

GRACE_SECONDS = 15.0  # on top of one import's deadline, for starting up and for stopping a process that hangs
_PDEATHSIG = 1  # linux/prctl.h: PR_SET_PDEATHSIG


def main(plan: Plan, mask: Mask) -> int:
    """Print the snapshot and return the exit code; `mask` takes a name and a text and hides secrets."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    folder = ""
    try:
        folder = _make_folder() if plan["lanes"] != ["static"] else ""
        document = collect({**plan, "folder": folder})
    except KeyboardInterrupt:
        return 130
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    if isinstance(document, str):
        sys.stderr.write("attncheck: the interpreter %s did not answer: %s\n" % (sys.executable, document))
        return 3
    text = json.dumps(mask_texts(document, mask), indent=2, ensure_ascii=False) + "\n"
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.flush()
    return 0


def collect(plan: Plan) -> Any:
    """Return the document of a snapshot, or why there is none; no child outlives the call."""
    children: list[Child] = []
    with ThreadPoolExecutor() as pool:

        def start(call: str, limit: float, **more: object) -> Future[Any]:
            children.append(Child(plan, call, more))
            return pool.submit(children[-1].wait, limit)

        try:
            return _collect_lanes(plan, start)
        finally:
            for child in children:  # before the pool waits for the threads that wait for them
                child.kill()


def _collect_lanes(plan: Plan, start: Callable[..., Future[Any]]) -> Any:
    seconds = plan["request"]["seconds"]
    static = start("static", seconds).result()
    if not isinstance(static, dict):
        return static
    calls = [LANE_CALLS[lane] for lane in plan["lanes"] if lane in LANE_CALLS]
    waiting = {call: start(call, seconds + GRACE_SECONDS) for call in calls}
    suspects = find_suspects(static) if "imports" in calls else []
    if suspects:
        waiting["confirm"] = start("confirm", seconds + GRACE_SECONDS, modules=suspects)
    document = join_lanes(static, {call: future.result() for call, future in waiting.items()})
    document["host"]["selection"] = {"selected_by": "", "passed_over": []}
    return {"taken": time.strftime("%Y-%m-%d", time.gmtime()), **plan["snapshot"], **document}


class Child:
    """One interpreter that runs one call of the payload."""

    def __init__(self, plan: Plan, call: str, more: dict[str, object]) -> None:
        message = {key: plan[key] for key in ("package", "sources")}
        self._killed = False
        self._message = json.dumps({**message, "call": call, "request": {**plan["request"], **more}}).encode()
        self._process = subprocess.Popen(
            [sys.executable, "-B", "-c", plan["bootstrap"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=plan["folder"] or os.path.abspath(os.sep),
            env=_child_environment({} if call == "static" else {**plan["environment"], **_caches(plan["folder"])}),
            start_new_session=True,
            preexec_fn=lambda: forking.prctl(_PDEATHSIG, signal.SIGKILL),
        )

    def wait(self, seconds: float) -> Any:
        """Return the answer, or a short text that says why there is none."""
        try:
            output, errors = self._process.communicate(self._message, seconds)
        except subprocess.TimeoutExpired:
            return "it did not answer before its deadline and was stopped"
        finally:
            self.kill()
        try:
            return json.loads(output.decode("utf-8"))
        except ValueError:
            lines = errors.decode("utf-8", "replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
            return "it ended with exit status %d: %s" % (self._process.wait(), last[:300])

    def kill(self) -> None:
        """Kill the rest of the child's process group, only once, because the number may be reused later."""
        if not self._killed:
            self._killed = True
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _make_folder() -> str:
    """Return a new private folder; "" if none can be created."""
    try:
        return tempfile.mkdtemp(prefix="attncheck-")
    except OSError:
        return ""


def _caches(folder: str) -> dict[str, str]:
    """Return the variables that direct the caches of packages into a folder of attncheck."""
    places = {"TMPDIR": "", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    return {name: os.path.join(folder, place) for name, place in places.items()} if folder else {}


def _child_environment(more: dict[str, str]) -> dict[str, str]:
    """Return the environment of a child, which starts in another folder, with absolute paths in PYTHONPATH."""
    environment = {**os.environ, **more, "ATTNCHECK_WORKING_FOLDER": os.getcwd()}
    if "PYTHONPATH" in environment:
        entries = environment["PYTHONPATH"].split(os.pathsep)
        absolute = [entry if os.path.normpath(entry) == "." else os.path.abspath(entry) for entry in entries]
        environment["PYTHONPATH"] = os.pathsep.join(absolute)
    return environment


def mask_texts(value: Any, mask: Mask, name: str = "") -> Any:
    """Return a document with every text masked; the name of an entry may make its value a secret."""
    if isinstance(value, str):
        return mask(name, value)
    if isinstance(value, list):
        return [mask_texts(item, mask) for item in value]
    if isinstance(value, dict):
        return {mask("", key): mask_texts(item, mask, key) for key, item in value.items()}
    return value
