"""Starts the command line; every error a user can cause ends as one line on standard error."""

from __future__ import annotations

import sys

from attncheck import __version__
from attncheck.core import interrupts
from attncheck.core.errors import AttncheckError, BadUsage, Interrupted


def main() -> None:
    """Run attncheck and exit with its code."""
    try:
        interrupts.install_handlers()
        sys.exit(_run())
    except AttncheckError as error:
        if str(error):
            _complain(f"attncheck: {error}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, Exception) as error:
        # An interrupt inside a class statement comes out as RuntimeError.
        if not isinstance(error, KeyboardInterrupt) and not interrupts.is_interrupted():
            raise
        _complain("attncheck: interrupted")
        sys.exit(Interrupted.exit_code)


def _run() -> int:
    """Run Typer's part. It is not left to end the process: it would call an interrupt "Aborted!" and exit with 1."""
    if sys.argv[1:] == ["--version"]:  # before Typer is imported, which costs more than the answer
        from attncheck.cli.output import write_stdout

        write_stdout(f"attncheck {__version__}\n")
        return 0
    from attncheck.cli.app import app

    try:
        code = app(prog_name="attncheck", standalone_mode=False)
    except BrokenPipeError:  # the reader of --help went away
        from attncheck.cli.output import discard_standard_output

        discard_standard_output()
        return 0
    except Exception as error:
        # Typer raises click's errors, and since 0.29 those of a click of its own: known by what they offer.
        if type(error).__name__ == "Abort":
            raise KeyboardInterrupt from None
        if not hasattr(error, "format_message"):
            raise
        raise BadUsage(_describe_usage_error(error)) from None
    return code if isinstance(code, int) else 0


def _describe_usage_error(error: Exception) -> str:
    """Return a usage error in one line, with the command whose --help says more."""
    message: str = error.format_message()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "attncheck"
    return f"{' '.join(message.split()).rstrip('.')} (see `{command} --help`)"


def _complain(text: str) -> None:
    if sys.stderr is not None:
        print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
