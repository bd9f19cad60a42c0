"""attncheck determinism: repeat every backend and compare bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from attncheck.cli.app import MEASURING, Command
from attncheck.cli.measuring import measure_and_finish
from attncheck.cli.options import (
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
    option,
)
from attncheck.cli.output import report_writer
from attncheck.cli.settings import check_backends, execution_target, load_config, ring_group

if TYPE_CHECKING:
    from attncheck.core.report import Report
    from attncheck.core.snapshot import Snapshot

Repeat = Annotated[
    int, option(MEASURE, "--repeat", min=2, max=10000, metavar="N", help="Calls of each case. Default: 32.")
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
    """Repeat every backend bit by bit: is it reproducible?

    Says what makes it so, and at what cost.

    MODEL is a model whose heads and sizes to use: a folder, or a Hub name in the cache.
    """
    from attncheck.measure import determinism

    config = load_config(output, timeout=timeout)
    writer = report_writer(output)
    request = determinism.Request(backends=tuple(backend or ()), seed=seed, repeats=repeat)
    check_backends(request.backends)
    where = execution_target(python, device, config)
    ring = ring_group(ranks)

    def measure(snapshot: Snapshot, report_progress: Callable[[str], None]) -> Report:
        if ring is None:
            return determinism.run(snapshot, request, where, report_progress)
        from attncheck.ring import determinism as ring_determinism

        return ring_determinism.run(snapshot, request, ring, where, report_progress)

    measure_and_finish(measure, writer, python, model, verbose, config)


COMMAND = Command(determinism, MEASURING, 5)
