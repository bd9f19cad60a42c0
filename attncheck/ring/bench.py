"""Benchmarks a ring: every scheme beside the local call, what it could be, and what keeps it from that.

The columns are those of ring-flash-attn's README: iterations per second and their share of what one device's
flash-attn would leave each of n ranks. A scheme's parity on this very shape is measured first; one that is wrong is
timed, and never recommended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from attncheck.core import codec
from attncheck.core.cases import BYTES, Case, Dtype
from attncheck.core.errors import BadUsage, Unanswered
from attncheck.core.facts import value_or
from attncheck.core.findings import Finding, Problem
from attncheck.core.report import Report, merge
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import (
    FLASH,
    FULL,
    LAUNCH_BOUND_MS,
    PASSES,
    Passes,
    RingRates,
    RingTiming,
    Stopwatch,
    Table,
)
from attncheck.core.results.verdicts import Answer, Run, Verdict
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.measure import discovery, parity
from attncheck.ring import group, roofline, suites
from attncheck.ring.communication_check import cannot_communicate, check_communication
from attncheck.ring.group import Ring
from attncheck.ring.roofline import Bound, Rates, Shape
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankJob, RankRunner

SCHEMES: dict[Table, dict[str, roofline.Scheme]] = {
    "batch": {"ring_flash_attn": "ring", "zigzag_ring_flash_attn": "balanced", "stripe_flash_attn": "balanced"},
    "varlen": {
        "ring_flash_attn_varlen": "ring",
        "zigzag_ring_flash_attn_varlen": "balanced",
        "llama3_flash_attn_varlen": "llama3",
    },
}
LLAMA3 = "llama3_flash_attn_varlen"
LENGTH = 8192  # tokens per rank, and of the packings below (ring-flash-attention, benchmark_varlen_kvpacked_func.py)
PACKINGS = ((8192,), (256, 7392, 544), (4096, 4096), (3104, 3200, 1600, 160, 128))
STRIDE = 4  # heads_k_stride of that benchmark
SWEEPS = ("heads-k-stride", "seqlen")
LENGTHS = {True: (512, 1024, 2048, 4096, 8192, 16384), False: (64, 128, 256)}  # with a GPU, without
FACTOR = 4.0  # a timed item gets this many times a case's deadline


@dataclass(frozen=True)
class Request:
    """What was asked for: the shape of a rank's share, a sweep, the least efficiency that passes."""

    seqlen: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: Dtype = "bfloat16"
    sweep: str = ""
    min_efficiency: float = 0.0
    backends: tuple[str, ...] = ()

    @property
    def shape(self) -> Shape:
        """The shape of a rank's share, for the roofline."""
        return Shape(self.seqlen, self.num_heads, self.num_kv_heads, self.head_dim, BYTES[self.dtype])

    @property
    def stride(self) -> int:
        """How many kv heads llama3 gathers at a time: four, or all where there are fewer or four does not divide."""
        return STRIDE if self.num_kv_heads % STRIDE == 0 else self.num_kv_heads


@dataclass(frozen=True)
class Wanted:
    """What was named on the command line; None and empty where it was not."""

    seqlen: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    dtype: Dtype | None = None
    sweep: str = ""
    min_efficiency: float = 0.0
    backends: tuple[str, ...] = ()


def request(snapshot: Snapshot, gpu: bool, wanted: Wanted = Wanted()) -> Request:
    """Return what to time: what was named, else the model's shape, else Llama-3-8B's (a small one on a CPU).

    Raises `BadUsage` for a shape that no scheme can run.
    """
    usual = (LENGTH, 32, 8, 128) if gpu else (256, 4, 2, 64)
    model = discovery.readable_model(snapshot)
    if model is not None:
        own = value_or(model.num_heads, usual[1])
        usual = (usual[0], own, value_or(model.num_kv_heads, own), value_or(model.head_dim, usual[3]))
    many = wanted.num_heads or usual[1]
    few = wanted.num_kv_heads or (usual[2] if wanted.num_heads is None else many)
    if many % few:
        raise BadUsage(f"{many} heads do not divide over {few} kv heads")
    seqlen, head_dim = wanted.seqlen or usual[0], wanted.head_dim or usual[3]
    if seqlen % 4 or seqlen < 32:
        raise BadUsage(f"--seqlen {seqlen} must be 32 or more and divide by 4: the zigzag cuts each document in two")
    dtype = wanted.dtype or "bfloat16"
    if dtype == "float32":
        raise BadUsage("ring-flash-attn takes bf16 and fp16 only")
    return Request(seqlen, many, few, head_dim, dtype, wanted.sweep, wanted.min_efficiency, wanted.backends)


def packings(seqlen: int) -> tuple[tuple[int, ...], ...]:
    """Return the packings of the benchmark at another length of a rank's row; every document has an even length."""
    return tuple(_scaled(lengths, seqlen) for lengths in PACKINGS)


def _scaled(lengths: Sequence[int], seqlen: int) -> tuple[int, ...]:
    kept = [max(2, length * seqlen // LENGTH // 2 * 2) for length in lengths]
    kept[kept.index(max(kept))] += seqlen - sum(kept)
    return tuple(kept)


Item = tuple[str, Table, Passes, int, int]  # scheme, table, passes, tokens per rank, heads_k_stride


def items(asked: Request, gpu: bool) -> tuple[Item, ...]:
    """Return what to time, the local calls first."""
    chosen: list[Item]
    if asked.sweep == "seqlen":
        chosen = [
            (name, "batch", "forward_backward", length, 0)
            for length in LENGTHS[gpu]
            for name in (FLASH, FULL, *SCHEMES["batch"])
        ]
    elif asked.sweep == "heads-k-stride":
        strides = [stride for stride in range(1, asked.num_kv_heads + 1) if asked.num_kv_heads % stride == 0]
        chosen = [(FULL, "batch", passes, asked.seqlen, 0) for passes in PASSES]
        chosen += [(FLASH, "varlen", passes, asked.seqlen, 0) for passes in PASSES]
        chosen += [(LLAMA3, "varlen", passes, asked.seqlen, stride) for passes in PASSES for stride in strides]
    else:
        chosen = [
            (name, table, passes, asked.seqlen, asked.stride if name == LLAMA3 else 0)
            for table, schemes in SCHEMES.items()
            for passes in PASSES
            for name in (FLASH, *([FULL] if table == "batch" else []), *schemes)
        ]
    wanted = set(asked.backends)
    tables = {table for table, schemes in SCHEMES.items() if not wanted or wanted & set(schemes)}
    local = (FLASH, FULL)
    kept = [
        item for item in chosen if (item[0] in local and (item[1] in tables or item[0] == FULL)) or item[0] in wanted
    ]
    return tuple(kept if wanted else chosen)


def run(snapshot: Snapshot, asked: Request, ring: Ring, bench: ExecutionTarget, say: Callable[[str], None]) -> Report:
    """Return the report on a ring's speed. Raises `Unanswered` where nothing can be timed."""
    began = time.monotonic()
    say("looking for backends")
    states, chosen = group.schemes(bench, asked.backends)
    known = {name for schemes in SCHEMES.values() for name in schemes}
    chosen = [state for state in chosen if state.name in known]
    if not chosen:
        raise Unanswered("none of ring-flash-attn's schemes can be timed here")
    checked = check_communication("bench", snapshot, ring, bench, say)
    if cannot_communicate(checked):
        return checked
    ranks = RankRunner(bench.python, read_rank_env(os.environ))
    runs, rates, timings = _measured(asked, ring, bench, [state.name for state in chosen], ranks, say)
    group.only_rank_0_speaks(ranks)
    on = group.measured_on(ranks, ring, bench, 0, began, "bench")
    judged = parity.report(snapshot, tuple(states), tuple(runs), on)
    roof = RingRates() if ring.emulated(bench) else rates  # plain torch has no roofline worth the name
    timings = completed(timings, roof, asked, judged.verdicts)
    section = RingSection(
        on,
        backends=tuple(states),
        verdicts=judged.verdicts,
        runs=tuple(runs),
        rates=rates,
        timings=timings,
        conclusions=(*concluded(timings), *break_even(timings, roof, asked)),
    )
    findings = (*judged.findings, *inefficient(timings, asked.min_efficiency))
    return merge("bench", snapshot, (Report("bench", snapshot, findings, sections={"ring": section}), checked))


def _measured(
    asked: Request,
    ring: Ring,
    bench: ExecutionTarget,
    here: Sequence[str],
    ranks: RankRunner,
    say: Callable[[str], None],
) -> tuple[list[Run], RingRates, tuple[RingTiming, ...]]:
    """Return parity's runs on the shape that is timed, at a length that the reference can do; rates; timings."""
    cases = suites.for_bench(asked.num_heads, asked.num_kv_heads, asked.head_dim, asked.dtype, ring.size)
    by_case = {f"parity@{case.name}": case for case in cases}
    by_item = {(item[0], _name(item)): item for item in items(asked, bench.uses_gpu) if item[0] in (FLASH, FULL, *here)}
    named = [(name, case) for name in here for case in by_case if by_case[case].layout == _layout(name)]
    work = _job(asked, ring, bench, [*named, ("rates", "rates"), *by_item], cases)
    runs: list[Run] = []
    timings: list[RingTiming] = []
    rates = RingRates()
    progress = Progress(say, len(work.items))

    def tell(event: Event) -> None:
        nonlocal rates
        progress.on_event(event)
        if event.kind == "started":
            return
        if event.item in by_case:
            runs.append(parity.run_of(event, by_case[event.item]))
        elif event.job != "rates":
            timings.append(_timing(by_item[event.job, event.item], event, ring.size))
        elif event.kind == "answer":
            rates = codec.read(RingRates, event.answer)

    ranks.run(work, tell)
    return runs, rates, tuple(timings)


def _layout(backend: str) -> str:
    return "packed" if backend in SCHEMES["varlen"] else "dense"


def _job(
    asked: Request, ring: Ring, bench: ExecutionTarget, named: Sequence[tuple[str, str]], cases: tuple[Case, ...]
) -> RankJob:
    shape = asdict(asked.shape) | {"dtype": asked.dtype}
    message = {
        "task": "attncheck.ring.worker.bench:bench",
        "cases": codec.plain(cases),
        "shape": shape,
        "seqlen": asked.seqlen,
    }
    work = group.job(ring, bench, ring.size, named, {**message, "packings": packings(asked.seqlen)})
    return replace(work, seconds=bench.seconds * FACTOR)


def _name(item: Item) -> str:
    return "@".join(map(str, item[1:]))


def _timing(item: Item, event: Event, ring_size: int) -> RingTiming:
    backend, table, passes, seqlen, stride = item
    blank = RingTiming(backend, table, passes, ring_size, seqlen, stride)
    if event.kind == "answer":
        watch = codec.read(Stopwatch, event.answer)
        return replace(blank, watch=watch, iterations_per_s=round(1e3 / watch.ms, 4))
    return replace(blank, outcome=execution.unmeasured_outcome(event), reason=event.reason)


def completed(
    timings: Iterable[RingTiming], rates: RingRates, asked: Request, verdicts: Iterable[Verdict]
) -> tuple[RingTiming, ...]:
    """Return timings with their efficiency, their bound and what limits them: arithmetic over what was measured."""
    every = tuple(timings)
    answers: dict[str, list[str]] = {}
    for verdict in verdicts:
        answers.setdefault(verdict.backend, []).append(verdict.answer)
    done = []
    for timing in every:
        timing = replace(timing, correct=_correct(answers.get(timing.backend, [])))
        done.append(_bounded(timing, every, rates, asked) if timing.backend not in (FLASH, FULL) else timing)
    return tuple(done)


def _correct(answers: list[str]) -> Answer:
    """Return the worst of parity's answers, "skipped" where there is none."""
    order: tuple[Answer, ...] = ("lost", "fail", "warn", "pass")
    return next((answer for answer in order if answer in answers), "skipped")


def _local(every: Sequence[RingTiming], name: str, table: Table, passes: Passes, seqlen: int) -> float:
    """Return the milliseconds of a local call, 0 where it was not timed."""
    key = (name, table, passes, seqlen)
    return next((t.watch.ms for t in every if (t.backend, t.table, t.passes, t.seqlen) == key), 0.0)


def _bounded(timing: RingTiming, every: Sequence[RingTiming], rates: RingRates, asked: Request) -> RingTiming:
    call = _local(every, FLASH, timing.table, timing.passes, timing.seqlen)
    if timing.outcome != "ok" or not call:
        return timing
    efficiency = call * timing.ring_size / timing.watch.ms
    timing = replace(timing, efficiency=round(efficiency, 4))
    if call < LAUNCH_BOUND_MS[timing.passes]:
        told = f"launches: the local call takes {call:.2g} ms, no longer than launching a step's kernels"
        return replace(timing, limited_by=told)
    found = _bound(timing, every, rates, asked) if rates.copy_gb_per_s else None
    if found is None:
        return timing
    reached = efficiency / found.efficiency
    exposed = max(0.0, timing.watch.ms - timing.watch.silent_ms) if timing.watch.silent_ms else 0.0
    hidden = 1.0 - min(1.0, exposed / found.communication_ms) if found.communication_ms else 0.0
    return replace(
        timing,
        achievable=round(found.efficiency, 4),
        reached=round(reached, 4),
        communication_ms=round(found.communication_ms, 4),
        overlapped=round(hidden, 4),
        limited_by=roofline.limited_by(found, reached),
    )


def _bound(timing: RingTiming, every: Sequence[RingTiming], rates: RingRates, asked: Request) -> Bound | None:
    """Return the roofline of a timing, None where a local call that it needs was not timed."""
    both = [_pass(timing, every, rates, asked, passes) for passes in PASSES]
    if timing.passes == "forward":
        return both[0][0]
    first, ideal_first = both[0]
    whole, ideal = both[1]
    if first is None or whole is None or not ideal_first:
        return whole
    return roofline.both(first, whole, ideal)


def _pass(
    timing: RingTiming, every: Sequence[RingTiming], rates: RingRates, asked: Request, passes: Passes
) -> tuple[Bound | None, float]:
    """Return the bound of a forward, or of the backward of a forward and backward, and n times the local call."""
    table, seqlen, n = timing.table, timing.seqlen, timing.ring_size
    call, full = _local(every, FLASH, table, passes, seqlen), _local(every, FULL, "batch", passes, seqlen)
    if not call or not full:
        return None, 0.0
    ideal, backward = n * call, passes == "forward_backward"
    alone = (_local(every, FLASH, table, "forward", seqlen), _local(every, FULL, "batch", "forward", seqlen))
    if backward:
        call, full = call - alone[0], full - alone[1]
    scheme = SCHEMES[table][timing.backend]
    packed = packings(seqlen)
    share = roofline.full_share(packed) if table == "varlen" else 1.0
    known = Rates(rates.link_gb_per_s, rates.copy_gb_per_s)
    busiest = roofline.busiest_rank(packed, n) * full if scheme == "llama3" else 0.0
    shape = replace(asked.shape, seqlen=seqlen)
    return roofline.bound(scheme, shape, n, call, full * share, backward, known, busiest), ideal


def concluded(timings: Sequence[RingTiming]) -> tuple[str, ...]:
    """Return what the timings allow to say: the fastest correct scheme of each table, or that noise forbids it."""
    lines = []
    for table in SCHEMES:
        ranked = _ranked(timings, table)
        if not ranked:
            continue
        best = ranked[0]
        told = f"{table}: {best.title} is the fastest correct scheme, at {100 * best.efficiency:.1f} % of flash / n"
        if len(ranked) > 1 and best.watch.ms * (1 + best.watch.interval) > ranked[1].watch.ms * (
            1 - ranked[1].watch.interval
        ):
            told = f"{table}: {best.title} and {ranked[1].title} are within the noise of each other"
        if best.achievable:
            most = f"an achievable {100 * best.achievable:.1f} %"
            told += f"; {best.title} reaches {100 * best.reached:.0f} % of {most}"
        lines.append(told)
    return tuple(lines)


def break_even(timings: Sequence[RingTiming], rates: RingRates, asked: Request) -> tuple[str, ...]:
    """Return from which length on communication hides, as far as the batch table's local calls tell."""
    forward = _local(timings, FLASH, "batch", "forward", asked.seqlen)
    both = _local(timings, FLASH, "batch", "forward_backward", asked.seqlen)
    if not (forward and both > forward and rates.link_gb_per_s):
        return ()
    known = Rates(rates.link_gb_per_s, rates.copy_gb_per_s)
    first = roofline.hides_from(asked.shape, forward, known, backward=False)
    second = roofline.hides_from(asked.shape, both - forward, known, backward=True)
    words = f"from about {first} tokens a rank on (forward), {second} (backward)"
    return (f"communication hides behind computing {words}",)


def _ranked(timings: Sequence[RingTiming], table: Table) -> list[RingTiming]:
    """Return the correct schemes of a table by speed, forward and backward, at the longest length that was timed."""
    mine = [
        t for t in timings if t.table == table and t.passes == "forward_backward" and t.backend not in (FLASH, FULL)
    ]
    longest = max((t.seqlen for t in mine), default=0)
    fitting = [t for t in mine if t.outcome == "ok" and t.correct == "pass" and t.seqlen == longest]
    return sorted(fitting, key=lambda timing: timing.watch.ms)


def inefficient(timings: Sequence[RingTiming], least: float) -> Iterator[Finding]:
    """Yield a finding for each table whose fastest correct scheme stays below `least` of flash-attn / n."""
    for table in SCHEMES if least else ():
        ranked = _ranked(timings, table)
        timed = [t for t in timings if t.table == table and t.backend not in (FLASH, FULL)]
        if not timed or (ranked and ranked[0].efficiency >= least):
            continue
        best = f"{100 * ranked[0].efficiency:.1f} %" if ranked else "no correct scheme"
        evidence = tuple(f"{t.backend}, {t.passes.replace('_', ' + ')}: {_told(t)}" for t in timed)
        message = f"the {table} ring reaches {best}, --min-efficiency asks for {100 * least:g} %"
        yield engine.make_finding_by_code("ATN806", Problem(message, evidence, (), f"{timed[0].ring_size} ranks"))


def _told(timing: RingTiming) -> str:
    if timing.outcome != "ok":
        return timing.reason
    wrong = "" if timing.correct == "pass" else f", parity: {timing.correct}"
    return f"{100 * timing.efficiency:.1f} % of an achievable {100 * timing.achievable:.1f} %{wrong}"
