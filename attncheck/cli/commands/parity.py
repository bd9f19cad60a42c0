"""attncheck parity: run every backend forward and backward, and compare it with float64."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from attncheck.cli.commands import MEASURING, Command
from attncheck.cli.parts import (
    DTYPES,
    MEASURE,
    SUITES,
    Backends,
    BadUsage,
    Device,
    Model,
    OutputOptions,
    Python,
    RingOptions,
    Seed,
    Timeout,
    Verbose,
    check_backends,
    check_choice,
    complete_from,
    make_execution_target,
    make_report_writer,
    measure_and_exit,
    option,
    parse_ring_options,
    print_message,
    read_installed_files,
    resolve_policy,
    select_interpreter,
    write_text,
)

if TYPE_CHECKING:
    from attncheck.core.report import Report
    from attncheck.core.snapshot import Snapshot
    from attncheck.measure.parity import Request
    from attncheck.ring.group import Ring

Suite = Annotated[
    str | None,
    option(
        MEASURE,
        "--suite",
        metavar="SUITE",
        help="Run the cases of this suite: quick, standard or full. Default: standard; with MODEL, cases made from it.",
        autocompletion=complete_from(SUITES),
    ),
]
Cases = Annotated[
    list[str] | None,
    option(
        MEASURE,
        "--case",
        metavar="PATTERN",
        help="Run only cases of this name, pattern or family. Repeat for several. Default: all.",
    ),
]
Dtypes = Annotated[
    list[str] | None,
    option(
        MEASURE,
        "--dtype",
        metavar="DTYPE",
        help="Run only cases of this dtype: bf16, fp16 or fp32. Repeat for several. Default: all.",
        autocompletion=complete_from(DTYPES),
    ),
]
Repeat = Annotated[
    int,
    option(MEASURE, "--repeat", min=1, max=1000, metavar="N", help="Run every case with this many seeds. Default: 1."),
]
Budget = Annotated[
    float | None,
    option(
        MEASURE,
        "--budget",
        min=1,
        metavar="SECONDS",
        help="Stop after this many seconds, and report what was left out. Default: no limit.",
    ),
]
MaxLength = Annotated[
    int | None,
    option(
        MEASURE,
        "--max-length",
        min=1,
        metavar="TOKENS",
        help="Limit MODEL's cases to this many tokens. Default: the model's maximum.",
    ),
]
ExplainCase = Annotated[
    str | None,
    option(
        MEASURE,
        "--explain-case",
        metavar="CASE",
        help="Print a standalone script that reproduces this case of one --backend. Default: none.",
    ),
]
ListCases = Annotated[
    bool, option(MEASURE, "--list", help="Print the names of the cases that would run, one per line, and run none.")
]
ShowCoverage = Annotated[
    bool,
    option(MEASURE, "--coverage", help="With --list: print which combinations of features a suite's cases cover."),
]
LastFailed = Annotated[
    bool,
    option(
        MEASURE,
        "--last-failed",
        "--lf",
        help="Run only cases that failed last time with the same --python, --suite or MODEL; all if nothing did.",
    ),
]


def parity(
    output: OutputOptions,
    ranks: RingOptions,
    model: Model = None,
    suite: Suite = None,
    backend: Backends = None,
    case: Cases = None,
    dtype: Dtypes = None,
    seed: Seed = 0,
    repeat: Repeat = 1,
    budget: Budget = None,
    max_length: MaxLength = None,
    explain_case: ExplainCase = None,
    list_cases: ListCases = False,
    coverage: ShowCoverage = False,
    last_failed: LastFailed = False,
    device: Device = "auto",
    python: Python = None,
    timeout: Timeout = None,
    verbose: Verbose = False,
) -> None:
    """Compare every backend's results and gradients with float64.

    The output, the log-sum-exp and the three gradients are judged against float64.

    With MODEL, tests its own heads, sizes, windows, dtype and lengths: a folder, or a Hub name in the cache.
    """
    from attncheck.cli.last_failed import FailureMemory
    from attncheck.core.report import InterruptedRun
    from attncheck.measure import parity
    from attncheck.workers.launcher_env import read_rank_env

    policy = resolve_policy(output, timeout=timeout)
    writer = make_report_writer(output)
    request = parity.Request(
        suite=check_choice("--suite", suite or "standard", SUITES),
        backends=tuple(backend or ()),
        cases=tuple(case or ()),
        dtypes=parity.parse_dtypes(dtype or ()),
        seed=seed,
        repeat=repeat,
        budget=budget,
        max_seqlen=max_length,
    )
    check_backends(request.backends)
    interpreter = select_interpreter(python)
    target = make_execution_target(interpreter, device, policy)
    ring = parse_ring_options(ranks)
    memory = FailureMemory(
        os.path.abspath(target.python), device, request.suite, model, seed, max_length, ring and ring.size
    )
    if last_failed and read_rank_env(os.environ) is not None:
        raise BadUsage("--last-failed is stored per machine; under torchrun or srun, name cases with --case")
    if last_failed:
        request = replace(request, only=memory.read())
        if not request.only:
            print_message("attncheck: --last-failed found no recorded failure, so all cases run")
    if coverage:
        if not list_cases or model or ring is not None:
            raise BadUsage("--coverage needs --list and a suite of one device")
        write_text("".join(f"{line}\n" for line in describe_coverage(request)))
        return
    if list_cases:
        snapshot = read_installed_files(interpreter, model, policy)
        write_text("".join(f"{name}\n" for name in list_case_names(snapshot, request, ring)))
        return
    if explain_case is not None:
        from attncheck.measure import reproduce

        if ring is not None:
            raise BadUsage(
                "--explain-case writes a script for one device: remove --ring-size; --case runs one case of a ring"
            )
        write_text(
            reproduce.make_script(read_installed_files(interpreter, model, policy), request, explain_case, target)
        )
        return

    def measure(snapshot: Snapshot, report_progress: Callable[[str], None]) -> Report:
        try:
            report = measure_cases(snapshot, report_progress)
        except InterruptedRun as interrupt:
            memory.update(interrupt.report)
            raise
        memory.update(report)
        return report

    def measure_cases(snapshot: Snapshot, report_progress: Callable[[str], None]) -> Report:
        if ring is None:
            return parity.run(snapshot, request, target, report_progress)
        from attncheck.core.report import mark_interrupted
        from attncheck.core.results.parity import ParitySection
        from attncheck.ring import hf_adapter
        from attncheck.ring import parity as ring_parity

        report = ring_parity.run(snapshot, request, ring, target, report_progress)
        is_narrowed = request.backends or request.cases or request.dtypes or request.only
        if is_narrowed or report.section(ParitySection) is None:  # nothing was measured if ranks cannot communicate
            return report
        try:
            return hf_adapter.add_adapter_check(report, ring, target, report_progress)
        except KeyboardInterrupt:  # keep what parity has measured
            raise InterruptedRun(mark_interrupted(report)) from None

    measure_and_exit(measure, writer, interpreter, model, verbose, policy)


def list_case_names(snapshot: Snapshot, request: Request, ring: Ring | None) -> tuple[str, ...]:
    """Return the distinct names of the cases that would run. Raises `BadUsage` if none would."""
    from attncheck.measure import parity

    if ring is None:
        return tuple(case.name for case in parity.choose_cases(request, snapshot))
    from attncheck.ring import parity as ring_parity

    cases_by_size = ring_parity.choose_cases(request, snapshot, ring)
    return tuple(dict.fromkeys(case.name for cases in cases_by_size.values() for case in cases))


def describe_coverage(request: Request) -> Iterator[str]:
    """Yield lines on what the generated cases of the suite cover, seed by seed."""
    from attncheck.measure import generated_cases

    for seed in range(request.seed, request.seed + request.repeat):
        for array in generated_cases.arrays_of(request.suite):
            yield from generated_cases.describe_coverage(array, seed)


COMMAND = Command(
    parity,
    MEASURING,
    6,
    examples=("parity", "parity --suite full --backend sdpa_flash", "parity --list --coverage"),
    most_used=("--suite", "--backend", "--budget", "--ring-size", "--device"),
)
