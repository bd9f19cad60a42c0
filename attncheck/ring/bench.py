"""Benchmarks a ring: compares each scheme's speed with the local call's, and finds its limit and bottleneck.

The columns are those of ring-flash-attn's README: iterations per second, and their share of the ideal: one device's
flash-attn divided by n ranks. A scheme's parity on the same shape is measured first. A wrong scheme is timed but never
recommended.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from attncheck.attention.calls import ring_package
from attncheck.core import codec
from attncheck.core.cases import BYTES_PER_ELEMENT, Case, Dtype
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.lists import group_values
from attncheck.core.report import Answer, Finding, InterruptedRun, Problem, Report, Run, Verdict, merge_reports
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import (
    LAUNCH_BOUND_MS,
    LOCAL_FLASH,
    LOCAL_FLASH_FULL,
    PASSES,
    Passes,
    RingRates,
    RingTiming,
    Stopwatch,
    Table,
)
from attncheck.core.shares import format_share, is_beyond_possible
from attncheck.core.snapshot import Snapshot, value_or
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
    "batch": {
        "ring_flash_attn": "ring",
        "zigzag_ring_flash_attn": "balanced",
        "stripe_flash_attn": "balanced",
        "torch_context_parallel": "balanced",
        "ulysses_flash_attn": "ulysses",
        "yunchang_usp": "hybrid",
        "transformer_engine_ring": "balanced",
    },
    "varlen": {
        "ring_flash_attn_varlen": "ring",
        "zigzag_ring_flash_attn_varlen": "balanced",
        "llama3_flash_attn_varlen": "llama3",
        "ulysses_flash_attn": "ulysses",
        "transformer_engine_ring": "balanced",
    },
}
LLAMA3 = "llama3_flash_attn_varlen"
SEQLEN = 8192  # tokens per rank; with the packings below, from ring-flash-attention's benchmark_varlen_kvpacked_func.py
PACKINGS = ((8192,), (256, 7392, 544), (4096, 4096), (3104, 3200, 1600, 160, 128))
HEADS_K_STRIDE = 4  # heads_k_stride in that benchmark
SWEEP_SEQLENS = {True: (512, 1024, 2048, 4096, 8192, 16384), False: (64, 128, 256)}  # by whether there is a GPU
DEADLINE_FACTOR = 4.0  # the deadline of a timed item is this many times a case's
EMULATED_TIMES = "plain torch replaces flash-attn's kernels, so neither the times nor their order apply to a GPU"


@dataclass(frozen=True)
class Workload:
    """The workload to time: the shape of a rank's share, a sweep of lengths, and the least efficiency that passes."""

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
        return Shape(self.seqlen, self.num_heads, self.num_kv_heads, self.head_dim, BYTES_PER_ELEMENT[self.dtype])

    @property
    def heads_k_stride(self) -> int:
        """The number of kv heads that llama3 gathers at a time: four, or all if four does not divide them."""
        return HEADS_K_STRIDE if self.num_kv_heads % HEADS_K_STRIDE == 0 else self.num_kv_heads


@dataclass(frozen=True)
class Request:
    """The shape and limits from the command line; None and empty values leave them to the model or the usual shape."""

    seqlen: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    dtype: Dtype | None = None
    sweep: str = ""
    min_efficiency: float = 0.0
    backends: tuple[str, ...] = ()


def choose_workload(snapshot: Snapshot, uses_gpu: bool, request: Request = Request()) -> Workload:
    """Return the workload: the requested shape, otherwise the model's, otherwise Llama-3-8B's (smaller on a CPU).

    Raises `BadUsage` for a shape that no scheme can run.
    """
    defaults = (SEQLEN, 32, 8, 128) if uses_gpu else (256, 4, 2, 64)
    model = discovery.requested_model(snapshot)
    if model is not None:
        model_heads = value_or(model.num_heads, defaults[1])
        defaults = (
            defaults[0],
            model_heads,
            value_or(model.num_kv_heads, model_heads),
            value_or(model.head_dim, defaults[3]),
        )
    num_heads = request.num_heads or defaults[1]
    num_kv_heads = request.num_kv_heads or (defaults[2] if request.num_heads is None else num_heads)
    if num_heads % num_kv_heads:
        raise BadUsage(f"{num_heads} heads cannot be divided evenly among {num_kv_heads} kv heads")
    seqlen, head_dim = request.seqlen or defaults[0], request.head_dim or defaults[3]
    if seqlen % 4 or seqlen < 32:
        raise BadUsage(
            f"--seqlen {seqlen} must be at least 32 and divisible by 4, because zigzag splits each document in two"
        )
    dtype = request.dtype or "bfloat16"
    if dtype == "float32":
        raise BadUsage("ring-flash-attn supports only bf16 and fp16")
    return Workload(
        seqlen, num_heads, num_kv_heads, head_dim, dtype, request.sweep, request.min_efficiency, request.backends
    )


def scale_packings(seqlen: int) -> tuple[tuple[int, ...], ...]:
    """Return the benchmark's packings scaled to another row length per rank; every document has an even length."""
    return tuple(_scale_packing(lengths, seqlen) for lengths in PACKINGS)


def _scale_packing(lengths: Sequence[int], seqlen: int) -> tuple[int, ...]:
    scaled = [max(2, length * seqlen // SEQLEN // 2 * 2) for length in lengths]
    scaled[scaled.index(max(scaled))] += seqlen - sum(scaled)
    return tuple(scaled)


Item = tuple[str, Table, Passes, int, int]  # scheme, table, passes, tokens per rank, heads_k_stride


def choose_items(workload: Workload, uses_gpu: bool) -> tuple[Item, ...]:
    """Return the items to time, the local calls first."""
    items: list[Item]
    if workload.sweep == "seqlen":
        items = [
            (name, "batch", "forward_backward", length, 0)
            for length in SWEEP_SEQLENS[uses_gpu]
            for name in (LOCAL_FLASH, LOCAL_FLASH_FULL, *SCHEMES["batch"])
        ]
    elif workload.sweep == "heads-k-stride":
        strides = [stride for stride in range(1, workload.num_kv_heads + 1) if workload.num_kv_heads % stride == 0]
        items = [(LOCAL_FLASH_FULL, "batch", passes, workload.seqlen, 0) for passes in PASSES]
        items += [(LOCAL_FLASH, "varlen", passes, workload.seqlen, 0) for passes in PASSES]
        items += [(LLAMA3, "varlen", passes, workload.seqlen, stride) for passes in PASSES for stride in strides]
    else:
        items = [
            (name, table, passes, workload.seqlen, workload.heads_k_stride if name == LLAMA3 else 0)
            for table, schemes in SCHEMES.items()
            for passes in PASSES
            for name in (LOCAL_FLASH, *([LOCAL_FLASH_FULL] if table == "batch" else []), *schemes)
        ]
    requested = set(workload.backends)
    tables = {table for table, schemes in SCHEMES.items() if not requested or requested & set(schemes)}
    local_calls = (LOCAL_FLASH, LOCAL_FLASH_FULL)
    selected = [
        item
        for item in items
        if (item[0] in local_calls and (item[1] in tables or item[0] == LOCAL_FLASH_FULL)) or item[0] in requested
    ]
    return tuple(selected if requested else items)


def run(
    snapshot: Snapshot,
    workload: Workload,
    ring: Ring,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
    on_timing: Callable[[RingTiming, Progress], None] | None = None,
) -> Report:
    """Return the report on a ring's speed; `on_timing` gets each timing as soon as it is measured.

    Raises `Unanswered` if nothing can be timed, and if an emulated ring has a least efficiency.
    """
    began = time.monotonic()
    if workload.min_efficiency and ring.is_emulated(target):
        raise Unanswered(f"min-efficiency applies to GPUs only: {EMULATED_TIMES}")
    report_progress("looking for backends")
    states, chosen_states = group.choose_schemes(target, workload.backends)
    timed_schemes = {name for schemes in SCHEMES.values() for name in schemes}
    chosen_states = [state for state in chosen_states if state.name in timed_schemes]
    if not chosen_states:
        raise Unanswered("none of the context-parallel schemes can be timed here")
    communication_report = check_communication("bench", snapshot, ring, target, report_progress)
    if cannot_communicate(communication_report):
        return communication_report
    runner = RankRunner(target.python, read_rank_env(os.environ))
    measured = _Measured()
    interrupted = False
    # ring-flash-attn is called with k and v in one tensor, as its benchmark does
    is_ring = {state.name: state.package == ring_package.DISTRIBUTION for state in chosen_states}
    operands = {name: "kvpacked" if is_of_ring else "split" for name, is_of_ring in is_ring.items()}
    try:
        _measure(workload, ring, target, operands, runner, report_progress, on_timing, measured)
    except KeyboardInterrupt:
        if not measured.timings:
            raise
        interrupted = True
    group.raise_if_follower(runner)
    runs, rates, timings = measured.runs, measured.rates, tuple(measured.timings)
    not_reached = measured.total - measured.done
    measured_on = group.make_measured_on(runner, ring, target, 0, began, "bench", not_reached, interrupted)
    parity_report = parity.make_report(snapshot, tuple(states), tuple(runs), measured_on)
    roofline_rates = RingRates() if ring.is_emulated(target) else rates  # plain torch has no meaningful roofline
    timings = complete_timings(timings, roofline_rates, workload, parity_report.verdicts)
    if ring.is_emulated(target):
        conclusions: tuple[str, ...] = (f"no scheme is recommended: {EMULATED_TIMES}",)
    else:
        conclusions = (*draw_conclusions(timings), *describe_break_even(timings, roofline_rates, workload))
    section = RingSection(
        measured_on,
        backends=tuple(states),
        verdicts=parity_report.verdicts,
        runs=tuple(runs),
        rates=rates,
        timings=timings,
        conclusions=conclusions,
    )
    findings = (*parity_report.findings, *iter_inefficiency_findings(timings, workload.min_efficiency))
    report = merge_reports(
        "bench", snapshot, (Report("bench", snapshot, findings, sections={"ring": section}), communication_report)
    )
    if interrupted:
        raise InterruptedRun(report)
    return report


@dataclass
class _Measured:
    """The measurements so far, and the number of items."""

    runs: list[Run] = field(default_factory=list)
    timings: list[RingTiming] = field(default_factory=list)
    rates: RingRates = RingRates()
    done: int = 0
    total: int = 0


def _measure(
    workload: Workload,
    ring: Ring,
    target: ExecutionTarget,
    operands: Mapping[str, str],
    runner: RankRunner,
    report_progress: Callable[[str], None],
    on_timing: Callable[[RingTiming, Progress], None] | None,
    measured: _Measured,
) -> None:
    """Measure the parity of the timed shape at a length that the reference can compute, then rates and timings."""
    cases = suites.make_bench_cases(
        workload.num_heads, workload.num_kv_heads, workload.head_dim, workload.dtype, ring.size
    )
    by_case = {f"parity@{case.name}": case for case in cases}
    by_item = {
        (item[0], "@".join(map(str, item[1:]))): item
        for item in choose_items(workload, target.uses_gpu)
        if item[0] in (LOCAL_FLASH, LOCAL_FLASH_FULL, *operands)
    }
    tables: dict[str, Table] = {"dense": "batch", "packed": "varlen"}
    parity_items = [
        (name, item)
        for name, called_with in operands.items()
        for item, case in by_case.items()
        if name in SCHEMES[tables[case.layout]] and case.operands == called_with
    ]
    job = _make_job(workload, ring, target, [*parity_items, ("rates", "rates"), *by_item], cases)
    measured.total = len(job.items)
    progress = Progress(report_progress, len(job.items))

    def on_event(event: Event) -> None:
        progress.on_event(event)
        if event.kind == "started":
            return
        measured.done += 1
        if event.item in by_case:
            measured.runs.append(parity.read_run(event, by_case[event.item]))
        elif event.job != "rates":
            timing = _read_timing(by_item[event.job, event.item], event, ring.size)
            measured.timings.append(timing)
            if on_timing is not None and timing.backend != LOCAL_FLASH_FULL:  # the table leaves these out too
                on_timing(timing, progress)
        elif event.kind == "answer":
            measured.rates = codec.read(RingRates, event.answer)

    runner.run(job, on_event)


def _make_job(
    workload: Workload, ring: Ring, target: ExecutionTarget, items: Sequence[tuple[str, str]], cases: tuple[Case, ...]
) -> RankJob:
    shape = asdict(workload.shape) | {"dtype": workload.dtype}
    message = {
        "task": "attncheck.ring.worker.bench:bench",
        "cases": codec.to_plain(cases),
        "shape": shape,
        "seqlen": workload.seqlen,
    }
    job = group.make_job(ring, target, ring.size, items, {**message, "packings": scale_packings(workload.seqlen)})
    return replace(job, seconds=target.seconds * DEADLINE_FACTOR, spins=True)


def _read_timing(item: Item, event: Event, ring_size: int) -> RingTiming:
    backend, table, passes, seqlen, stride = item
    timing = RingTiming(backend, table, passes, ring_size, seqlen, stride)
    if isinstance(event.answer, str):
        return replace(timing, outcome="skipped", reason=event.answer)
    if event.kind == "answer":
        watch = codec.read(Stopwatch, event.answer)
        return replace(timing, stopwatch=watch, iterations_per_s=round(1e3 / watch.ms, 4))
    return replace(timing, outcome=execution.unmeasured_outcome(event), reason=event.reason)


def complete_timings(
    timings: Iterable[RingTiming], rates: RingRates, workload: Workload, verdicts: Iterable[Verdict]
) -> tuple[RingTiming, ...]:
    """Return timings with their efficiency, bound and bottleneck, computed from the measurements alone."""
    all_timings = tuple(timings)
    answers = group_values((verdict.backend, verdict.answer) for verdict in verdicts)
    completed = []
    for timing in all_timings:
        timing = replace(timing, correct=_worst_answer(answers.get(timing.backend, [])))
        completed.append(
            _with_bound(timing, all_timings, rates, workload)
            if timing.backend not in (LOCAL_FLASH, LOCAL_FLASH_FULL)
            else timing
        )
    return tuple(completed)


def _worst_answer(answers: Sequence[Answer]) -> Answer:
    """Return the worst of parity's answers, "skipped" if there is none."""
    worst_first: tuple[Answer, ...] = ("lost", "fail", "warn", "pass")
    return next((answer for answer in worst_first if answer in answers), "skipped")


def _local_call_ms(timings: Sequence[RingTiming], name: str, table: Table, passes: Passes, seqlen: int) -> float:
    """Return the milliseconds of a local call, 0 if it was not timed."""
    key = (name, table, passes, seqlen)
    return next((t.stopwatch.ms for t in timings if (t.backend, t.table, t.passes, t.seqlen) == key), 0.0)


def _with_bound(timing: RingTiming, timings: Sequence[RingTiming], rates: RingRates, workload: Workload) -> RingTiming:
    call_ms = _local_call_ms(timings, LOCAL_FLASH, timing.table, timing.passes, timing.seqlen)
    if timing.outcome != "ok" or not call_ms:
        return timing
    efficiency = call_ms * timing.ring_size / timing.stopwatch.ms
    timing = replace(timing, efficiency=round(efficiency, 4))
    if call_ms < LAUNCH_BOUND_MS[timing.passes]:
        limit = f"launches: the local call takes {call_ms:.2g} ms, no more than launching a step's kernels"
        return replace(timing, limited_by=limit)
    bound = _compute_bound(timing, timings, rates, workload) if rates.copy_gb_per_s else None
    if bound is None:
        return timing
    reached = efficiency / bound.efficiency
    exposed_ms = max(0.0, timing.stopwatch.ms - timing.stopwatch.silent_ms) if timing.stopwatch.silent_ms else 0.0
    is_measured = bool(bound.communication_ms and timing.stopwatch.silent_ms)
    overlapped = 1.0 - min(1.0, exposed_ms / bound.communication_ms) if is_measured else 0.0
    return replace(
        timing,
        achievable=round(bound.efficiency, 4),
        reached=round(reached, 4),
        communication_ms=round(bound.communication_ms, 4),
        overlapped=round(overlapped, 4),
        limited_by=roofline.describe_limit(bound, reached),
    )


def _compute_bound(
    timing: RingTiming, timings: Sequence[RingTiming], rates: RingRates, workload: Workload
) -> Bound | None:
    """Return the roofline of a timing, None if a local call that it needs was not timed."""
    bounds = [_compute_pass_bound(timing, timings, rates, workload, passes) for passes in PASSES]
    if timing.passes == "forward":
        return bounds[0][0]
    forward, forward_ideal_ms = bounds[0]
    backward, ideal_ms = bounds[1]
    if forward is None or backward is None or not forward_ideal_ms:
        return backward
    return roofline.combine_bounds(forward, backward, ideal_ms)


def _compute_pass_bound(
    timing: RingTiming, timings: Sequence[RingTiming], rates: RingRates, workload: Workload, passes: Passes
) -> tuple[Bound | None, float]:
    """Return the bound of a forward, or of the backward of both passes, and n times the local call in milliseconds."""
    table, seqlen, n = timing.table, timing.seqlen, timing.ring_size
    call_ms, full_ms = (
        _local_call_ms(timings, LOCAL_FLASH, table, passes, seqlen),
        _local_call_ms(timings, LOCAL_FLASH_FULL, "batch", passes, seqlen),
    )
    if not call_ms or not full_ms:
        return None, 0.0
    ideal_ms, backward = n * call_ms, passes == "forward_backward"
    forward_ms = (
        _local_call_ms(timings, LOCAL_FLASH, table, "forward", seqlen),
        _local_call_ms(timings, LOCAL_FLASH_FULL, "batch", "forward", seqlen),
    )
    if backward:
        call_ms, full_ms = call_ms - forward_ms[0], full_ms - forward_ms[1]
    scheme = SCHEMES[table][timing.backend]
    if scheme == "hybrid":
        return None, 0.0
    packings = scale_packings(seqlen)
    block_share = roofline.document_block_share(packings) if table == "varlen" else 1.0
    roofline_rates = Rates(rates.link_gb_per_s, rates.copy_gb_per_s)
    busiest_ms = roofline.busiest_rank_share(packings, n) * full_ms if scheme == "llama3" else 0.0
    shape = replace(workload.shape, seqlen=seqlen)
    return roofline.compute_bound(
        scheme, shape, n, call_ms, full_ms * block_share, backward, roofline_rates, busiest_ms
    ), ideal_ms


def draw_conclusions(timings: Sequence[RingTiming]) -> tuple[str, ...]:
    """Return the conclusions: the fastest correct scheme of each table, or that noise hides it."""
    lines = []
    for table in SCHEMES:
        ranked = _sort_correct_schemes(timings, table)
        if not ranked:
            continue
        best = ranked[0]
        beyond = " (noise or overlap, not an efficiency)" * is_beyond_possible(best.efficiency)
        share = f"{format_share(best.efficiency)} of flash / n{beyond}"
        conclusion = f"{table}: {best.title} is the fastest correct scheme, at {share}"
        if len(ranked) > 1 and best.stopwatch.ms * (1 + best.stopwatch.interval) > ranked[1].stopwatch.ms * (
            1 - ranked[1].stopwatch.interval
        ):
            conclusion = f"{table}: {best.title} and {ranked[1].title} are within the noise of each other"
        if best.achievable:
            achievable = f"an achievable {format_share(best.achievable)}"
            conclusion += f"; {best.title} reaches {format_share(best.reached)} of {achievable}"
        lines.append(conclusion)
    return tuple(lines)


def describe_break_even(timings: Sequence[RingTiming], rates: RingRates, workload: Workload) -> tuple[str, ...]:
    """Return the length at which communication becomes hidden, as far as the batch table's local calls show."""
    forward_ms = _local_call_ms(timings, LOCAL_FLASH, "batch", "forward", workload.seqlen)
    both_ms = _local_call_ms(timings, LOCAL_FLASH, "batch", "forward_backward", workload.seqlen)
    if not (forward_ms and both_ms > forward_ms and rates.link_gb_per_s):
        return ()
    roofline_rates = Rates(rates.link_gb_per_s, rates.copy_gb_per_s)
    forward_seqlen = roofline.break_even_seqlen(workload.shape, forward_ms, roofline_rates, backward=False)
    backward_seqlen = roofline.break_even_seqlen(workload.shape, both_ms - forward_ms, roofline_rates, backward=True)
    lengths = f"from about {forward_seqlen} tokens per rank (forward), {backward_seqlen} (backward)"
    return (f"communication is hidden by compute {lengths}",)


def _sort_correct_schemes(timings: Sequence[RingTiming], table: Table) -> list[RingTiming]:
    """Return a table's correct schemes by speed, forward and backward, at the longest timed length."""
    table_timings = [
        t
        for t in timings
        if t.table == table and t.passes == "forward_backward" and t.backend not in (LOCAL_FLASH, LOCAL_FLASH_FULL)
    ]
    longest = max((t.seqlen for t in table_timings), default=0)
    correct = [t for t in table_timings if t.outcome == "ok" and t.correct == "pass" and t.seqlen == longest]
    return sorted(correct, key=lambda timing: timing.stopwatch.ms)


def iter_inefficiency_findings(timings: Sequence[RingTiming], least: float) -> Iterator[Finding]:
    """Yield a finding for each table whose fastest correct scheme stays below `least` of the ideal."""
    for table in SCHEMES if least else ():
        ranked = _sort_correct_schemes(timings, table)
        timed = [t for t in timings if t.table == table and t.backend not in (LOCAL_FLASH, LOCAL_FLASH_FULL)]
        if not timed or (ranked and ranked[0].efficiency >= least):
            continue
        best = format_share(ranked[0].efficiency) if ranked else "no correct scheme"
        evidence = tuple(f"{t.backend}, {t.passes.replace('_', ' + ')}: {_describe_timing(t)}" for t in timed)
        message = f"the {table} ring reaches {best}, below --min-efficiency {100 * least:g} %"
        yield engine.make_finding_by_code("ATN806", Problem(message, evidence, (), f"{timed[0].ring_size} ranks"))


def _describe_timing(timing: RingTiming) -> str:
    if timing.outcome != "ok":
        return timing.reason
    wrong = "" if timing.correct == "pass" else f", parity: {timing.correct}"
    return f"{format_share(timing.efficiency)} of an achievable {format_share(timing.achievable)}{wrong}"
