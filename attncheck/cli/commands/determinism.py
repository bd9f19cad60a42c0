"""attncheck determinism: repeat every backend and compare bit by bit."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from attncheck.cli.commands import MEASURING, Command
from attncheck.cli.parts import (
    MEASURE,
    Backends,
    Device,
    Model,
    OutputOptions,
    Python,
    RingOptions,
    Seed,
    Timeout,
    Verbose,
    check_backends,
    make_execution_target,
    make_report_writer,
    measure_and_exit,
    option,
    parse_ring_options,
    resolve_policy,
    select_interpreter,
)

if TYPE_CHECKING:
    from attncheck.core.report import Report
    from attncheck.core.snapshot import Snapshot

Repeat = Annotated[
    int,
    option(
        MEASURE,
        "--repeat",
        min=2,
        max=10000,
        metavar="N",
        help="Call every case N times: 32 calls rule out variation in 9 % of calls. Default: 32.",
    ),
]


def determinism(
    output: OutputOptions,
    ranks: RingOptions,
    model: Model = None,
    backend: Backends = None,
    seed: Seed = 0,
    repeat: Repeat = 32,
    device: Device = "auto",
    python: Python = None,
    timeout: Timeout = None,
    verbose: Verbose = False,
) -> None:
    """Check that repeated runs of every backend are bitwise identical.

    Says which setting makes a backend reproducible, and at what cost.

    MODEL sets heads and sizes: a folder, or a Hub name in the cache.
    """
    from attncheck.measure import determinism

    policy = resolve_policy(output, timeout=timeout)
    writer = make_report_writer(output)
    request = determinism.Request(backends=tuple(backend or ()), seed=seed, repeats=repeat)
    check_backends(request.backends)
    interpreter = select_interpreter(python)
    target = make_execution_target(interpreter, device, policy)
    ring = parse_ring_options(ranks)

    def measure(snapshot: "Snapshot", report_progress: Callable[[str], None]) -> "Report":
        if ring is None:
            return determinism.run(snapshot, request, target, report_progress)
        from attncheck.ring import determinism as ring_determinism

        return ring_determinism.run(snapshot, request, ring, target, report_progress)

    measure_and_exit(measure, writer, interpreter, model, verbose, policy)


COMMAND = Command(determinism, MEASURING, 7, examples=("determinism", "determinism --backend sdpa_flash --repeat 64"))
