"""attncheck diff: why something works in one environment and not in another."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from attncheck.cli.commands import EXAMINING, Command
from attncheck.cli.parts import (
    EXAMINE,
    BadUsage,
    Lanes,
    OutputOptions,
    Texts,
    Timeout,
    Verbose,
    collect_lanes,
    exit_code,
    make_report_writer,
    option,
    resolve_policy,
    select_interpreter,
)
from attncheck.cli.stack_file import read_side

if TYPE_CHECKING:
    from attncheck.gate.policy import Policy
    from attncheck.stacks.diff.sides import StackSide

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="A B",
        show_default=False,
        help="Compare these files: from `attncheck probe` or `lock`, or reports in JSON; - is standard input.",
    ),
]
Pythons = Annotated[
    Texts,
    option(
        EXAMINE,
        "--python",
        metavar="PATH",
        help="Examine this interpreter's environment as a side, after the files. Repeat for both. Default: files.",
    ),
]


def diff(
    output: OutputOptions,
    files: Files = None,
    python: Pythons = None,
    lane: Lanes = None,
    timeout: Timeout = None,
    verbose: Verbose = False,
) -> None:
    """Explain why one environment works and another does not.

    Lists the findings that only one side has, then the differences, likeliest explanation first.
    """
    from attncheck.stacks.diff.compare import compare_sides

    paths, interpreters = files or [], python or []
    if len(paths) + len(interpreters) != 2:
        raise BadUsage(
            f"diff compares two sides, and {len(paths) + len(interpreters)} were named: "
            "`attncheck diff a.json b.json`, or --python PATH instead of a file"
        )
    if paths == ["-", "-"]:
        raise BadUsage("only one side can be standard input")
    if lane and not interpreters:
        raise BadUsage("--lane applies to --python; a file has the lanes that were run for it")
    policy = resolve_policy(output, timeout=timeout)
    writer = make_report_writer(output)
    sides = [read_side(path) for path in paths]
    sides += [_examine(path, lane or (), policy) for path in interpreters]
    report = compare_sides(*sides)
    report = replace(report, exit_code=exit_code(report, policy))
    writer.write(report, verbose)
    sys.exit(report.exit_code)


def _examine(path: str, lanes: list[str] | tuple[str, ...], policy: "Policy") -> "StackSide":
    from attncheck.stacks.diff.sides import make_snapshot_side

    snapshot = collect_lanes(select_interpreter(path), lanes, None, False, policy)
    return make_snapshot_side(snapshot, snapshot.host.executable, "environment")


COMMAND = Command(diff, EXAMINING, 3, examples=("diff good.json bad.json", "diff good.json --python .venv/bin/python"))
