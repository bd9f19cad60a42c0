"""The worker process: reads one message and runs its task, which sends each result as a line of JSON."""

import ctypes
import faulthandler
import importlib.util
import json
import os
import queue
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1
REQUIRED = ("torch", "packaging", "transformers", "tokenizers")  # the first missing one is reported
_following: "queue.SimpleQueue[bytes]" = queue.SimpleQueue()  # the lines after the first one


def main(out: int) -> None:
    """Run one job, sending results on the file descriptor `out`; ends the process."""
    die_with_parent()
    faulthandler.enable(all_threads=False)  # the parent reads from it where a worker died
    message = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_read_stdin, args=(message.get("folder", ""),), daemon=True).start()
    # a process forked by a backend must not write to our channel
    os.register_at_fork(after_in_child=lambda: os.close(out))
    warnings.simplefilter("ignore")
    stream = os.fdopen(out, "wb", buffering=0)

    def send(document: dict[str, Any]) -> None:
        stream.write(json.dumps(document).encode() + b"\n")

    run_task(message, send)
    stream.close()
    sys.stderr.flush()
    os._exit(0)  # a CUDA context or a compiler's pool may take seconds to end, or hang


def run_task(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Run the task of a message; a missing package that it needs is reported as its answer."""
    try:
        load_task(message["task"])(message, send)
    except ModuleNotFoundError as error:
        if error.name not in REQUIRED:
            raise
        missing = next(name for name in REQUIRED if name == error.name or importlib.util.find_spec(name) is None)
        where = f"the environment of {sys.executable}"
        send({"unanswered": f"{missing} is not installed in {where}; `attncheck doctor` gives details"})


def ask_for_more(send: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return the message of more work like that which we have done; {} if there is none."""
    send({"more": True})
    message: dict[str, Any] = json.loads(_following.get())
    return message


def load_task(name: str) -> Callable[..., None]:
    """Return the function at "module:function", which the job names, because this package imports no task."""
    module, _, function = name.partition(":")
    task: Callable[..., None] = getattr(importlib.import_module(module), function)
    return task


def die_with_parent() -> None:
    """Ask Linux to kill this process when attncheck is killed (PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _read_stdin(folder: str) -> None:
    """Read lines until standard input closes, and end then: attncheck has ended and cannot clean up."""
    for line in sys.stdin.buffer:
        _following.put(line)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgid(0), signal.SIGKILL)
