"""Starts the command line; whatever goes wrong ends as one line on standard error, and never as exit code 1.

That code says that something was found. What no one foresaw ends with 3: the question could not be answered.
"""

# Not even __future__ is imported before _isolate(): it too would be looked for in the folder of `python -m`.
import os
import sys


def _isolate() -> None:
    """Import nothing from where the user works, and leave no byte code in the environment that we live in.

    `python -m` puts the folder that it is started in first on sys.path. Byte code is kept among the user's caches if
    whoever installed us compiled none (uv), and is not written at all where it lies alongside us already (pip).
    """
    try:
        if __name__ == "__main__" and sys.path[0] == os.getcwd():
            del sys.path[0]
    except OSError:  # the folder no longer exists
        pass
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(caches) or os.path.isdir(os.path.join(os.path.dirname(__file__), "core", "__pycache__")):
        sys.dont_write_bytecode = True
    elif not sys.dont_write_bytecode:
        sys.pycache_prefix = os.path.join(caches, "attncheck", "byte-code")


_isolate()

import atexit  # noqa: E402 - after _isolate()
import contextlib  # noqa: E402
import gc  # noqa: E402
import signal  # noqa: E402
from typing import NoReturn  # noqa: E402

from attncheck import __version__  # noqa: E402
from attncheck.cli import streams  # noqa: E402
from attncheck.core.io import interrupts  # noqa: E402
from attncheck.core.io.errors import CLEAN, FOUND, UNANSWERED, AttncheckError, BadUsage, Interrupted  # noqa: E402
from attncheck.core.io.failures import TRACEBACK_VARIABLE, describe_failure  # noqa: E402
from attncheck.core.io.outgoing import clean_text  # noqa: E402
from attncheck.core.io.streams import print_message  # noqa: E402

REMOVED_OPTIONS = {"--picture": "--output html=FILE writes a page with the table and its bars"}
LAST_LINE = b"attncheck: ended before it could say why (out of memory?)\n"


def main() -> None:
    """Run attncheck and exit with its code."""
    try:
        try:
            streams.prepare_streams()
            interrupts.install_handlers()
            code = _check_streams(_run())
        except BaseException as error:
            code = _report_error(error)
        if interrupts.is_interrupted():  # also if the command turned it into a report or an error
            code = Interrupted.exit_code
        _keep_exit_code(code)
    except KeyboardInterrupt:  # one more, in between
        code = Interrupted.exit_code
    _leave(code)


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
        return CLEAN
    if sys.argv[1:2] == ["lint"]:
        from attncheck.cli import answers

        return answers.answer(_run_command)
    return _run_command()


def _run_command() -> int:
    """Run a command with Typer."""
    try:
        from attncheck.cli.app import app
    except (ImportError, OSError, MemoryError):
        raise
    except Exception as error:  # an incompatible version of a dependency may raise any exception
        raise ImportError(f"{type(error).__name__}: {error}") from error
    try:
        code = app(prog_name="attncheck", standalone_mode=False)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or CLEAN
        raise RuntimeError(str(error.code)) from None
    except Exception as error:
        # Typer raises click's errors, since 0.29 those of its own copy of click: recognised by their attributes.
        if type(error).__name__ == "Abort":
            raise KeyboardInterrupt from None
        if not hasattr(error, "format_message"):
            raise
        raise BadUsage(_describe_usage_error(error)) from None
    interrupts.raise_if_interrupted()  # Typer may have made it an exit code
    return code if isinstance(code, int) else CLEAN


def _describe_usage_error(error: Exception) -> str:
    """Return a usage error in one line, with the command whose --help says more."""
    message: str = error.format_message()  # type: ignore[attr-defined]
    option = getattr(error, "option_name", "")
    if option in REMOVED_OPTIONS:
        message = f"{option} no longer exists: {REMOVED_OPTIONS[option]}"
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "attncheck"
    return f"{' '.join(message.split()).rstrip('.')} (see `{command} --help`)"


def _check_streams(code: int) -> int:
    """Return the exit code; if the answer could not be written, the code for "no answer"."""
    failure = streams.find_failure(sys.stdout)
    if failure:
        print_message(f"attncheck: cannot write to standard output: {failure}")
    failed = failure or streams.find_failure(sys.stderr) or streams.has_lost_output()
    return UNANSWERED if failed and code in (CLEAN, FOUND) else code


def _report_error(error: BaseException) -> int:
    """Write one line about an error; return its exit code, whatever becomes of the line."""
    code = UNANSWERED
    try:
        if isinstance(error, AttncheckError):
            code, line = error.exit_code, f"attncheck: {error}" if str(error) else ""
        elif isinstance(error, KeyboardInterrupt) or interrupts.is_interrupted():
            # An interrupt inside a class statement comes out as RuntimeError.
            code, line = Interrupted.exit_code, "attncheck: interrupted"
        else:
            line = f"attncheck: {describe_failure(error)}"
            if os.environ.get(TRACEBACK_VARIABLE):
                import traceback

                sys.stderr.write(clean_text("".join(traceback.format_exception(error))))
        if line:
            print_message(line)
    except BaseException:  # a second interrupt, or no memory for the line
        with contextlib.suppress(OSError):
            os.write(2, LAST_LINE)
    return code


def _keep_exit_code(code: int) -> None:
    """Let a signal that comes when all is written end the process with its own exit code, not with the signal's."""
    for number in interrupts.STOP_SIGNALS:
        signal.signal(number, lambda received, frame: os._exit(code))
    atexit.register(_end_quietly)  # Python takes handlers away before it has cleaned up


def _end_quietly() -> None:
    gc.freeze()  # Python looks for cycles at its end, which takes as long as linting a large program
    for number in interrupts.STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
