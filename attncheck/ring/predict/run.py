"""Measures blocks on one device, and links that were not given, and reports the prediction for a ring."""

import glob
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.report import Report
from attncheck.core.results.prediction import BlockKind, BlockTiming, LinkRate, PredictionSection
from attncheck.core.results.ring_timings import PASSES, Passes, RingRates
from attncheck.core.results.timings import RATES_ITEM, DeviceRates
from attncheck.core.snapshot import Snapshot
from attncheck.measure import bench_shapes, discovery
from attncheck.ring import bench, group
from attncheck.ring.group import Ring
from attncheck.ring.predict.answers import draw_conclusions
from attncheck.ring.predict.block_times import BlockTimes, fit_blocks
from attncheck.ring.predict.cluster import EXAMPLE, GPUS_PER_NODE, INNER_LINKS, OUTER_LINKS, Cluster, find_link
from attncheck.ring.predict.prediction import Question, predict_all
from attncheck.ring.predict.schedules import LLAMA3, SCHEMES, ULYSSES
from attncheck.ring.predict.simulation import CONTENTION, LAUNCH_MS, Machine
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event, Job, Pool
from attncheck.workers.ranks import RankRunner

LENGTHS = {True: (1024, 2048, 4096, 8192, 16384), False: (64, 256)}  # tokens of a block, by whether there is a GPU
LONGEST = {True: 32768, False: 512}  # a rank's own share is timed up to this length
SEQLENS = {True: 8192, False: 256}  # tokens per rank without --seqlen
MEASURED_ERROR = 0.1  # relative error of a link's rate when one pair of neighbours represents the whole cluster
KINDS: dict[str, tuple[BlockKind, ...]] = {
    "ring_flash_attn": ("full",),
    "zigzag_ring_flash_attn": ("half_keys", "half_queries"),
    "stripe_flash_attn": ("shifted",),
    LLAMA3: ("full", "shifted"),
    ULYSSES: (),
}
CPU_TIMES = "no scheme is recommended: a CPU was timed, and neither its times nor their order apply to a GPU"


@dataclass(frozen=True)
class Request:
    """The command line's additions to the question: the links, and the GPUs per node (0: eight)."""

    links: tuple[LinkRate, ...] = ()
    gpus_per_node: int = 0


def check_request(request: Request, ring_size: int, uses_gpu: bool) -> None:
    """Raise `BadUsage` if a needed link was not given and cannot be measured here."""
    gpus_per_node = request.gpus_per_node or GPUS_PER_NODE
    if ring_size > gpus_per_node and find_link(request.links, OUTER_LINKS) is None:
        nodes = -(-ring_size // gpus_per_node)
        raise BadUsage(
            f"{ring_size} ranks with {gpus_per_node} GPUs per node are {nodes} nodes: name the network's rate, "
            f"--link {EXAMPLE} (GB/s one way for one GPU)"
        )
    can_measure = not uses_gpu or len(glob.glob("/dev/nvidia[0-9]*")) > 1
    if ring_size > 1 and find_link(request.links, INNER_LINKS) is None and not can_measure:
        raise BadUsage(f"one GPU has no link to measure: name its rate, --link {EXAMPLE} (GB/s one way for one GPU)")


def choose_schemes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the schemes to predict: the named ones, or all with a known schedule. Raises `BadUsage`."""
    requested = tuple(dict.fromkeys(names))
    for name in requested:
        if name not in SCHEMES:
            raise BadUsage(f"--predict has no schedule for {name}; it knows {', '.join(SCHEMES)}")
    return requested or SCHEMES


def make_question(snapshot: Snapshot, request: bench_shapes.Request, ring_size: int, uses_gpu: bool) -> Question:
    """Return the question: the requested shape, otherwise the model's, otherwise ring bench's. Raises `BadUsage`."""
    heads = bench.Request(None, request.num_heads, request.num_kv_heads, request.head_dim, request.dtype)
    workload = bench.choose_workload(snapshot, uses_gpu, heads)
    seqlen = request.seqlen or SEQLENS[uses_gpu] * ring_size
    if seqlen < 2 * ring_size:
        raise BadUsage(f"--seqlen {seqlen}, of the whole row, leaves {ring_size} ranks fewer than two tokens each")
    return Question(
        seqlen,
        ring_size,
        workload.num_heads,
        workload.num_kv_heads,
        workload.head_dim,
        workload.dtype,
        choose_schemes(request.backends),
    )


def run(
    snapshot: Snapshot,
    question: Question,
    request: Request,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
) -> Report:
    """Return the report on the prediction. Raises `Unanswered` if no block could be timed."""
    began = time.monotonic()
    report_progress("looking for backends")
    backend = choose_backend(target)
    pool = Pool(target.python, 1)
    measured = _time_blocks(question, backend, target, pool, report_progress)
    times = fit_blocks(measured.blocks, question.share(1))
    if ("causal", "forward") not in times.points:
        reasons = "; ".join(dict.fromkeys(block.reason for block in measured.blocks if block.reason))
        raise Unanswered(f"no block could be timed: {reasons or 'the worker was lost'}")
    links = request.links
    if question.ring_size > 1 and find_link(links, INNER_LINKS) is None:
        report_progress("measuring an exchange between two ranks")
        links = (*links, _measure_link(question, target))
    gpus_per_node = request.gpus_per_node or GPUS_PER_NODE
    machine = make_machine(times, measured.rates, links, gpus_per_node, target.uses_gpu)
    rows = predict_all(question, machine)
    conclusions: tuple[str, ...] = (CPU_TIMES,)
    if target.uses_gpu:
        conclusions = draw_conclusions(question, machine, rows, measured.memory_bytes)
    section = PredictionSection(
        execution.make_measured_on(pool, 0, began, "predict"),
        (),
        backend,
        gpus_per_node,
        measured.rates,
        links,
        tuple(measured.blocks),
        rows,
        conclusions,
    )
    return Report("bench", snapshot, sections={section.name: section})


def make_machine(
    times: BlockTimes, rates: DeviceRates, links: tuple[LinkRate, ...], gpus_per_node: int, uses_gpu: bool
) -> Machine:
    """Return the machine to simulate; on a CPU launching is free, and an exchange holds no multiprocessors."""
    inner = find_link(links, INNER_LINKS) or LinkRate("none", 1.0, 1.0, 1.0)  # a ring of one sends nothing
    cluster = Cluster(gpus_per_node, inner, find_link(links, OUTER_LINKS))
    launch_ms = LAUNCH_MS if uses_gpu else dict.fromkeys(LAUNCH_MS, 0.0)
    return Machine(times, rates.copy_gb_per_s, cluster, CONTENTION if uses_gpu else 0.0, launch_ms=launch_ms)


def choose_backend(target: ExecutionTarget) -> str:
    """Return the backend whose blocks are timed: flash-attn's, or SDPA's copy if flash-attn is not installed."""
    states = {state.name: state for state in discovery.list_backends(target)}
    has_flash = target.uses_gpu and "flash_attention_2" in states and not states["flash_attention_2"].missing
    return "flash_attention_2" if has_flash else "sdpa_flash"


def list_blocks(question: Question, uses_gpu: bool) -> dict[tuple[BlockKind, Passes, int], Case]:
    """Return the cases to time: each kind of block in the schemes, by length, forward and both passes."""
    share = question.seqlen // question.ring_size
    lengths = sorted({*LENGTHS[uses_gpu], *([share // 2 * 2] if 2 <= share <= LONGEST[uses_gpu] else [])})
    kinds = dict.fromkeys(kind for scheme in question.schemes for kind in ("causal", *KINDS[scheme]))
    return {
        (kind, passes, length): _make_case(question, kind, passes, length)
        for kind in kinds
        for length in lengths
        for passes in PASSES
    }


def _make_case(question: Question, kind: Any, passes: Passes, length: int) -> Case:
    queries = length // 2 if kind == "half_queries" else length - (kind == "shifted")
    keys = length // 2 if kind == "half_keys" else length - (kind == "shifted")
    case = Case(
        "block",
        (queries,),
        (keys,),
        num_heads=question.num_heads,
        num_kv_heads=question.num_kv_heads,
        head_dim=question.head_dim,
        v_head_dim=question.head_dim,
        dtype=question.dtype,
        causal=kind in ("causal", "shifted"),
        backward=passes != "forward",
    )
    return with_name(replace(case, every_row=True))


@dataclass
class _Measured:
    """The measurements: blocks, the device's matrix product and copy, its memory."""

    blocks: list[BlockTiming] = field(default_factory=list)
    rates: DeviceRates = DeviceRates()
    memory_bytes: int = 0


def _time_blocks(
    question: Question, backend: str, target: ExecutionTarget, pool: Pool, report_progress: Callable[[str], None]
) -> _Measured:
    cases = list_blocks(question, target.uses_gpu)
    keys = {f"{'_'.join(map(str, key))}": key for key in cases}
    named_cases = tuple(replace(cases[key], name=name) for name, key in keys.items())
    message = {
        "task": "attncheck.ring.worker.blocks:time_blocks",
        "device": target.device,
        "threads": target.threads_per_worker(1, spare=1),
        "seconds": target.seconds,
        "backend": backend,
        "dtype": question.dtype,
        "cases": codec.to_plain(named_cases),
    }
    measured, progress = _Measured(), Progress(report_progress, len(keys) + 1)

    def on_event(event: Event) -> None:
        progress.on_event(event)
        if event.kind == "started":
            return
        if event.item == RATES_ITEM:
            if event.kind == "answer":
                measured.rates = codec.read(DeviceRates, event.answer["rates"])
                measured.memory_bytes = event.answer["memory_bytes"]
            return
        blank = BlockTiming(*keys[event.item])
        if event.kind == "answer":
            measured.blocks.append(replace(blank, **event.answer))
        else:
            measured.blocks.append(replace(blank, outcome=execution.unmeasured_outcome(event), reason=event.reason))

    pool.run((Job("blocks", message, (RATES_ITEM, *keys), target.seconds, spins=True),), on_event)
    return measured


def _measure_link(question: Question, target: ExecutionTarget) -> LinkRate:
    """Return the rate at which two ranks exchange a rank's K and V here. Raises `Unanswered`."""
    shape = question.share(question.ring_size)
    ring = Ring(2, checks_communication=False)
    message = {
        "task": "attncheck.ring.worker.bench:bench",
        "cases": [],
        "shape": {
            "num_heads": shape.num_heads,
            "num_kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "dtype": question.dtype,
        },
        "seqlen": shape.seqlen,
        "packings": [],
    }
    runner = RankRunner(target.python, read_rank_env(os.environ))
    rates: list[RingRates] = []

    def on_event(event: Event) -> None:
        if event.kind == "answer":
            rates.append(codec.read(RingRates, event.answer))

    runner.run(group.make_job(ring, target, 2, [("rates", "rates")], message), on_event)
    group.raise_if_follower(runner)
    if not rates or not rates[0].link_gb_per_s:
        raise Unanswered(f"no exchange could be measured here: name the links, --link {EXAMPLE}")
    rate = rates[0].link_gb_per_s
    name = "nvlink" if target.uses_gpu else "host"
    return LinkRate(name, rate, rate * (1 - MEASURED_ERROR), rate * (1 + MEASURED_ERROR), "measured")
