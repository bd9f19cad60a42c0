"""The tasks of a worker on one device: list the backends, measure parity, repeat, try one case."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, cast

from attncheck.attention import backends
from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.verdicts import Mode
from attncheck.workers.inside.worker import ask_for_more


def list_backends(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Send each backend's title and version, or why it is missing; nothing heavy is imported."""
    send({"device": {"kind": "none"}})
    known, broken = backends.load()
    states: dict[str, dict[str, Any]] = {}
    for name, backend in known.items():
        try:
            state = asdict(backend.installed())
        except BaseException as error:  # a damaged installation may raise any exception
            state = {"version": "", "missing": f"detecting it raised {type(error).__name__}: {error}"}
        states[name] = {
            **state,
            "title": backend.title,
            "package": backend.package,
            "over_ranks": backend.sharding is not None,
        }
    for item in broken:
        states[item.name] = {"missing": f"it cannot be loaded: {item.reason}"}
    send(make_answer("backends", {"backends": states, "torch": importlib.util.find_spec("torch") is not None}))


def make_answer(item: str, answer: Any) -> dict[str, Any]:
    """Return the document that answers an item."""
    return {"item": item, "answer": answer}


def parity(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Measure backends on the message's cases, item by item ("case@backend"), then on those of its other parts."""
    from attncheck.attention.device import open_device
    from attncheck.measure.worker.builds import with_builds

    device = with_builds(open_device(message, send))
    from attncheck.attention.memory import wait_for_memory
    from attncheck.measure.worker.judging import SharedResults
    from attncheck.measure.worker.session import ParitySession, is_fatal

    known, names = backends.load()[0], message["backends"]
    shared = SharedResults() if len(names) > 1 else None
    sessions = {
        name: ParitySession(known[name], device, tuple(known.values()), message["seconds"], shared=shared)
        for name in names
    }
    while message:
        cases = read_cases(message)
        for item in message["items"]:
            case_name, _, backend_name = item.partition("@")
            case, session, backend = cases[case_name], sessions[backend_name], known[backend_name]
            report_waiting = partial(send, {"waiting": item})
            send({"started": item})  # this backend is charged if the worker dies or hangs
            if device.kind == "cuda" and backend.compiles:
                session.compile(case)
            run = session.check_case(case)
            if run.outcome == "ok":  # a refused case must not wait for memory that it will never use
                with wait_for_memory(message["folder"], case, device.kind, backend, message["slots"], report_waiting):
                    send({"started": item})
                    run = session.measure(case)
            marks = {"survived": run.outcome == "ok", "spoiled": is_fatal(run)}
            send({**make_answer(item, codec.to_plain(run)), **marks})
            if is_fatal(run):
                sys.exit("the device no longer responds")
        message = ask_for_more(send) if message.get("has_other_parts") else {}


def determinism(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Repeat one backend's cases and compare bit by bit; an item is a case and a mode, "case@mode".

    Timing, and repeats on an idle device, wait until all workers have finished the other work.
    """
    from attncheck.attention.device import open_device
    from attncheck.measure.worker.builds import with_builds

    device = with_builds(open_device(message, send))
    from attncheck.attention.memory import release_cached_memory, wait_for_memory
    from attncheck.measure.worker.repeats import Repeater
    from attncheck.measure.worker.turns import hold_turn

    backend, cases, started = backends.load()[0][message["backend"]], read_cases(message), {}
    repeater = Repeater(backend, device, message["repeats"])
    folder, report_waiting = message["folder"], partial(send, {"waiting": "turn"})
    if device.kind == "cuda" and backend.compiles:
        for item in message["items"]:
            send({"started": item})  # the backend that is charged if it dies or hangs
            repeater.compile(cases[item.partition("@")[0]])
    with hold_turn(folder, report_waiting, shared=True):
        if device.kind == "cuda":
            repeater.load_kernels(next(iter(cases.values())))
        for item in message["items"]:
            name, _, mode = item.partition("@")
            with wait_for_memory(folder, cases[name], device.kind, backend, message["slots"], report_waiting):
                send({"started": item})
                started[item] = repeater.begin(cases[name], cast(Mode, mode))
        release_cached_memory(device.kind)
    with hold_turn(folder, report_waiting):
        for item, finish in started.items():
            send({"started": item})
            send(make_answer(item, codec.to_plain(finish())))


def available(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Measure a plain case with each backend named in the items, to see whether it runs on this device."""
    from attncheck.attention.device import open_device
    from attncheck.measure.worker.builds import with_builds

    device = with_builds(open_device(message, send))
    from attncheck.measure.worker.session import ParitySession

    known = backends.load()[0]
    for name in message["items"]:
        send({"started": name})
        run = ParitySession(known[name], device, tuple(known.values())).measure(codec.read(Case, message["case"]))
        send(make_answer(name, codec.to_plain(run)))


def read_cases(message: dict[str, Any]) -> dict[str, Case]:
    """Return the cases of a message by name."""
    return {document["name"]: codec.read(Case, document) for document in message["cases"]}
