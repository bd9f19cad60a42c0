"""Writes a report in several formats at once, and tells GitHub of it where that is who runs us.

Standard output is not touched here: it carries the one document that was asked for, and nothing else.
"""

from __future__ import annotations

import difflib
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from attncheck.core.errors import BadUsage
from attncheck.core.report import Report
from attncheck.report.formats import format_names, load_format


@dataclass(frozen=True)
class Output:
    """One document to write: its format, and the file as it was named."""

    form: str
    path: str


def parsed(values: Iterable[str]) -> tuple[Output, ...]:
    """Return what `--output FORMAT=FILE` asks for. Raises `BadUsage` for what could not be written in the end."""
    outputs = tuple(_parsed(value) for value in values)
    taken: dict[str, str] = {}
    for output in outputs:
        _check(output.path)
        real = os.path.realpath(output.path)
        if real in taken and _replaceable(real):
            raise BadUsage(f"--output: {taken[real]} and {output.form} cannot both be written to {output.path}")
        taken[real] = output.form
    return outputs


def _parsed(value: str) -> Output:
    form, equals, path = value.partition("=")
    if not equals or not path:
        raise BadUsage(f"--output {value!r} is not FORMAT=FILE, like sarif=attncheck.sarif")
    names = format_names()
    if form not in names:
        near = difflib.get_close_matches(form, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadUsage(f"--output {value!r}: {form!r} is not one of {', '.join(names)}{hint}")
    if path == "-":
        raise BadUsage(f"--output {value!r}: for standard output there is --format {form}")
    return Output(form, path)


def _check(path: str) -> None:
    """Raise `BadUsage` where the file could not be written after an hour's measuring."""
    try:
        folder = os.path.dirname(os.path.realpath(path))
        if not os.path.isdir(folder):
            raise BadUsage(f"--output: there is no folder {folder}")
        if os.path.isdir(path):
            raise BadUsage(f"--output: {path} is a folder")
        if not os.access(folder if _replaceable(path) else path, os.W_OK):
            raise BadUsage(f"--output: {path} cannot be written")
    except (OSError, ValueError) as error:  # a working directory that is gone, a name with a NUL
        raise BadUsage(f"--output: {path!r}: {error}") from None


def _replaceable(path: str) -> bool:
    """Say whether a file is put into its place by renaming: not so /dev/stderr, a pipe, /dev/null."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def write(report: Report, outputs: Iterable[Output], verbose: bool = False) -> tuple[str, ...]:
    """Write the documents; return a line for each that could not be written. The others are written nevertheless."""
    failures = []
    for output in outputs:
        try:
            document = load_format(output.form).render(report, verbose)
            _put(output.path, document if document.endswith("\n") else document + "\n")
        except OSError as error:
            failures.append(f"cannot write {output.form} to {output.path}: {error.strerror or error}")
    return tuple(failures)


def _put(path: str, document: str) -> None:
    """Write a file so that a reader sees the old one or all of the new one."""
    content = document.encode("utf-8", "backslashreplace")
    if not _replaceable(path):
        with open(path, "wb") as stream:
            stream.write(content)
        return
    real = os.path.realpath(path)
    beside = f"{real}.{os.getpid()}.part"
    try:
        with open(beside, "wb") as stream:
            stream.write(content)
        if os.path.exists(real):
            os.chmod(beside, stat.S_IMODE(os.stat(real).st_mode))
        os.replace(beside, real)
    except OSError:
        if os.path.exists(beside):
            os.unlink(beside)
        raise


def automatic(
    report: Report,
    form: str = "text",
    wanted: bool = True,
    environ: Mapping[str, str] | None = None,
    stream: TextIO | None = None,
) -> tuple[str, ...]:
    """Tell GitHub of the report where GitHub runs us: annotations on standard error, the summary in its file.

    `form` is what standard output carries: annotations that stand there are not told twice. Returns a line for what
    could not be written. `wanted` is the switch that turns it off.
    """
    environ = os.environ if environ is None else environ
    if not wanted or environ.get("GITHUB_ACTIONS") != "true":
        return ()
    if form != "github":
        stream = stream or sys.stderr
        stream.write(load_format("github").render(report, False))
        stream.flush()
    return _summarise(report, environ.get("GITHUB_STEP_SUMMARY", ""))


def _summarise(report: Report, path: str) -> tuple[str, ...]:
    """Append the summary to the step's file, in the room that is left in it."""
    if not path:
        return ()
    from attncheck.report.formats import github

    try:
        used = os.path.getsize(path) if os.path.exists(path) else 0
        text = github.job_summary(report, github.SUMMARY_BYTES - used - 1)
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        return (f"cannot write the job summary: {error.strerror or error}",)
    return ()
