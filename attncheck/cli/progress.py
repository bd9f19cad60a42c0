"""Shows progress on standard error: one changing line on a terminal, an occasional line elsewhere."""

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
SILENT_SECONDS = 14.0  # longest time without a line; CI systems and people consider a longer silence a hang
INTERRUPTED = "interrupted; nothing is left running"


@dataclass(frozen=True)
class ProgressDisplay:
    """Called with a text, shows it as the progress line; `print_line` prints a permanent line."""

    show: Callable[[str], None]
    print_line: Callable[[str], None]

    def __call__(self, text: str) -> None:
        """Replace the text of the progress line."""
        self.show(text)


@contextmanager
def progress_line(quiet: bool = False) -> Iterator[ProgressDisplay]:
    """Yield a display of progress. If standard error is not a terminal, it prints a line every `SILENT_SECONDS`."""
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
    # "dots" uses Braille, which other encodings lack
    spinner = "dots" if console.encoding.startswith("utf") else "line"
    with console.status("starting", spinner=spinner) as status:
        # A plain string would be parsed as rich markup.
        yield ProgressDisplay(
            lambda text: status.update(Text(show_line_ends(clean_text(text)))),
            lambda text: status.console.print(Text(show_line_ends(clean_text(text)))),
        )


@contextmanager
def _repeated_lines() -> Iterator[ProgressDisplay]:
    """Yield a display that keeps the latest text; a thread prints it with the elapsed seconds."""
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
        thread.join()  # no line may follow the report, and `attncheck run` replaces this process


def with_progress(work: Callable[[ProgressDisplay], T], quiet: bool = False) -> T:
    """Run `work(report_progress)` with a progress line; an interrupt ends it cleanly, as `Interrupted`.

    An `InterruptedRun`, which carries a report of what was measured, passes through.
    """
    try:
        with progress_line(quiet) as report_progress:
            return work(report_progress)
    except KeyboardInterrupt as interrupt:
        if hasattr(interrupt, "report"):  # it holds what was measured until then: the caller writes it
            raise
        raise Interrupted(INTERRUPTED) from None
