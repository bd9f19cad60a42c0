"""Writes a report in several formats at once, and reports to GitHub if GitHub Actions runs attncheck.

It does not write to standard output, which carries only the document of --format.
"""

import difflib
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, TextIO

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import replace_file
from attncheck.core.io.streams import fit_text
from attncheck.report.formats import Report, format_names, load_format


class Output(NamedTuple):
    """One document to write: the name of its format, and the file as the user named it."""

    format_name: str
    path: str


def parse_outputs(values: Iterable[str]) -> tuple[Output, ...]:
    """Parse the values of `--output FORMAT=FILE`. Raises `BadUsage` for a file that cannot be written."""
    outputs = tuple(_parse_output(value) for value in values)
    formats_by_file: dict[str, str] = {}
    for output in outputs:
        _check_writable(output.path)
        real = os.path.realpath(output.path)
        if real in formats_by_file and _is_replaceable(real):
            raise BadUsage(
                f"--output: {formats_by_file[real]} and {output.format_name} cannot both be written to {output.path}"
            )
        formats_by_file[real] = output.format_name
    return outputs


def _parse_output(value: str) -> Output:
    format_name, separator, path = value.partition("=")
    if not separator or not path:
        raise BadUsage(f"--output {value!r} is not FORMAT=FILE, like sarif=attncheck.sarif")
    names = format_names()
    if format_name not in names:
        near = difflib.get_close_matches(format_name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadUsage(f"--output {value!r}: {format_name!r} is not one of {', '.join(names)}{hint}")
    if path == "-":
        raise BadUsage(f"--output {value!r}: use --format for standard output: --format {format_name}")
    return Output(format_name, path)


def _check_writable(path: str) -> None:
    """Raise `BadUsage` if the file could not be written: before measuring for an hour, not after it."""
    try:
        folder = os.path.dirname(os.path.realpath(path))
        if not os.path.isdir(folder):
            raise BadUsage(f"--output: folder {folder} does not exist")
        with suppress(FileNotFoundError):
            os.stat(path)  # a name that is too long, a loop of links
        if os.path.isdir(path):
            raise BadUsage(f"--output: {path} is a folder")
        if not os.access(folder if _is_replaceable(path) else path, os.W_OK):
            raise BadUsage(f"--output: {path} cannot be written")
    except (OSError, ValueError) as error:  # a working directory that no longer exists, a name with a NUL
        raise BadUsage(f"--output: {path!r}: {error}") from None


def _is_replaceable(path: str) -> bool:
    """Return whether a file can be replaced by renaming, unlike /dev/stderr, a pipe or /dev/null."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def write(report: Report, outputs: Iterable[Output], verbose: bool = False) -> tuple[str, ...]:
    """Write the documents; return a line for each that could not be written. A failure does not stop the others."""
    failures = []
    for output in outputs:
        try:
            record = load_format(output.format_name)
            document = (record.render_plain or record.render)(report, verbose)
            if not _is_replaceable(output.path):  # GitHub's runner reads /dev/stderr too
                document = fit_text(document, "utf-8", record.syntax)
            _write_file(output.path, document if document.endswith("\n") else document + "\n")
        except OSError as error:
            failures.append(f"cannot write {output.format_name} to {output.path}: {error.strerror or error}")
    return tuple(failures)


def _write_file(path: str, document: str) -> None:
    """Write a file so that a reader sees either the old contents or all of the new ones."""
    content = document.encode("utf-8", "backslashreplace")
    if _is_replaceable(path):
        replace_file(path, content)
        return
    with open(path, "wb", opener=_open_without_waiting) as stream:
        stream.write(content)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a device or a pipe: a pipe without a reader is an error, without waiting for one."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def report_to_github(
    report: Report,
    stdout_format: str = "text",
    enabled: bool = True,
    environ: Mapping[str, str] | None = None,
    stream: TextIO | None = None,
) -> tuple[str, ...]:
    """Report to GitHub if GitHub Actions runs us: annotations on standard error, the summary in its file.

    If `stdout_format` is "github", standard output already carries the annotations. `enabled` is the option that turns
    all of it off. Returns a line for each part that could not be written.
    """
    environ = os.environ if environ is None else environ
    if not enabled or environ.get("GITHUB_ACTIONS") != "true":
        return ()
    if stdout_format != "github":
        stream = stream or sys.stderr
        stream.write(load_format("github").render(report, False))
        stream.flush()
    return _append_summary(report, environ.get("GITHUB_STEP_SUMMARY", ""))


def _append_summary(report: Report, path: str) -> tuple[str, ...]:
    """Append the summary to the step's summary file, within the space that is left in it."""
    if not path:
        return ()
    from attncheck.report.formats import github

    try:
        used = os.path.getsize(path) if os.path.exists(path) else 0
        text = github.format_job_summary(report, github.SUMMARY_BYTES - used - 1)
        with open(path, "a", encoding="utf-8", errors="backslashreplace", opener=_open_without_waiting) as stream:
            stream.write(text)
    except OSError as error:
        return (f"cannot write the job summary: {error.strerror or error}",)
    return ()
