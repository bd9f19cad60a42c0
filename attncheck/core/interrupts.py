"""Ctrl-C and SIGTERM, heard even where Python cannot raise.

KeyboardInterrupt is raised wherever the interpreter happens to be; inside a destructor or a weak reference's callback
it is printed and forgotten. So the handler also writes it down, and whoever waits asks with `check`.
"""

from __future__ import annotations

import signal

_requested: list[int] = []
_inherited: dict[int, object] = {}  # how each was handled before


def install() -> None:
    """Take SIGINT and SIGTERM: both end attncheck by KeyboardInterrupt, so that children are stopped on the way out."""
    for number in (signal.SIGINT, signal.SIGTERM):
        _inherited[number] = signal.signal(number, _handle)


def ignored() -> tuple[int, ...]:
    """Return the signals that we were started with an order to ignore, as nohup gives."""
    return tuple(number for number, handler in _inherited.items() if handler is signal.SIG_IGN)


def forget() -> None:
    """Forget an interrupt that we sent to ourselves."""
    _requested.clear()


def requested() -> bool:
    """Say whether an interrupt has come."""
    return bool(_requested)


def check() -> None:
    """Raise KeyboardInterrupt where an interrupt was asked for and got lost."""
    if _requested:
        raise KeyboardInterrupt


def _handle(number: int, frame: object) -> None:
    _requested.append(number)
    raise KeyboardInterrupt
