"""Handlers of Ctrl-C and SIGTERM that also work where Python cannot raise.

KeyboardInterrupt is raised wherever the interpreter happens to be; inside a destructor or a weak reference's callback
it is printed and lost. So the handler also records the signal, and every loop that waits raises it again.
"""

from __future__ import annotations

import signal

_received: list[int] = []
_previous_handlers: dict[int, object] = {}  # by signal number


def install_handlers() -> None:
    """Handle SIGINT and SIGTERM: both raise KeyboardInterrupt, so that children are stopped on the way out."""
    for number in (signal.SIGINT, signal.SIGTERM):
        _previous_handlers[number] = signal.signal(number, _handle)


def ignored_signals() -> tuple[int, ...]:
    """Return the signals that this process inherited as ignored, as under nohup."""
    return tuple(number for number, handler in _previous_handlers.items() if handler is signal.SIG_IGN)


def forget_interrupt() -> None:
    """Forget an interrupt that this process sent to itself."""
    _received.clear()


def is_interrupted() -> bool:
    """Return whether an interrupt has come."""
    return bool(_received)


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt where an interrupt has come, whose own KeyboardInterrupt may have been lost."""
    if _received:
        raise KeyboardInterrupt


def _handle(number: int, frame: object) -> None:
    _received.append(number)
    raise KeyboardInterrupt
