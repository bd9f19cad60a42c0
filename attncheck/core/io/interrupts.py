"""Handlers of Ctrl-C, SIGTERM and SIGHUP that also work where Python cannot raise.

KeyboardInterrupt is raised at whatever point the interpreter has reached. Inside a destructor or a weak reference's
callback it is lost, and Python prints a traceback. So the handler also records the signal, and every loop that waits
raises it again.
"""

import signal
import sys
from typing import Any

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_received: list[int] = []
_previous_handlers: dict[int, object] = {}  # by signal number


def install_handlers() -> None:
    """Handle the signals that end a program: each raises KeyboardInterrupt, so that children are stopped first.

    SIGHUP stays ignored if it was ignored before, as under nohup.
    """
    sys.unraisablehook = _report_lost_error
    for number in STOP_SIGNALS:
        _previous_handlers[number] = signal.getsignal(number)
        if signal.Signals(number).name != "SIGHUP" or _previous_handlers[number] is not signal.SIG_IGN:
            signal.signal(number, _handle)


def ignored_signals() -> tuple[int, ...]:
    """Return the signals that this process inherited as ignored, for example under nohup."""
    return tuple(number for number, handler in _previous_handlers.items() if handler is signal.SIG_IGN)


def forget_interrupt() -> None:
    """Forget an interrupt that this process sent to itself."""
    _received.clear()


def is_interrupted() -> bool:
    """Return whether an interrupt has been received."""
    return bool(_received)


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if an interrupt was received; its own KeyboardInterrupt may have been lost."""
    if _received:
        raise KeyboardInterrupt


def _report_lost_error(lost: Any) -> None:
    """Report an error that Python cannot raise, unless it is an interrupt, which `_handle` has recorded."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


def _handle(number: int, frame: object) -> None:
    _received.append(number)
    raise KeyboardInterrupt
