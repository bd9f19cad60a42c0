"""Lists the backends of an environment: those that run on its device, and why the others do not."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.io.visible import show_line_ends
from attncheck.core.lists import group_values
from attncheck.core.verdicts import BackendState, Run
from attncheck.measure import discovery
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool, default_slots

COMPILED = "it is compiled for each shape; `attncheck parity` runs it"
NOT_INSTALLED = "not installed"


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
    """Return the availability of every backend for one plain case; backends of one package share a process."""
    report_progress("looking for backends")
    states = discovery.list_backends(target)
    packages = group_values(
        (state.package, state)
        for state in states
        if not state.missing and not discovery.get_backend(state.name).compiles
    )
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
        return make_availability("untried", COMPILED)
    if event.kind == "out_of_time":
        return make_availability("untried", event.reason)
    if event.kind != "answer":
        return make_availability("broken", event.reason)
    run = codec.read(Run, event.answer)
    if run.outcome == "refused":
        return make_availability("refuses", run.reason)
    if run.outcome != "ok" or run.foreign_kernels:
        return make_availability("broken", run.reason or f"{run.foreign_kernels} ran instead")
    return make_availability("runs", ran=run.kernels)


def format_text(availabilities: Sequence[Availability]) -> str:
    """Return the verdict and a line for each group of backends: "not installed (2)  xformers: xformers_flash"."""
    groups = group_values((_name_group(availability), availability) for availability in availabilities)
    ready = groups.get("ready", [])
    lines = [f"{len(ready)} of {len(availabilities)} backends ready"]
    width = max(len(name) for name in groups) + 5
    for name, members in sorted(groups.items(), key=lambda item: (item[0] != "ready", item[0] == NOT_INSTALLED)):
        lines.append(f"{f'{name} ({len(members)})':<{width}}  {', '.join(member.name for member in members)}")
    lines += [
        f"{member.name}: {member.reason}"
        for name, members in groups.items()
        if name in ("broken", "refused", "not tried")
        for member in members
    ]
    return "".join(f"{show_line_ends(line)}\n" for line in lines)


def _name_group(availability: Availability) -> str:
    """Return what one backend needs, in the same words for all backends with that need."""
    reason = availability.reason
    if availability.state == "runs":
        return "ready"
    if reason == COMPILED:
        return "ready, compiled on first use"
    if reason.endswith("is not installed"):
        return NOT_INSTALLED
    if reason.endswith("on CUDA only"):
        return "needs CUDA"
    if reason.startswith("runs across ranks: "):
        return "needs --ring-size 2"
    return {"untried": "not tried", "refuses": "refused"}.get(availability.state, availability.state)


def format_json(availabilities: Sequence[Availability]) -> str:
    """Return the list as a JSON array."""
    return json.dumps([asdict(availability) for availability in availabilities], indent=2, ensure_ascii=False) + "\n"
