"""Lists the backends of an environment: which run on its device, and why the others do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.io.visible import show_line_ends
from attncheck.core.verdicts import BackendState, Run
from attncheck.measure import discovery
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool, default_slots


@dataclass(frozen=True)
class Availability:
    """One backend: "runs", "refuses", "missing", "broken" or "untried", with its reason."""

    name: str
    title: str
    package: str
    version: str
    state: str
    reason: str
    ran: tuple[str, ...]


def probe_backends(target: ExecutionTarget, report_progress: Callable[[str], None]) -> tuple[Availability, ...]:
    """Return the availability of every backend for one plain case; those of one package share a process."""
    report_progress("looking for backends")
    states = discovery.list_backends(target)
    packages: dict[str, list[BackendState]] = {}
    for state in states:
        if not state.missing and not discovery.get_backend(state.name).compiles:
            packages.setdefault(state.package, []).append(state)
    last_events: dict[str, Event] = {}
    pool = Pool(target.python, default_slots(target.uses_gpu))
    case = codec.to_plain(with_name(Case("available", (192,), (192,))))
    message = {
        "task": "attncheck.measure.worker.tasks:available",
        "device": target.device,
        "threads": target.threads_per_worker(2),
        "slots": 1,
        "case": case,
    }
    jobs = [
        Job(name, message, tuple(state.name for state in members), target.seconds) for name, members in packages.items()
    ]

    def on_event(event: Event) -> None:
        report_progress(f"trying {event.item}")
        if event.kind != "started":
            last_events[event.item] = event

    pool.run(jobs, on_event)
    return tuple(_judge_backend(state, last_events.get(state.name)) for state in states)


def _judge_backend(state: BackendState, event: Event | None) -> Availability:
    def make_availability(status: str, reason: str = "", ran: tuple[str, ...] = ()) -> Availability:
        return Availability(state.name, state.title, state.package, state.version, status, reason, ran)

    if state.missing:
        return make_availability("missing", state.missing)
    if event is None:
        return make_availability("untried", "it is compiled for each shape; `attncheck parity` runs it")
    if event.kind == "out_of_time":
        return make_availability("untried", event.reason)
    if event.kind != "answer":
        return make_availability("broken", event.reason)
    run = codec.read(Run, event.answer)
    if run.outcome == "refused":
        return make_availability("refuses", run.reason)
    if run.outcome != "ok" or run.foreign_kernels:
        return make_availability("broken", run.reason or f"{run.foreign_kernels} ran in its place")
    return make_availability("runs", ran=run.kernels)


def format_text(availabilities: Sequence[Availability]) -> str:
    """Return one line for each backend."""
    width = max(len(availability.name) for availability in availabilities)
    lines = []
    for availability in availabilities:
        package = (
            f"{availability.package} {availability.version}".strip() if availability.package != "torch" else "torch"
        )
        ran = f"ran {availability.ran[0][:70]}" if availability.ran else ""
        details = show_line_ends(availability.reason or ran or availability.title)
        lines.append(
            f"{availability.state:<8} {availability.name:<{width}}  {package + ' · ' if package else ''}{details}\n"
        )
    return "".join(lines)


def format_json(availabilities: Sequence[Availability]) -> str:
    """Return the list as a JSON array."""
    return json.dumps([asdict(availability) for availability in availabilities], indent=2, ensure_ascii=False) + "\n"
