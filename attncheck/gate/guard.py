"""`attncheck run`: asks the gate about a command, then becomes it, or refuses.

What is started is the very process that attncheck was: same number, arguments, environment, streams and signals, and
nothing written to any of them before.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from attncheck.core.errors import CLEAN, FOUND, AttncheckError
from attncheck.gate import cache as answers_cache
from attncheck.gate import cache_key, node_leader
from attncheck.gate.dates import today
from attncheck.gate.policy import Config
from attncheck.workers.execution import ExecutionTarget

if TYPE_CHECKING:
    from attncheck.core.report import Report

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells exit
SHELL = "/bin/sh"
Guarded = Callable[[Callable[[Callable[[str], None]], Any]], Any]


class NotStarted(AttncheckError):
    """A command that cannot be started, with a shell's exit code for it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def program(word: str, environ: Mapping[str, str]) -> str:
    """Return the file that a command's first word names. Raises `NotStarted` as a shell would complain."""
    found = shutil.which(word, path=environ.get("PATH", os.defpath)) if word and "\0" not in word else None
    if found is not None:
        return found
    if os.sep in word and os.path.isdir(word):
        raise NotStarted(f"{word}: Is a directory", NOT_EXECUTABLE)
    folders = [""] if os.sep in word else environ.get("PATH", os.defpath).split(os.pathsep)
    if word and any(os.path.isfile(os.path.join(folder, word)) for folder in folders):
        raise NotStarted(f"{word}: Permission denied", NOT_EXECUTABLE)
    raise NotStarted(f"{word}: {'No such file or directory' if os.sep in word else 'command not found'}", NOT_FOUND)


def become(path: str, words: Sequence[str], environ: Mapping[str, str], ignored: Collection[int] = ()) -> NoReturn:
    """Become the command. `ignored` are signals that whoever started us had told us to ignore.

    Raises `NotStarted` where the system refuses.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    signal.setitimer(signal.ITIMER_REAL, 0)  # a timer outlives exec
    _reset_signals(ignored)
    try:
        os.execve(path, list(words), dict(environ))
    except OSError as error:
        with suppress(OSError):
            if error.errno == 8 and _is_text(path):  # ENOEXEC: a script without "#!", which execvp gives to the shell
                os.execve(SHELL, [SHELL, path, *words[1:]], dict(environ))
        raise NotStarted(f"{words[0]}: {error.strerror}", NOT_EXECUTABLE) from None
    except ValueError as error:  # a NUL among the words
        raise NotStarted(f"{words[0]}: {error}", NOT_EXECUTABLE) from None


def _reset_signals(ignored: Collection[int]) -> None:
    """Give signals back what Python and we took: no handler outlives exec, and what is ignored stays so.

    Python ignores SIGPIPE and SIGXFSZ. SIGINT and SIGTERM are held back meanwhile, so that none gets lost.
    """
    held = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


def _is_text(path: str) -> bool:
    with open(path, "rb") as stream:
        return b"\0" not in stream.read(512)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that we were given: Python sets LC_CTYPE in ours where the locale is "C" (PEP 538)."""
    kept = dict(environ)
    with suppress(OSError):
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
        if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
            kept.pop("LC_CTYPE", None)
    return kept


def run(
    asked: Config,
    bench: ExecutionTarget,
    words: Sequence[str],
    guarded: Guarded,
    show: Callable[[Report, bool], None],
    cache: bool = True,
    always: bool = False,
    ignored: Collection[int] = (),
) -> int:
    """Become the command `words`, or return the exit code with which it is refused.

    `guarded(work)` runs `work(say)` with a line of progress. `show(report, refused)` tells people of a refusal; where
    `always`, of a report that lets it pass too. It is called before the node's other ranks hear of it: the first of
    them that ends has its launcher stop all.
    """
    environ = dict(os.environ)
    path = program(words[0] if words else "", environ)
    seat = node_leader.seat(environ, words)
    meeting = node_leader.meeting_place(environ) if seat.name else None
    asked = within(asked, seat)
    if not seat.first:
        seconds = asked.budget + node_leader.START_SECONDS if asked.budget else node_leader.WAIT_SECONDS
        code = node_leader.followed(meeting, seat, seconds)
        if code is not None:
            return code or become(path, words, inherited(environ), ignored)
        seat = replace(seat, first=True)
    with node_leader.leading(meeting, seat) as tell:
        start = _Start(asked, bench, tuple(words), environ, cache, guarded)
        with node_leader.unranked():
            code = start.answer()
            if seat.speaks and (code or always):
                show(start.report(), bool(code))
        if code:
            code = _refuse(seat, code, words)
        tell(code)
    return code or become(path, words, inherited(environ), ignored)


class _Start:
    """One start of a command: what the gate says of it, from the cache or anew."""

    def __init__(
        self,
        asked: Config,
        bench: ExecutionTarget,
        words: tuple[str, ...],
        environ: Mapping[str, str],
        cache: bool,
        guarded: Guarded,
    ) -> None:
        self.asked, self.bench, self.words, self.environ, self._guarded = asked, bench, words, environ, guarded
        self.date = today()
        self._folder = answers_cache.folder(environ) if cache else None
        self._key = ""
        self._report: Report | None = None

    def answer(self) -> int:
        """Return the gate's exit code."""
        if self._folder is not None:
            hashes = answers_cache.Hashes(self._folder)
            told = cache_key.circumstances(self.asked, self.bench, self.words, self.date, hashes, self.environ)
            self._key = answers_cache.key(told)
            found = answers_cache.read(self._folder, self._key, cache_key.current)
            if found is not None:
                return found.code
        return self._gate()

    def report(self) -> Report:
        """Return the report behind the answer."""
        if self._report is None and self._folder is not None:
            from attncheck.core.codec import BadDocument
            from attncheck.report import document

            try:
                self._report = document.loads(answers_cache.report(self._folder, self._key) or "")
            except BadDocument:
                self._gate()  # it was damaged, or too large to keep
        assert self._report is not None
        return self._report

    def _gate(self) -> int:
        from attncheck.gate import run as gate
        from attncheck.gate.inputs import Inputs
        from attncheck.lint import launches
        from attncheck.report import document

        sources = (*gate.named(self.asked), launches.source_of_words(self.words))
        inputs = Inputs(sources)
        report: Report = self._guarded(lambda say: gate.run(self.asked, self.bench, say, sources, inputs, self.date))
        code = gate.exit_code(report, self.asked)
        self._report = report = replace(report, exit_code=code)
        if self._folder is not None and code in (CLEAN, FOUND):
            answer = answers_cache.Answer(code, time.time(), inputs.files, inputs.models)
            answers_cache.write(self._folder, self._key, answer, document.dumps(report, None))
        return code


def _refuse(seat: node_leader.Seat, code: int, words: Sequence[str]) -> int:
    """Say on standard error that the command is not started; return the exit code.

    The node of rank 0 ends with the gate's own code, its report has been shown; another node says it in one line.
    """
    why = "it could not be checked to the end" if code != FOUND else "it would not run as it should"
    text = f"attncheck: {words[0]} was not started: {why}"
    if not seat.speaks:
        text, code = f"attncheck: this node refuses {words[0]}: {why}; `attncheck gate` says more there", FOUND
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    return code


def within(asked: Config, seat: node_leader.Seat) -> Config:
    """Return the policy as one node of a launch can check it: a ring of as many ranks as it has, at most."""
    size = min(asked.ring_size, seat.local_size or asked.ring_size)
    return replace(asked, ring_size=size if size > 1 else 0)
