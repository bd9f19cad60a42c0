"""Starts the command line; every error a user can cause ends as one line on standard error."""

from __future__ import annotations

import signal
import sys

from attncheck.errors import AttncheckError, Interrupted


def main() -> None:
    """Run attncheck and exit with its code."""
    signal.signal(signal.SIGTERM, _terminate)  # so that children are stopped on the way out
    try:
        from attncheck.cli import app

        app(prog_name="attncheck")
    except AttncheckError as error:
        _say(f"attncheck: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say("attncheck: interrupted")
        sys.exit(Interrupted.exit_code)


def _terminate(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    if sys.stderr is not None:
        print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
