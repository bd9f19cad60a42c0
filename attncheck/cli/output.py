"""Writes what a command answers: one document to standard output, others to files, and the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from attncheck.core.errors import CLEAN, FOUND, UNANSWERED, BadUsage

if TYPE_CHECKING:
    from attncheck.cli.options import OutputOptions
    from attncheck.core.report import Report
    from attncheck.gate.policy import Config
    from attncheck.report.outputs import Output


@dataclass(frozen=True)
class ReportWriter:
    """What a report is written as: one document to standard output, and others to files."""

    format_name: str
    render: Callable[[Report, bool], str]
    outputs: tuple[Output, ...]
    github: bool

    def write(self, report: Report, verbose: bool) -> bool:
        """Write all of them, each in spite of the others; return whether none failed, which is said in a line each."""
        emit(self.render(report, verbose))
        return self.write_files(report, verbose, self.format_name)

    def write_files(self, report: Report, verbose: bool, shown: str) -> bool:
        """Write the files, and tell GitHub what standard output, which has the format `shown`, does not."""
        from attncheck.report import outputs

        failures = (*outputs.write(report, self.outputs, verbose), *outputs.automatic(report, shown, self.github))
        for failure in failures:
            print(f"attncheck: {failure}", file=sys.stderr)
        return not failures


def report_writer(options: OutputOptions) -> ReportWriter:
    """Return what writes the documents of --format and --output. Raises `BadUsage`, before any work is done."""
    from attncheck.report.formats import load_format

    parsed: tuple[Output, ...] = ()
    if options.output:
        from attncheck.report import outputs

        parsed = outputs.parsed(options.output)
    return ReportWriter(options.format, load_format(options.format).render, parsed, options.github)


def finish(
    writer: ReportWriter, report: Report, verbose: bool, config: Config, pictures: Sequence[str] = ()
) -> NoReturn:
    """Apply the policy to a report, write it, and end with its exit code."""
    from attncheck.gate import apply, dates

    report = apply.applied(report, config, dates.today())
    report = replace(report, exit_code=exit_code(report, config))
    complete = writer.write(report, verbose)
    if pictures:  # last, so that what was measured is told whatever drawing does
        from attncheck.report import picture

        picture.draw(report, pictures)
    sys.exit(exit_code(report, config, complete))


def exit_code(report: Report, config: Config, complete: bool = True) -> int:
    """Return the exit code by the gravest finding; where not all documents are written, no answer is a clean one."""
    if report.fails(config.fail_on):
        return FOUND
    return CLEAN if complete else UNANSWERED


def emit(text: str) -> None:
    """Write `text` to standard output; a reader that went away is no error of ours."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except AttributeError:  # started with standard output closed
        return
    except (BrokenPipeError, ValueError):
        discard_standard_output()
    except OSError as error:
        discard_standard_output()
        raise BadUsage(f"cannot write to standard output: {error.strerror}") from None


def discard_standard_output() -> None:
    """Give the interpreter's own flush at exit somewhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
