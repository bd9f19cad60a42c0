"""Starts the command line; every error a user can cause ends as one line on standard error."""

from __future__ import annotations

import sys

from attncheck.core import interrupts
from attncheck.core.errors import AttncheckError, Interrupted


def main() -> None:
    """Run attncheck and exit with its code."""
    try:
        interrupts.install()
        sys.exit(_run())
    except AttncheckError as error:
        if str(error):
            _say(f"attncheck: {error}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, Exception) as error:
        # An interrupt inside a class statement comes out as RuntimeError.
        if not isinstance(error, KeyboardInterrupt) and not interrupts.requested():
            raise
        _say("attncheck: interrupted")
        sys.exit(Interrupted.exit_code)


def _run() -> int:
    """Run click's part. It is not left to end the process: it would call an interrupt "Aborted!" and exit with 1."""
    import click

    from attncheck.cli.app import app

    try:
        code = app(prog_name="attncheck", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:  # the reader of --help went away
        from attncheck.cli.arguments import discard_the_rest

        discard_the_rest()
        return 0
    return code if isinstance(code, int) else 0


def _say(text: str) -> None:
    if sys.stderr is not None:
        print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
