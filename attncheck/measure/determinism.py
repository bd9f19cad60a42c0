"""Repeats every backend and judges: same bits every time, what makes it so, what that costs, what shares the batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.errors import Unanswered
from attncheck.core.facts import value_or
from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.report import Report
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.results.verdicts import UNMEASURED, BackendState, MeasuredOn, Mode, Repeats, Verdict
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.measure import discovery
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.pool import Event, Job, Pool


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line; `repeats` counts every call of a case, the first included."""

    backends: tuple[str, ...] = ()
    seed: int = 0
    repeats: int = 32


def cases(snapshot: Snapshot, seed: int, gpu: bool) -> tuple[Case, ...]:
    """Return the cases to repeat: many key tiles and over 1e6 gradient elements; a dense one and a packed one."""
    shape = _shape(snapshot, gpu)
    seqlen, batch = (4096, 2) if gpu else (1024, 4)
    if "causal" in shape and not gpu:  # a model's: enough elements, and no more; a CPU takes seconds for a large call
        batch = max(1, math.ceil(1e6 / (seqlen * shape["num_heads"] * shape["head_dim"])))
    documents = (seqlen // 2, seqlen, 100, seqlen // 4) if gpu else (300, 500, 100, 124)
    dense = Case("repeats", (seqlen,) * batch, (seqlen,) * batch, seed=seed, **shape)
    packed = Case("repeats", documents, documents, layout="packed", seed=seed, **shape)
    return with_name(dense), with_name(packed)


def ring_cases(snapshot: Snapshot, seed: int, gpu: bool, ring_size: int) -> tuple[Case, ...]:
    """Return the cases to repeat on a ring: a dense row and a packed one, each document a multiple of 2n."""
    shape = {**_shape(snapshot, gpu), "context_parallel_size": ring_size, "seed": seed}
    shard = (1024 if gpu else 256) // (2 * ring_size) * 2 * ring_size  # of each rank, at least
    seqlen = max(1, shard) * ring_size
    unit = 2 * ring_size
    first = [seqlen // 2 // unit * unit, unit, seqlen // 4 // unit * unit]
    documents = (*first, seqlen - sum(first))
    dense = Case("repeats", (seqlen,), (seqlen,), **shape)
    return with_name(dense), with_name(Case("repeats", documents, documents, layout="packed", **shape))


def _shape(snapshot: Snapshot, gpu: bool) -> dict[str, Any]:
    """Return heads and sizes: the model's, or usual ones."""
    model = discovery.readable_model(snapshot)
    shape: dict[str, Any] = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "v_head_dim": 128}
    if not gpu:
        shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "v_head_dim": 64}
    if model is not None:
        heads, size = value_or(model.num_heads, 8), value_or(model.head_dim, 128)
        shape = {
            "num_heads": heads,
            "num_kv_heads": value_or(model.num_kv_heads, heads),
            "head_dim": size,
            "v_head_dim": value_or(model.v_head_dim, size),
            "causal": model.causal,
        }
    return shape


def run(snapshot: Snapshot, request: Request, bench: ExecutionTarget, say: Callable[[str], None]) -> Report:
    """Return the report on every backend that is here. Raises `Unanswered` where none is."""
    began = time.monotonic()
    chosen_cases = cases(snapshot, request.seed, bench.uses_gpu)
    say("looking for backends")
    states = discovery.list_backends(bench)
    chosen = discovery.choose_backends(states, request.backends)
    pool = Pool(bench.python, 2 if bench.uses_gpu else 1)  # times are told too: few at once
    jobs = [_job(state, chosen_cases, request, bench) for state in chosen]
    progress = Progress(say, sum(len(job.items) for job in jobs))
    found: list[Repeats] = []

    def tell(event: Event) -> None:
        progress.on_event(event)
        if event.kind != "started":
            found.append(repeats_of(event, chosen_cases))

    pool.run(jobs, tell)
    if not found:
        raise Unanswered("no backend could be repeated")
    on = execution.make_measured_on(pool, request.seed, began)
    order = {state.name: index for index, state in enumerate(chosen)}
    found.sort(key=lambda item: (order[item.backend], item.case.layout))
    return report(snapshot, tuple(states), tuple(found), on)


def modes(name: str) -> tuple[Mode, ...]:
    """Return the modes in which a backend is worth repeating."""
    switch = discovery.get_backend(name).deterministic_switch
    if switch == "torch":
        return "default", "deterministic", "warn_only"
    return ("default", "deterministic") if switch else ("default",)


def _job(state: BackendState, chosen: tuple[Case, ...], request: Request, bench: ExecutionTarget) -> Job:
    items = tuple(f"{case.name}@{mode}" for case in chosen for mode in modes(state.name))
    message = {
        "task": "attncheck.measure.worker.tasks:determinism",
        "backend": state.name,
        "device": bench.device,
        "threads": bench.threads_per_worker(2),
        "repeats": request.repeats,
        "cases": codec.plain(chosen),
    }
    factor = max(4.0 if discovery.get_backend(state.name).compiles else 2.0, request.repeats / 6)
    return Job(state.name, message, items, bench.seconds * factor)


def repeats_of(event: Event, chosen: tuple[Case, ...]) -> Repeats:
    """Return the repeats that an event answers, or why there are none."""
    if event.kind == "answer":
        return codec.read(Repeats, event.answer)
    name, _, mode = event.item.partition("@")
    case = next(case for case in chosen if case.name == name)
    return Repeats(event.job, case, cast(Mode, mode), execution.unmeasured_outcome(event), event.reason)


def report(snapshot: Snapshot, states: tuple[BackendState, ...], found: tuple[Repeats, ...], on: MeasuredOn) -> Report:
    """Return the report on measured repeats: pure judging."""
    verdicts = tuple(judge(item) for item in found)
    findings = tuple(finding for state in states for finding in _findings(state.name, found))
    section = DeterminismSection(on, states, verdicts, found)
    return Report("determinism", snapshot, findings, sections={"determinism": section})


def varied(item: Repeats) -> tuple[str, ...]:
    """Return the tensors whose bits changed from call to call."""
    return tuple(difference.tensor for difference in item.differences if difference.distinct > 1)


def judge(item: Repeats) -> Verdict:
    """Return the verdict on one case in one mode: varying is a warning, and wrong where determinism was switched on."""
    answer = UNMEASURED.get(item.outcome)
    because = item.reason
    if answer is None:
        changed = varied(item)
        answer = "pass" if not changed else "fail" if item.mode == "deterministic" else "warn"
        because = told(item) if changed else f"the same bits in {item.repeats} calls, {item.under_load} under load"
    return Verdict("determinism", item.backend, f"{item.case.name}@{item.mode}", item.case.family, answer, because)


def told(item: Repeats) -> str:
    """Return in words which tensors vary, how much, and since when."""
    parts = []
    for d in item.differences:
        if d.distinct > 1:
            parts.append(
                f"{d.tensor}: {d.distinct} different results in {item.repeats} calls, first at call "
                f"{d.first_differing}, up to {d.max_abs:.2g}, {100 * d.elements / d.numel:.2g} % of elements"
            )
    return "; ".join(parts)


def _findings(backend: str, found: tuple[Repeats, ...]) -> Iterator[Finding]:
    mine = [item for item in found if item.backend == backend]
    loose = [item for item in mine if item.mode == "default" and varied(item)]
    strict = [item for item in mine if item.mode == "deterministic"]
    broken = [item for item in strict if item.outcome == "ok" and varied(item)]
    dead = [item for item in mine if item.outcome in ("raised", "died", "timed_out")]
    batch = [item for item in mine if any(difference.distinct > 1 for difference in item.batch)]
    if dead:
        evidence = tuple(f"{item.case.name} ({item.mode}): {item.reason}" for item in dead[:5])
        message = f"{backend} does not survive {len(dead)} of {len(mine)} repeated cases"
        yield engine.make_finding_by_code("ATN604", Problem(message, evidence, (), backend))
    if broken:
        evidence = tuple(f"{item.case.name}: {told(item)}" for item in broken)
        message = f"{backend} is not reproducible with {broken[0].deterministic_switch}"
        yield engine.make_finding_by_code("ATN712", Problem(message, evidence, (), backend))
    if loose:
        yield engine.make_finding_by_code("ATN711", _loose(backend, loose, mine, strict))
    if batch:
        yield engine.make_finding_by_code("ATN713", _batch(backend, batch[0]))


def _loose(backend: str, loose: list[Repeats], mine: list[Repeats], strict: list[Repeats]) -> Problem:
    tensors = sorted({tensor for item in loose for tensor in varied(item)})
    evidence = [f"{item.case.name}: {told(item)}" for item in loose]
    useless = [item for item in mine if item.mode == "warn_only" and varied(item)]
    if useless:
        evidence.append(f"{useless[0].deterministic_switch} does not help: {told(useless[0])}")
    fixes = []
    held = [item for item in strict if item.outcome == "ok" and not varied(item)]
    if held and not any(item.outcome == "ok" and varied(item) for item in strict):
        fixes.append(Fix("switch determinism on", "setting", held[0].deterministic_switch, proven=_cost(held[0], mine)))
    here = {item.case.name for item in mine if item.mode == "default" and item.outcome == "ok"}
    for item in strict:
        if item.outcome == "refused" and item.case.name in here:
            evidence.append(f"{item.deterministic_switch}: {item.reason}")
            break
    message = f"{backend} gives other bits for {', '.join(tensors)} from call to call"
    return Problem(message, tuple(evidence), tuple(fixes), backend)


def _cost(item: Repeats, mine: list[Repeats]) -> str:
    """Return what the switch was seen to do and to cost."""
    plain = next(other for other in mine if other.case.name == item.case.name and other.mode == "default")
    parts = [f"{item.repeats} calls with the same bits, {item.under_load} under load"]
    if plain.call_ms:
        parts.append(f"{item.call_ms / plain.call_ms:.2f} × the time")
    if plain.memory_bytes and item.memory_bytes:
        parts.append(f"{(item.memory_bytes - plain.memory_bytes) / (1 << 20):+.0f} MiB")
    return ", ".join(parts)


def _batch(backend: str, item: Repeats) -> Problem:
    changed = [d for d in item.batch if d.distinct > 1]
    evidence = tuple(
        f"{d.tensor}: up to {d.max_abs:.2g} apart, {100 * d.elements / d.numel:.2g} % of elements" for d in changed
    )
    message = (
        f"{backend} gives a sequence other bits in {', '.join(d.tensor for d in changed)} when others share its batch"
    )
    return Problem(message, evidence, (), backend)
