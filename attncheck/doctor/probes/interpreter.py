"""Selects the interpreter to examine if `--python` names none.

The first of these that exists is taken:

1. the interpreter of the command that `attncheck run` starts;
2. attncheck's own, if any package of the training stack is installed next to it;
3. that of the active environment: VIRTUAL_ENV or CONDA_PREFIX, whichever comes first on PATH. Activating an environment
   sets the variable and puts its programs first on PATH (https://docs.python.org/3/library/venv.html#how-venvs-work);
   uv uses the same order, https://docs.astral.sh/uv/pip/environments/#discovery-of-python-environments;
4. the first Python on PATH, if it has torch: a module system's, or a training container's;
5. attncheck's own, which then has no stack to examine (ATN100).

A variable is set by the user, or by a program that the user started. A folder is different: a `.venv` in the working
folder may be part of a download, so its interpreter is never started without a request. The report mentions it.
UV_PROJECT_ENVIRONMENT is ignored: it names the folder of a project's environment, which need not be active. `uv run`
sets VIRTUAL_ENV.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from attncheck.core.environment import Selection
from attncheck.core.io.errors import BadUsage
from attncheck.doctor.probes.bundle import PACKAGE
from attncheck.doctor.probes.payload.packages.watched import IMPORT_PROVIDERS
from attncheck.workers.child import Child, wait_for_children

QUERY_SECONDS = 10.0
QUERY = """
import importlib.util
def call(name, request):
    spec = importlib.util.find_spec("torch")
    return {"torch": spec is not None and spec.origin is not None}
"""
HEAD_BYTES = 1024  # enough of a script: its first two lines name its interpreter
PYTHON_NAME = re.compile(r"python(\d+(\.\d+)?)?t?")
# Written by pip and uv if a path is too long for "#!" or contains a space (distlib.scripts, `_build_shebang`).
EXEC_LINE = re.compile(rb"#!/bin/sh\n'''exec' \"?([^\"\n]+?)\"? \"\$0\" ")


class Interpreter(NamedTuple):
    """The interpreter to examine (None for the one that runs attncheck), and why it was selected."""

    python: str | None
    selection: Selection

    @property
    def path(self) -> str:
        """The program to start."""
        return self.python or sys.executable


def select_interpreter(python: str | None, argv: Sequence[str] = ()) -> Interpreter:
    """Return the interpreter to examine: `python` if it is given, as a program or an environment's folder.

    Otherwise it is the interpreter of the command `argv`, if there is one. Raises `BadUsage` for a folder without a
    Python.
    """
    if python is not None and os.path.isdir(python):
        program = _find_python(python)
        if program is None:
            raise BadUsage(f"{python} is a folder without bin/python; name an environment or its interpreter")
        return Interpreter(program, Selection("--python"))
    if python is not None:
        return Interpreter(python, Selection("--python"))
    of_command = find_command_interpreter(argv) if argv else None
    if of_command is not None:
        return _select(of_command, "command")
    if _holds_stack():
        return Interpreter(None, Selection("own", tuple(_mention_active_environment())))
    passed_over: list[str] = []
    for variable, folder in _active_environments():
        program = _find_python(folder)
        if program is not None:
            return _select(program, variable, passed_over)
        passed_over.append(f"{variable} names {folder}, which has no bin/python")
    first = _first_on_path()
    if first is not None and holds_torch(first):
        return _select(first, "PATH", passed_over)
    if first is not None:
        passed_over.append(f"{first}, the first Python on PATH, has no torch")
    return Interpreter(None, Selection("own", (*passed_over, *_mention_local_environment())))


def _select(program: str, selected_by: str, passed_over: Sequence[str] = ()) -> Interpreter:
    """Return an interpreter, which may be attncheck's own."""
    return Interpreter(None if is_own(program) else program, Selection(selected_by, tuple(passed_over)))


def is_own(program: str) -> bool:
    """Return whether a program is the interpreter that runs attncheck, possibly under another name in its folder."""
    if not sys.executable or os.path.realpath(program) != os.path.realpath(sys.executable):
        return False
    return os.path.realpath(os.path.dirname(program)) == os.path.realpath(os.path.dirname(sys.executable))


def _holds_stack() -> bool:
    """Return whether any package of the training stack is installed next to attncheck, without importing it."""
    return any(map(_is_importable, IMPORT_PROVIDERS)) or any(map(_has_metadata, chain(*IMPORT_PROVIDERS.values())))


def _is_importable(module: str) -> bool:
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(module)
        return spec is not None and spec.origin is not None
    return False


def _has_metadata(distribution: str) -> bool:
    """Return whether a distribution has metadata, which a damaged installation may still have."""
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError, OSError, ValueError):
        metadata.distribution(distribution)
        return True
    return False


def _active_environments() -> Iterator[tuple[str, str]]:
    """Yield (variable, folder) of the environments that variables name, in the order of PATH.

    Relative folders are skipped: no activation sets one, and they change meaning after `cd`.
    """
    entries = os.environ.get("PATH", "").split(os.pathsep)

    def position(named: tuple[str, str]) -> int:
        programs = os.path.join(named[1], "bin")
        return entries.index(programs) if programs in entries else len(entries)

    variables = ((name, os.environ.get(name, "").rstrip(os.sep)) for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    yield from sorted((named for named in variables if os.path.isabs(named[1])), key=position)


def _find_python(folder: str) -> str | None:
    """Return the interpreter of an environment."""
    programs = (os.path.join(folder, "bin", name) for name in ("python", "python3"))
    return next(filter(_is_program, programs), None)


def _mention_active_environment() -> Iterator[str]:
    """Yield a line about the active environment, if it is not attncheck's own."""
    variable, folder = next(_active_environments(), ("", ""))
    program = _find_python(folder) if variable else None
    if program is not None and not is_own(program):
        yield f"{variable} names another environment: --python {program}"


def _first_on_path() -> str | None:
    """Return the first Python on PATH that is not attncheck's own; None for a shim, which depends on the folder."""
    for entry in os.environ.get("PATH", "").split(os.pathsep):
        for name in ("python", "python3"):
            program = os.path.join(entry, name)
            if os.path.isabs(entry) and _is_program(program) and not is_own(program):
                return None if _is_script(program) else program
    return None


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _mention_local_environment() -> Iterator[str]:
    program = os.path.join(".venv", "bin", "python")
    if os.path.exists(program):
        yield f"{program} was found but not started; name it to examine it: --python {program}"


def find_command_interpreter(argv: Sequence[str]) -> str | None:
    """Return the interpreter that a command runs in; None if unknown.

    That is `python` itself, or the interpreter in the first line of a script if it has torch, because many tools start
    their jobs in another environment than their own.
    """
    program = shutil.which(argv[0]) if argv[0] and "\0" not in argv[0] else None
    if program is None or not (os.path.isabs(program) or os.path.dirname(argv[0])):
        return None
    program = os.path.abspath(program)
    if PYTHON_NAME.fullmatch(os.path.basename(program)):
        return None if _is_script(program) else program
    interpreter = _read_script_interpreter(program)
    if interpreter is None or not _is_program(interpreter) or _is_script(interpreter):
        return None
    return interpreter if is_own(interpreter) or holds_torch(interpreter) else None


def _read_head(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(HEAD_BYTES)
    except OSError:
        return b""


def _is_script(path: str) -> bool:
    return _read_head(path).startswith(b"#!")


def _read_script_interpreter(path: str) -> str | None:
    """Return the Python that a script's first lines name."""
    head = _read_head(path)
    long_form = EXEC_LINE.match(head)
    line = long_form[1] if long_form else head.partition(b"\n")[0].removeprefix(b"#!") if head[:2] == b"#!" else b""
    words = [os.fsdecode(line)] if long_form else os.fsdecode(line).split()
    if words and os.path.basename(words[0]) == "env":
        name = next((word for word in words[1:] if PYTHON_NAME.fullmatch(word)), "")
        words = [(shutil.which(name) if name else None) or ""]
    if words and os.path.isabs(words[0]) and PYTHON_NAME.fullmatch(os.path.basename(words[0])):
        return words[0]
    return None


def holds_torch(python: str) -> bool:
    """Return whether an interpreter would find torch; it is started, but imports nothing from its environment."""
    sources = {PACKAGE: "", f"{PACKAGE}.main": QUERY}
    message = {"package": PACKAGE, "sources": sources, "call": "torch", "request": {}}
    try:
        result = wait_for_children([Child(python, "static", message)], time.monotonic() + QUERY_SECONDS)["static"]
    except BadUsage:
        return False
    return result.answer == {"torch": True}
