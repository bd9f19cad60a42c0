"""Shows on standard error what is being done: one line that changes on a terminal, a line now and then elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from attncheck.core.io.errors import Interrupted
from attncheck.core.io.outgoing import clean_text
from attncheck.core.io.streams import print_message
from attncheck.core.io.visible import show_line_ends

T = TypeVar("T")
SILENT_SECONDS = 14.0  # without a line; CI logs and people take longer silence for a hang
INTERRUPTED = "interrupted; nothing is left running"


@dataclass(frozen=True)
class ProgressDisplay:
    """Called with a text, shows it as the line of progress; `print_line` leaves one standing."""

    show: Callable[[str], None]
    print_line: Callable[[str], None]

    def __call__(self, text: str) -> None:
        """Show a text in place of the one before."""
        self.show(text)


@contextmanager
def progress_line(quiet: bool = False) -> Iterator[ProgressDisplay]:
    """Yield what shows progress. If standard error is not a terminal, that is a line every `SILENT_SECONDS`."""
    if quiet:
        yield ProgressDisplay(lambda text: None, lambda text: None)
        return
    if sys.stderr is None or not sys.stderr.isatty():
        with _repeated_lines() as display:
            yield display
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    spinner = "dots" if console.encoding.startswith("utf") else "line"  # dots are Braille, which others lack
    with console.status("starting", spinner=spinner) as status:
        # A string would be read as rich's markup.
        yield ProgressDisplay(
            lambda text: status.update(Text(show_line_ends(clean_text(text)))),
            lambda text: status.console.print(Text(show_line_ends(clean_text(text)))),
        )


@contextmanager
def _repeated_lines() -> Iterator[ProgressDisplay]:
    """Yield what keeps the latest text, which a thread prints with the seconds so far."""
    began, ended, texts = time.monotonic(), threading.Event(), ["starting"]

    def print_latest() -> None:
        while not ended.wait(SILENT_SECONDS):
            print_message(f"attncheck: {time.monotonic() - began:.0f} s: {texts[-1]}")

    thread = threading.Thread(target=print_latest, daemon=True)
    thread.start()
    try:
        yield ProgressDisplay(lambda text: texts.__setitem__(-1, text), print_message)
    finally:
        ended.set()
        thread.join()  # no line comes after the report, and `attncheck run` replaces this process


def with_progress(work: Callable[[ProgressDisplay], T], quiet: bool = False) -> T:
    """Run `work(report_progress)` with a line of progress; an interrupt ends it cleanly, as `Interrupted`.

    One that brings the report of what was measured, an `InterruptedRun`, passes through.
    """
    try:
        with progress_line(quiet) as report_progress:
            return work(report_progress)
    except KeyboardInterrupt as interrupt:
        if hasattr(interrupt, "report"):  # of what was measured by then: it is the caller's to write
            raise
        raise Interrupted(INTERRUPTED) from None
