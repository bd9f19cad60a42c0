"""Shows on standard error what is being done: one line that changes, on a terminal only, and lines that stay."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from attncheck.core.io.errors import Interrupted
from attncheck.core.io.outgoing import clean_text
from attncheck.core.io.streams import print_message
from attncheck.core.io.visible import show_line_ends

T = TypeVar("T")
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
def progress_line() -> Iterator[ProgressDisplay]:
    """Yield what shows progress; the line that changes is silent where standard error is not a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield ProgressDisplay(lambda text: None, print_message)
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


def with_progress(work: Callable[[ProgressDisplay], T]) -> T:
    """Run `work(report_progress)` with a line of progress; an interrupt ends it cleanly, as `Interrupted`.

    One that brings the report of what was measured, an `InterruptedRun`, passes through.
    """
    try:
        with progress_line() as report_progress:
            return work(report_progress)
    except KeyboardInterrupt as interrupt:
        if hasattr(interrupt, "report"):  # of what was measured by then: it is the caller's to write
            raise
        raise Interrupted(INTERRUPTED) from None
