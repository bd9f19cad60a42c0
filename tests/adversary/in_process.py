"""Runs attncheck's entry in this process: fast enough for thousands of inputs."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from attncheck import __main__ as entry
from attncheck.core.io import interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGVTALRM)


@dataclass(frozen=True)
class Ended:
    """How one run of the command ended."""

    code: object
    stdout: str
    stderr: str


class TooLong(BaseException):
    """A run took longer than it may."""


def run_entry(*argv: str, seconds: float = 20.0) -> Ended:
    """Run the command in this process. Raises `TooLong` after so many seconds of processor time."""
    streams = io.StringIO(), io.StringIO()
    with _signals_put_back(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(interrupts, "_previous_handlers", {})
        patch.setattr(sys, "argv", ["attncheck", *argv])
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        timer_ran_out: list[int] = []

        def give_up(number: int, frame: object) -> None:
            timer_ran_out.append(number)
            raise TooLong

        signal.signal(signal.SIGVTALRM, give_up)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            entry.main()
        except SystemExit as ended:
            if timer_ran_out:
                raise TooLong(f"{argv} took more than {seconds:g} s of processor time") from None
            return Ended(ended.code, streams[0].getvalue(), streams[1].getvalue())
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    raise AssertionError("the command did not end")


@contextmanager
def _signals_put_back() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
