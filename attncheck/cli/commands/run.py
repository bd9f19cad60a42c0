"""attncheck run: run the gate before a command."""

import functools
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from attncheck.cli.commands import GATING, PASSED_COMMAND, Command
from attncheck.cli.parts import (
    OUTPUT,
    POLICY,
    BadUsage,
    Baseline,
    OutputOptions,
    PolicyOptions,
    Python,
    RuleOptions,
    Verbose,
    make_execution_target,
    make_report_writer,
    option,
    resolve_gate_policy,
    select_interpreter,
    with_progress,
)
from attncheck.core.io import interrupts

if TYPE_CHECKING:
    from attncheck.core.report import Report

Cache = Annotated[
    bool,
    option(
        POLICY,
        "--cache/--no-cache",
        help="Reuse an earlier result for a day if nothing changed. Default: yes.",
    ),
]

Quiet = Annotated[
    bool, option(OUTPUT, "--quiet", help="Do not write a line to standard error before the command starts.")
]


def run(
    context: typer.Context,
    options: PolicyOptions,
    rules: RuleOptions,
    output: OutputOptions,
    baseline: Baseline = None,
    cache: Cache = True,
    quiet: Quiet = False,
    python: Python = None,
    verbose: Verbose = False,
) -> None:
    """Run the gate, and start the command after -- if it passes.

    attncheck run -- torchrun … train.py

    The command keeps the process, arguments, environment, streams and signals. The report of a refusal goes to
    standard error.
    """
    from attncheck.gate import guard

    argv = context.meta.get(PASSED_COMMAND, ())
    if not argv:
        raise BadUsage("give the command after --: attncheck run -- torchrun … train.py")
    policy = resolve_gate_policy(options, output, rules, baseline)
    writer = make_report_writer(output)
    target = make_execution_target(select_interpreter(python, argv), policy.device, policy)

    def show(report: "Report", refused: bool) -> None:
        if refused:
            writer.write_stderr(report, verbose)
        writer.write_files(report, verbose, output.format if refused else "")

    always_show = bool(writer.outputs)
    show_progress = functools.partial(with_progress, quiet=quiet)
    sys.exit(
        guard.run(policy, target, argv, show_progress, show, cache, always_show, interrupts.ignored_signals(), quiet)
    )


COMMAND = Command(
    run,
    GATING,
    14,
    passes_through=True,
    examples=("run -- torchrun --nproc-per-node 8 train.py", "run --level 1 -- python train.py"),
    most_used=("--level", "--launch", "--baseline", "--budget", "--quiet"),
)
