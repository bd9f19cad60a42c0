"""Starts the command line; every error a user can cause ends as one line on standard error."""

# Not even __future__ is imported before _isolate(): it too would be looked for in the folder of `python -m`.
import os
import sys


def _isolate() -> None:
    """Import nothing from where the user works, and leave no byte code in the environment that we live in.

    `python -m` puts the folder that it is started in first on sys.path. Byte code is kept among the user's caches where
    whoever installed us compiled none (uv), and is not written at all where it lies beside us already (pip).
    """
    try:
        if __name__ == "__main__" and sys.path[0] == os.getcwd():
            del sys.path[0]
    except OSError:  # the folder is gone
        pass
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(caches) or os.path.isdir(os.path.join(os.path.dirname(__file__), "core", "__pycache__")):
        sys.dont_write_bytecode = True
    elif not sys.dont_write_bytecode:
        sys.pycache_prefix = os.path.join(caches, "attncheck", "byte-code")


_isolate()

import contextlib  # noqa: E402 - after _isolate()
from typing import NoReturn  # noqa: E402

from attncheck import __version__  # noqa: E402
from attncheck.core import interrupts  # noqa: E402
from attncheck.core.errors import AttncheckError, BadUsage, Interrupted  # noqa: E402
from attncheck.core.streams import print_message  # noqa: E402


def main() -> None:
    """Run attncheck and exit with its code."""
    try:
        interrupts.install_handlers()
        sys.exit(_run())
    except AttncheckError as error:
        if str(error):
            print_message(f"attncheck: {error}")
        _leave(error.exit_code)
    except (KeyboardInterrupt, Exception) as error:
        # An interrupt inside a class statement comes out as RuntimeError.
        if not isinstance(error, KeyboardInterrupt) and not interrupts.is_interrupted():
            print_message(_format_traceback(error))
            sys.exit(1)
        print_message("attncheck: interrupted")
        _leave(Interrupted.exit_code)


def _leave(code: int) -> NoReturn:
    """End with `code`, which an interrupt that came inside an `exec` would otherwise replace.

    CPython remembers such an interrupt, handled or not, and `python -m` ends by SIGINT then (pythonrun.c and main.c,
    `unhandled_keyboard_interrupt`).
    """
    if not interrupts.is_interrupted():
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


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
    interrupts.raise_if_interrupted()  # Typer may have made it an exit code
    return code if isinstance(code, int) else 0


def _describe_usage_error(error: Exception) -> str:
    """Return a usage error in one line, with the command whose --help says more."""
    message: str = error.format_message()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "attncheck"
    return f"{' '.join(message.split()).rstrip('.')} (see `{command} --help`)"


def _format_traceback(error: BaseException) -> str:
    """Return the traceback of a fault of ours, which is printed without the secrets that its message may hold."""
    import traceback

    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip("\n")


if __name__ == "__main__":
    main()
