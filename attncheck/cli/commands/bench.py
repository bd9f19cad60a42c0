"""attncheck bench: time every backend, or every scheme of context parallelism."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TypeVar

from attncheck.cli.commands import MEASURING, Command
from attncheck.cli.parts import (
    FOR_RING,
    MEASURE,
    NOT_IN_RING,
    RANKS,
    Backends,
    BadUsage,
    Device,
    MinEfficiency,
    Model,
    OutputOptions,
    Python,
    RingOptions,
    Seed,
    ShapeOptions,
    Timeout,
    Unanswered,
    Verbose,
    check_backends,
    check_choice,
    complete_from,
    make_execution_target,
    make_report_writer,
    measure_and_exit,
    option,
    parse_ring_options,
    refuse_options,
    resolve_policy,
    select_interpreter,
)

if TYPE_CHECKING:
    from attncheck.cli.progress import ProgressDisplay
    from attncheck.core.report import Report
    from attncheck.core.results.ring_timings import RingTiming
    from attncheck.core.results.timings import Timing
    from attncheck.core.snapshot import Snapshot
    from attncheck.measure.bench_shapes import Request
    from attncheck.ring.predict.run import Request as PredictionRequest
    from attncheck.workers.execution import Progress

    AnyTiming = TypeVar("AnyTiming", Timing, RingTiming)

SWEEPS = ("heads-k-stride", "seqlen")
Sweep = Annotated[
    str | None,
    option(
        RANKS,
        "--sweep",
        metavar="WHAT",
        help="With --ring-size: time a range of heads-k-stride or seqlen. Default: no range.",
        autocompletion=complete_from(SWEEPS),
    ),
]
Predict = Annotated[
    bool,
    option(
        RANKS,
        "--predict",
        help=(
            "With --ring-size: time blocks on one device and predict the ring from them; --seqlen then counts the "
            "whole row. Default: time the ring itself."
        ),
    ),
]
Links = Annotated[
    str | None,
    option(
        RANKS,
        "--link",
        metavar="RATES",
        help=(
            "Predict with these links, in GB/s one way for one GPU: nvlink=450,ib=50, or nvlink=136+-14. Default: "
            "within a node, the speed measured between two ranks here."
        ),
    ),
]
GpusPerNode = Annotated[
    int | None,
    option(RANKS, "--gpus-per-node", min=1, metavar="N", help="Predict nodes of this many GPUs. Default: 8."),
]
MinOfPublished = Annotated[
    float | None,
    option(
        MEASURE,
        "--min-of-published",
        metavar="SHARE",
        min=0,
        max=1,
        help=(
            "Exit with 1 if the fastest correct backend is below this share (0 to 1) of the best published speed. "
            "Default: no minimum."
        ),
    ),
]
Published = Annotated[
    bool,
    option(
        MEASURE,
        "--published",
        help="Time the shape of the best published speed. Default: the shape of the options or of MODEL.",
    ),
]


def bench(
    shape: ShapeOptions,
    output: OutputOptions,
    ranks: RingOptions,
    model: Model = None,
    backend: Backends = None,
    seed: Seed = 0,
    sweep: Sweep = None,
    min_efficiency: MinEfficiency = None,
    min_of_published: MinOfPublished = None,
    published: Published = False,
    predict: Predict = False,
    link: Links = None,
    gpus_per_node: GpusPerNode = None,
    device: Device = "auto",
    python: Python = None,
    timeout: Timeout = None,
    verbose: Verbose = False,
) -> None:
    """Time every backend, and recommend the fastest correct one.

    With --ring-size N, times the context-parallel schemes on N ranks, and shows what they could reach. With
    --predict, predicts them for a cluster that you do not have.

    MODEL sets heads, sizes, windows and dtype: a folder, or a Hub name in the cache.
    """
    from attncheck.measure import bench, bench_shapes
    from attncheck.measure.parity import parse_dtypes

    policy = resolve_policy(output, timeout=timeout)
    writer = make_report_writer(output)
    backends = tuple(backend or ())
    check_backends(backends)
    interpreter = select_interpreter(python)
    target = make_execution_target(interpreter, device, policy)
    ring = parse_ring_options(ranks)
    can_time_ring = target.uses_gpu or device == "cpu" or ranks.emulate
    if sweep is not None:
        check_choice("--sweep", sweep, SWEEPS)
    if min_efficiency == 0:
        raise BadUsage("--min-efficiency must be above 0")
    dtype = parse_dtypes([shape.dtype])[0] if shape.dtype is not None else None
    if ring is None:
        refuse_options(
            FOR_RING,
            sweep=sweep,
            min_efficiency=min_efficiency,
            predict=predict,
            link=link is not None,
            gpus_per_node=gpus_per_node,
        )
    else:
        refuse_options(NOT_IN_RING, min_of_published=min_of_published is not None, published=published)
        is_shaped = {name: getattr(shape, name) is not None for name in ("batch", "causal", "window", "packed")}
        refuse_options(NOT_IN_RING, **is_shaped)
    prediction_request = read_prediction_request(
        predict, link, gpus_per_node, ranks, sweep, min_efficiency, target.uses_gpu
    )
    if ring is not None and not can_time_ring:
        command = f"attncheck bench --ring-size {ring.size}"
        raise Unanswered(
            "no GPU here, so ring times would mean nothing. To check the schemes: "
            f"attncheck parity --ring-size {ring.size}. To predict a cluster's speed from one of its GPUs: "
            f"{command} --predict --link nvlink=450,ib=50. To time this CPU anyway: {command} --device cpu"
        )
    request = bench_shapes.Request(
        backends=backends,
        passes=bench_shapes.parse_passes(shape.passes),
        seqlen=shape.seqlen,
        batch=shape.batch,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=dtype,
        causal=shape.causal,
        window=shape.window,
        packed=bench_shapes.parse_document_lengths(shape.packed, shape.seqlen, shape.batch),
        seed=seed,
        min_of_published=min_of_published or 0.0,
    )
    if published:
        request = read_published_shape(request, model, target.uses_gpu)

    def measure(snapshot: Snapshot, display: ProgressDisplay) -> Report:
        if ring is None:
            from attncheck.report.sections import bench as bench_section

            on_timing = make_timing_printer(display, bench_section.format_timing)
            return bench.run(snapshot, request, target, display, on_timing)
        if prediction_request is not None:
            from attncheck.ring.predict import run as prediction

            question = prediction.make_question(snapshot, request, ring.size, target.uses_gpu)
            return prediction.run(snapshot, question, prediction_request, target, display)
        from attncheck.report.sections import ring as ring_section
        from attncheck.ring import bench as ring_bench

        ring_options = ring_bench.Request(
            shape.seqlen,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            dtype,
            sweep or "",
            min_efficiency or 0.0,
            backends,
        )
        workload = ring_bench.choose_workload(snapshot, target.uses_gpu, ring_options)
        on_ring_timing = make_timing_printer(display, ring_section.format_timing)
        with offer_prediction(ring.size):
            return ring_bench.run(snapshot, workload, ring, target, display, on_ring_timing)

    measure_and_exit(measure, writer, interpreter, model, verbose, policy)


def read_published_shape(request: Request, model: str | None, uses_gpu: bool) -> Request:
    """Return the request with the shape of the best published speed. Raises `BadUsage` if a shape is given as well."""
    from attncheck.measure.published import published_shape

    shape = published_shape()
    given = [f"--{name.removeprefix('num_').replace('_', '-')}" for name in shape if getattr(request, name) is not None]
    if model is not None or given or request.packed or request.window or request.batch:
        raise BadUsage("--published uses the published shape: remove MODEL and the shape options")
    if not uses_gpu:
        raise Unanswered("no GPU here, and speeds are published for GPUs only")
    return replace(request, **shape)


def read_prediction_request(
    predict: bool,
    link: str | None,
    gpus_per_node: int | None,
    ranks: RingOptions,
    sweep: str | None,
    min_efficiency: float | None,
    uses_gpu: bool,
) -> PredictionRequest | None:
    """Return the request of --predict, None without it. Raises `BadUsage` for incompatible options."""
    if not predict:
        refuse_options("{} is for --predict", link=link is not None, gpus_per_node=gpus_per_node)
        return None
    refuse_options(
        "{} is not for --predict, which times no ring",
        sweep=sweep,
        min_efficiency=min_efficiency,
        emulate=ranks.emulate is not None,
    )
    from attncheck.ring.predict.cluster import parse_links
    from attncheck.ring.predict.run import Request, check_request

    request = Request(parse_links(link) if link is not None else (), gpus_per_node or 0)
    check_request(request, ranks.ring_size or 1, uses_gpu)
    return request


@contextlib.contextmanager
def offer_prediction(ring_size: int) -> Iterator[None]:
    """Add the commands that work without GPUs to the error about missing GPUs."""
    try:
        yield
    except Unanswered as error:
        from attncheck.ring.worker.rank import TOO_FEW_GPUS

        if TOO_FEW_GPUS not in str(error):
            raise
        offer = f"attncheck bench --ring-size {ring_size} --predict --link nvlink=450,ib=50 predicts it from one"
        raise Unanswered(f"{error}; {offer}") from None


def make_timing_printer(
    display: ProgressDisplay, format_timing: Callable[[AnyTiming], str]
) -> Callable[[AnyTiming, Progress], None]:
    """Return a function that prints one timing as a line on standard error; the report lists refusals."""

    def print_timing(timing: AnyTiming, progress: Progress) -> None:
        if timing.outcome != "refused":
            display.print_line(f"{progress.done} of {progress.total} · {format_timing(timing)}")

    return print_timing


COMMAND = Command(
    bench,
    MEASURING,
    8,
    examples=("bench", "bench --seqlen 16384 --backend sdpa_flash", "bench --ring-size 8 --predict --link nvlink=450"),
    most_used=("--seqlen", "--backend", "--ring-size", "--predict", "--device"),
)
