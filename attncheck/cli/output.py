"""Writes a command's output: one document to standard output, others to files; and returns the exit code."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from attncheck.cli.streams import note_lost_output
from attncheck.core.io.errors import CLEAN, FOUND, UNANSWERED, Interrupted
from attncheck.core.io.outgoing import clean, clean_text
from attncheck.core.io.streams import fit_text, print_message

if TYPE_CHECKING:
    from attncheck.cli.options import OutputOptions
    from attncheck.core.io.streams import Syntax
    from attncheck.core.report import Report
    from attncheck.gate.policy import Policy
    from attncheck.report.outputs import Output

CONTINUATION = 4  # columns by which a wrapped line is indented if its last column is too far right


class ReportWriter(NamedTuple):
    """Writes a report: one document to standard output, and others to files."""

    format_name: str
    render: Callable[[Report, bool], str]  # takes a report that `clean` returned
    outputs: tuple[Output, ...]
    github: bool
    syntax: Syntax = "text"

    def write(self, report: Report, verbose: bool) -> None:
        """Write every document even if one fails. A failure is one line on standard error and sets the exit code."""
        report = clean(report)
        write_stdout(self.render(report, verbose), self.syntax)
        self._write_clean_files(report, verbose, self.format_name)

    def write_stderr(self, report: Report, verbose: bool) -> None:
        """Write the document to standard error."""
        if sys.stderr is not None:
            text = self.render(clean(report), verbose)
            sys.stderr.write(fit_text(text, getattr(sys.stderr, "encoding", None), self.syntax))

    def write_files(self, report: Report, verbose: bool, shown: str) -> None:
        """Write the files, and GitHub's annotations unless standard output has them; `shown` is its format."""
        self._write_clean_files(clean(report), verbose, shown)

    def _write_clean_files(self, report: Report, verbose: bool, shown: str) -> None:
        from attncheck.report import outputs

        failures = (
            *outputs.write(report, self.outputs, verbose),
            *outputs.report_to_github(report, shown, self.github),
        )
        for failure in failures:
            print_message(f"attncheck: {failure}")
            note_lost_output(failure)


def make_report_writer(options: OutputOptions) -> ReportWriter:
    """Return the writer of the documents of --format and --output. Raises `BadUsage`, before any work is done."""
    from attncheck.report.formats import load_format

    parsed: tuple[Output, ...] = ()
    if options.output:
        from attncheck.report import outputs

        parsed = outputs.parse_outputs(options.output)
    record = load_format(options.format)
    return ReportWriter(options.format, record.render, parsed, options.github, record.syntax)


def write_and_exit(writer: ReportWriter, report: Report, verbose: bool, policy: Policy) -> NoReturn:
    """Apply the policy to a report, write it, and end with its exit code."""
    from attncheck.gate import apply, dates

    report = apply.with_repair(apply.apply_policy(report, policy, dates.today()))
    report = replace(report, exit_code=exit_code(report, policy))
    writer.write(report, verbose)
    sys.exit(report.exit_code)


def exit_code(report: Report, policy: Policy) -> int:
    """Return the exit code for the most severe finding; if output was lost, it is never the code for success."""
    if report.interrupted:
        return Interrupted.exit_code
    if report.fails(policy.fail_on):
        return FOUND
    return UNANSWERED if report.unanswered else CLEAN


def write_stdout(text: str, syntax: Syntax = "text") -> None:
    """Write `text`, a document of this syntax, to standard output.

    If the text could not be written completely, that decides the exit code (`attncheck.cli.streams`).
    """
    sys.stdout.write(fit_text(text, getattr(sys.stdout, "encoding", None), syntax))
    sys.stdout.flush()


def write_text(text: str, syntax: str = "") -> None:
    """Write text or JSON that is not part of a report to standard output, cleaned of foreign characters.

    On a terminal, "text" is wrapped; without a syntax no line is changed, because it may be pasted.
    """
    if syntax == "json":
        write_stdout(text, "json")
    elif syntax == "text" and sys.stdout is not None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        write_stdout("".join(f"{_wrap_line(line, width)}\n" for line in clean_text(text).splitlines()))
    else:
        write_stdout(clean_text(text))


def _wrap_line(line: str, width: int) -> str:
    """Return a line wrapped below its last column, between words; tables and indented code stay as they are."""
    if len(line) <= width or line.startswith(("|", "    ")):
        return line
    column = max((gap.end() for gap in re.finditer(r"(?<=\S) {2,}|^ *(- )?", line)), default=0)
    indent = " " * (column if column <= width // 2 else CONTINUATION)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
