"""Lists the backends of an environment: which run on its device, and why the others do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.results.verdicts import BackendState, Run
from attncheck.measure import discovery
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool, default_slots


@dataclass(frozen=True)
class Availability:
    """One backend: "runs", "refuses", "missing" or "broken", with its reason."""

    name: str
    title: str
    package: str
    version: str
    state: str
    reason: str
    ran: tuple[str, ...]


def look(bench: ExecutionTarget, say: Callable[[str], None]) -> tuple[Availability, ...]:
    """Return what every backend says to a plain case; those of one package share a process."""
    say("looking for backends")
    states = discovery.list_backends(bench)
    packages: dict[str, list[BackendState]] = {}
    for state in states:
        if not state.missing and not discovery.get_backend(state.name).compiles:
            packages.setdefault(state.package, []).append(state)
    ended: dict[str, Event] = {}
    pool = Pool(bench.python, default_slots(bench.uses_gpu))
    case = codec.plain(with_name(Case("available", (192,), (192,))))
    message = {
        "task": "attncheck.measure.worker.tasks:available",
        "device": bench.device,
        "threads": bench.threads_per_worker(2),
        "slots": 1,
        "case": case,
    }
    jobs = [Job(name, message, tuple(s.name for s in members), bench.seconds) for name, members in packages.items()]

    def tell(event: Event) -> None:
        say(f"trying {event.item}")
        if event.kind != "started":
            ended[event.item] = event

    pool.run(jobs, tell)
    return tuple(_availability(state, ended.get(state.name)) for state in states)


def _availability(state: BackendState, event: Event | None) -> Availability:
    def told(word: str, reason: str = "", ran: tuple[str, ...] = ()) -> Availability:
        return Availability(state.name, state.title, state.package, state.version, word, reason, ran)

    if state.missing:
        return told("missing", state.missing)
    if event is None:
        return told("untried", "it is compiled for each shape; `attncheck parity` runs it")
    if event.kind != "answer":
        return told("broken", event.reason)
    run = codec.read(Run, event.answer)
    if run.outcome == "refused":
        return told("refuses", run.reason)
    if run.outcome != "ok" or run.foreign_kernels:
        return told("broken", run.reason or f"{run.foreign_kernels} ran in its place")
    return told("runs", ran=run.kernels)


def as_text(found: Sequence[Availability]) -> str:
    """Return one line a backend."""
    width = max(len(item.name) for item in found)
    lines = []
    for item in found:
        package = f"{item.package} {item.version}".strip() if item.package != "torch" else "torch"
        rest = item.reason or (f"ran {item.ran[0][:70]}" if item.ran else item.title)
        lines.append(f"{item.state:<8} {item.name:<{width}}  {package + ' · ' if package else ''}{rest}\n")
    return "".join(lines)


def as_json(found: Sequence[Availability]) -> str:
    """Return the list as a JSON array."""
    return json.dumps([asdict(item) for item in found], indent=2, ensure_ascii=False) + "\n"
