"""The inside of a worker: reads one message, measures item after item, says each result as a line of JSON."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, cast

from attncheck.attention import backends
from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.results.timings import TimedMode
from attncheck.core.results.verdicts import Mode

PR_SET_PDEATHSIG = 1


def main(out: int) -> None:
    """Serve one job, saying results on the file descriptor `out`; ends the process."""
    die_with_parent()
    message = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, args=(message.get("folder", ""),), daemon=True).start()
    os.register_at_fork(after_in_child=lambda: os.close(out))  # what a backend forks must not answer for it
    warnings.simplefilter("ignore")
    stream = os.fdopen(out, "wb", buffering=0)

    def say(document: dict[str, Any]) -> None:
        stream.write(json.dumps(document).encode() + b"\n")

    _TASKS[message["task"]](message, say)
    stream.close()
    sys.stderr.flush()
    os._exit(0)  # a CUDA context or a compiler's pool may take seconds to end, or hang


def die_with_parent() -> None:
    """Ask Linux to kill us when attncheck is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_input(folder: str) -> None:
    """End when standard input does: attncheck is gone, whatever took it, and cannot clear up any more."""
    while sys.stdin.buffer.read(1):
        pass
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def census(message: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Say of each backend its title, version, or why it cannot be had; nothing heavy is imported."""
    say({"device": {"kind": "none"}})
    known, broken = backends.load()
    told: dict[str, dict[str, Any]] = {}
    for name, backend in known.items():
        try:
            found = asdict(backend.find())
        except BaseException as error:  # a damaged installation may raise anything
            found = {"version": "", "missing": f"looking for it raised {type(error).__name__}: {error}"}
        told[name] = {
            **found,
            "title": backend.title,
            "package": backend.package,
            "over_ranks": backend.sharding is not None,
        }
    for item in broken:
        told[item.name] = {"missing": f"it cannot be loaded: {item.reason}"}
    say(_answer("census", {"backends": told, "torch": importlib.util.find_spec("torch") is not None}))


def _answer(item: str, answer: Any) -> dict[str, Any]:
    return {"item": item, "answer": answer}


def open_device(message: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> Any:
    """Open the device and say what it is."""
    import torch

    from attncheck.measure.worker.session import device_of

    torch.set_num_threads(message["threads"])
    kind = message["device"]
    if kind == "cuda" and not torch.cuda.is_available():
        why = f"torch {torch.__version__} is built without CUDA" if torch.version.cuda is None else "none is visible"
        say({"unanswered": f"there is no CUDA device to measure on: {why}; `attncheck doctor` says more"})
        os._exit(0)
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = device_of(kind)
    capability = list(device.compute_capability)
    say({"device": {"kind": kind, "name": device.name, "compute_capability": capability, "torch": torch.__version__}})
    return device


def parity(message: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Measure one backend on every case of the message."""
    device = open_device(message, say)
    from attncheck.attention.memory import turn
    from attncheck.measure.worker.session import Session, fatal

    known = backends.load()[0]
    backend = known[message["backend"]]
    session = Session(backend, device, tuple(known.values()), message["seconds"])
    cases = _cases(message)
    for name in message["items"]:
        case = cases[name]
        waiting = partial(say, {"waiting": case.name})
        with turn(message["folder"], case, device.kind, backend, message["slots"], waiting):
            say({"started": case.name})
            run = session.measure(case)
        say(_answer(case.name, codec.plain(run)))
        if fatal(run):
            sys.exit("the device does not answer any more")


def determinism(message: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Repeat one backend's cases and compare bit by bit; an item is a case and a mode, "case@mode"."""
    device = open_device(message, say)
    from attncheck.measure.worker.repeats import Repeater

    repeater = Repeater(backends.load()[0][message["backend"]], device, message["repeats"])
    cases = _cases(message)
    for item in message["items"]:
        name, _, mode = item.partition("@")
        say({"started": item})
        say(_answer(item, codec.plain(repeater.measure(cases[name], cast(Mode, mode)))))


def available(message: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Say for each backend named in the items whether it runs a plain case on this device, and if not, why."""
    device = open_device(message, say)
    from attncheck.measure.worker.session import Session

    known = backends.load()[0]
    for name in message["items"]:
        say({"started": name})
        run = Session(known[name], device, tuple(known.values())).measure(codec.read(Case, message["case"]))
        say(_answer(name, codec.plain(run)))


def bench(message: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Time one backend, an item being a case and a mode, "case@mode"; the device's plain work where none is named."""
    device = open_device(message, say)
    from attncheck.measure.worker.bench_session import BenchSession
    from attncheck.measure.worker.device_rates import rates
    from attncheck.measure.worker.session import fatal

    known, cases = backends.load()[0], _cases(message)
    if not message["backend"]:
        say({"started": message["items"][0]})
        say(_answer(message["items"][0], codec.plain(rates(device.kind, message["dtype"]))))
        return
    session = BenchSession(
        known[message["backend"]], device, tuple(known.values()), message["seconds"], message["dtype"]
    )
    for item in message["items"]:
        say({"started": item})
        name, _, mode = item.partition("@")
        run, timing = session.measure(cases[name], cast(TimedMode, mode))
        say(_answer(item, {"run": codec.plain(run), "timing": codec.plain(timing)}))
        if fatal(run):
            sys.exit("the device does not answer any more")


def _cases(message: dict[str, Any]) -> dict[str, Case]:
    """Return the cases of a message by name."""
    return {document["name"]: codec.read(Case, document) for document in message["cases"]}


def smoke(message: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Train small models and prove what a plan makes of them."""
    from attncheck.smoke.worker.tasks import smoke as serve

    serve(message, say)


_TASKS = {
    "smoke": smoke,
    "census": census,
    "parity": parity,
    "determinism": determinism,
    "available": available,
    "bench": bench,
}
