"""Shows what is being done, in one line on a terminal's standard error and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from attncheck.core.errors import Interrupted
from attncheck.core.outgoing import clean_text
from attncheck.core.visible import show_line_ends

T = TypeVar("T")


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows one line of progress; silent where standard error is not a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    spinner = "dots" if console.encoding.startswith("utf") else "line"  # dots are Braille, which others lack
    with console.status("starting", spinner=spinner) as status:
        # A string would be read as rich's markup.
        yield lambda text: status.update(Text(show_line_ends(clean_text(text))))


def with_progress(work: Callable[[Callable[[str], None]], T]) -> T:
    """Run `work(report_progress)` with a line of progress; an interrupt ends it cleanly, as `Interrupted`."""
    try:
        with progress_line() as report_progress:
            return work(report_progress)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing is left running") from None
