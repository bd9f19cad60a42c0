"""attncheck report: convert reports saved as JSON into another format, or into the text of an issue."""

import sys
from dataclasses import replace
from typing import Annotated

import typer

from attncheck.cli.commands import ABOUT, Command
from attncheck.cli.parts import (
    CLEAN,
    FOUND,
    OUTPUT,
    UNANSWERED,
    BadUsage,
    OutputOptions,
    Verbose,
    make_report_writer,
    option,
    resolve_policy,
    write_stdout,
)

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...", show_default=False, help="Reports that --format json wrote; - for standard input."
    ),
]
Bug = Annotated[
    str | None,
    option(
        OUTPUT,
        "--bug",
        metavar="PACKAGE",
        help="Print the text of an issue about this package, in Markdown, and nothing else. Default: none.",
    ),
]


def report(files: Files, output: OutputOptions, bug: Bug = None, verbose: Verbose = False) -> None:
    """Convert saved JSON reports into another format.

    Several reports on one environment are merged; --bug writes the text of an issue.
    """
    from attncheck.cli.report_files import read_reports
    from attncheck.core.io.outgoing import clean
    from attncheck.report.bug_report import write_bug_report

    policy = resolve_policy(output)
    if bug is not None and (output.output or output.format != "text"):
        raise BadUsage("--bug prints Markdown on standard output: remove --format and --output")
    writer = make_report_writer(output)
    if files.count("-") > 1:
        raise BadUsage("- is standard input, which can be read only once")
    kept = read_reports(files)
    if bug is not None:
        write_stdout(write_bug_report(clean(kept), bug))
        return
    code = FOUND if kept.fails(policy.fail_on) else UNANSWERED if kept.unanswered else CLEAN
    writer.write(replace(kept, exit_code=code), verbose)
    sys.exit(code)


COMMAND = Command(
    report,
    ABOUT,
    23,
    examples=("report parity.json --format html > report.html", "report doctor.json --bug ring-flash-attn"),
)
