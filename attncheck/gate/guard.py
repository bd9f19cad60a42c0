"""`attncheck run`: runs the gate for a command, then becomes the command, or refuses.

The command runs in attncheck's own process: same process id, arguments, environment, streams and signals. Nothing is
written to its standard output. One line is written to standard error before it starts, and can be switched off.
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

from attncheck.core.io import interrupts, private_folder
from attncheck.core.io.errors import CLEAN, FOUND, AttncheckError, Interrupted
from attncheck.core.io.interrupts import STOP_SIGNALS
from attncheck.core.io.outgoing import clean
from attncheck.core.io.streams import print_message
from attncheck.gate import cache, node_leader
from attncheck.gate.cache_key import answer_key
from attncheck.gate.dates import today
from attncheck.gate.inputs import digest_file, digest_model
from attncheck.gate.policy import Policy
from attncheck.workers.execution import ExecutionTarget

if TYPE_CHECKING:
    from attncheck.core.report import Report

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the exit codes of shells
SHELL = "/bin/sh"
WithProgress = Callable[[Callable[[Callable[[str], None]], Any]], Any]


class NotStarted(AttncheckError):
    """A command that cannot be started, with a shell's exit code for it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def find_program(word: str, environ: Mapping[str, str]) -> str:
    """Return the file that a command's first word names. Raises `NotStarted` as a shell would."""
    path = shutil.which(word, path=environ.get("PATH", os.defpath)) if word and "\0" not in word else None
    if path is not None:
        return path
    if os.sep in word and os.path.isdir(word):
        raise NotStarted(f"{word}: Is a directory", NOT_EXECUTABLE)
    folders = [""] if os.sep in word else environ.get("PATH", os.defpath).split(os.pathsep)
    if word and any(os.path.isfile(os.path.join(folder, word)) for folder in folders):
        raise NotStarted(f"{word}: Permission denied", NOT_EXECUTABLE)
    raise NotStarted(f"{word}: {'No such file or directory' if os.sep in word else 'command not found'}", NOT_FOUND)


def become(path: str, argv: Sequence[str], environ: Mapping[str, str], ignored: Collection[int] = ()) -> NoReturn:
    """Replace this process by the command. `ignored` are the signals that were ignored when attncheck was started.

    Raises `NotStarted` if the system refuses.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    signal.setitimer(signal.ITIMER_REAL, 0)  # a timer outlives exec
    _reset_signals(ignored)
    try:
        os.execve(path, list(argv), dict(environ))
    except OSError as error:
        with suppress(OSError):
            if error.errno == 8 and _is_text(path):  # ENOEXEC: a script without "#!", which execvp passes to the shell
                os.execve(SHELL, [SHELL, path, *argv[1:]], dict(environ))
        raise NotStarted(f"{argv[0]}: {error.strerror}", NOT_EXECUTABLE) from None
    except ValueError as error:  # a NUL in one of the words
        raise NotStarted(f"{argv[0]}: {error}", NOT_EXECUTABLE) from None


def _reset_signals(ignored: Collection[int]) -> None:
    """Restore the signals that Python and we changed: no handler survives exec, and ignored signals stay ignored.

    Python ignores SIGPIPE and SIGXFSZ. Signals that end a program are blocked meanwhile, so that none is lost.
    """
    held = set(STOP_SIGNALS)
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    for number in (*STOP_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


def _is_text(path: str) -> bool:
    with open(path, "rb") as stream:
        return b"\0" not in stream.read(512)


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that we inherited: Python sets LC_CTYPE in ours if the locale is "C" (PEP 538)."""
    kept = dict(environ)
    with suppress(OSError):
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
        if not any(entry.startswith(b"LC_CTYPE=") for entry in entries):
            kept.pop("LC_CTYPE", None)
    return kept


def run(
    policy: Policy,
    target: ExecutionTarget,
    argv: Sequence[str],
    with_progress: WithProgress,
    show: Callable[[Report, bool], None],
    use_cache: bool = True,
    always_show: bool = False,
    ignored: Collection[int] = (),
    quiet: bool = False,
) -> int:
    """Become the command `argv`, or return the exit code for refusing it.

    `with_progress(work)` runs `work(report_progress)` with a progress line. `show(report, refused)` shows a refusal,
    and with `always_show` also a report that passes. It is called before the node's other ranks learn of the refusal,
    because the launcher stops all ranks when the first one ends. `ignored` are signals to leave ignored. Unless
    `quiet`, rank 0 prints one line on standard error that says why the command may start.
    """
    environ = dict(os.environ)
    path = find_program(argv[0] if argv else "", environ)
    node = node_leader.node_rank(environ, argv)
    folder = node_leader.rendezvous_folder(environ) if node.launch_id else None
    policy = fit_node(policy, node)
    code: int | None = None
    if not node.leads:
        seconds = policy.budget + node_leader.START_SECONDS if policy.budget else node_leader.WAIT_SECONDS
        code = node_leader.follow_leader(folder, node, seconds)
        node = replace(node, leads=True)  # if no other rank does
    if code is None:
        with node_leader.lead_node(folder, node) as publish:
            gated = _GatedCommand(policy, target, tuple(argv), environ, use_cache, with_progress)
            with node_leader.hide_rank():
                code = gated.exit_code()
                if node.reports and (code or always_show):
                    show(gated.report(), bool(code))
                reason = describe_refusal(gated.report(), policy, code) if code else ""
                if node.reports and not code and not quiet:
                    _print_last(f"attncheck: {gated.describe_pass()}")
            if code:
                code = _refuse(node, code, argv, reason)
            publish(code)
    interrupts.raise_if_interrupted()  # an interrupt that Python lost must not start the command
    return code or become(path, argv, inherited_environment(environ), ignored)


class _GatedCommand:
    """One start of a command: the gate's answer about it, from the cache or computed."""

    def __init__(
        self,
        policy: Policy,
        target: ExecutionTarget,
        argv: tuple[str, ...],
        environ: Mapping[str, str],
        use_cache: bool,
        with_progress: WithProgress,
    ) -> None:
        self._policy, self._target, self._argv, self._with_progress = policy, target, argv, with_progress
        self._date = today()
        self._folder = private_folder.cache_folder(environ) if use_cache else None
        self._key = ""
        self._report: Report | None = None
        self._answer = cache.Answer(CLEAN, 0.0)
        self._is_kept = False  # whether the answer is from an earlier start

    def exit_code(self) -> int:
        """Return the gate's exit code."""
        if self._folder is not None:
            self._key = answer_key(self._policy, self._target, self._argv, self._date)
            answer = cache.read_answer(self._folder, self._key, _is_current)
            if answer is not None:
                self._answer, self._is_kept = answer, True
                return answer.code
        return self._run_gate()

    def describe_pass(self) -> str:
        """Return in one line what the gate reported, and when if an earlier start ran it."""
        written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._answer.written))
        return self._answer.summary + (f"; kept answer of {written}" if self._is_kept else "")

    def report(self) -> Report:
        """Return the report behind the answer."""
        if self._report is None and self._folder is not None:
            from attncheck.core.codec import BadDocument
            from attncheck.report import document

            try:
                self._report = document.loads(cache.read_report(self._folder, self._key))
            except BadDocument:
                self._run_gate()  # the kept report was damaged, or too large to keep
        assert self._report is not None
        return self._report

    def _run_gate(self) -> int:
        from attncheck.gate import run as gate
        from attncheck.gate.inputs import Inputs
        from attncheck.lint import launches
        from attncheck.report import document

        sources = (*gate.read_policy_sources(self._policy), launches.source_from_argv(self._argv))
        inputs = Inputs(sources)
        report: Report = self._with_progress(
            lambda report_progress: gate.run(self._policy, self._target, report_progress, sources, inputs, self._date)
        )
        code = gate.exit_code(report, self._policy)
        self._report = report = replace(report, exit_code=code)
        self._answer = cache.Answer(code, time.time(), inputs.files, inputs.models, describe_findings(report))
        if self._folder is not None and code in (CLEAN, FOUND):
            cache.write_answer(self._folder, self._key, self._answer, document.dumps(clean(report), None))
        return code


def _is_current(answer: cache.Answer) -> bool:
    """Return whether the files and models that an answer depends on are unchanged."""
    return all(digest_file(path) == digest for path, digest in answer.files.items()) and all(
        digest_model(name) == digest for name, digest in answer.models.items()
    )


def describe_findings(report: Report) -> str:
    """Return the gate's result in a few words: "12 passed, 0 errors, 1 warning, ATN205"."""
    from attncheck.core.results.gate import GateSection
    from attncheck.report.finding_lines import count_findings

    has_errors = report.worst_severity() == "error"
    allowed = len(report.allowed) + len(report.baselined)
    counts = [
        f"{len(report.passed)} passed",
        "" if has_errors else "0 errors",
        count_findings(report.findings) if report.findings else "",
        f"{allowed} allowed" if allowed else "",
    ]
    section = report.section(GateSection)
    open_stages = [stage for stage in section.stages if stage.outcome not in ("clean", "found")] if section else []
    stages = [
        f"{stage.check} {stage.outcome}" if stage.outcome != "not linted" else f"not linted: {stage.reason}"
        for stage in open_stages
    ]
    return "; ".join([", ".join(filter(None, counts)), *stages])


def describe_refusal(report: Report, policy: Policy, code: int) -> str:
    """Return in a few words why a gate ends with `code`: "1 error, ATN142"."""
    if code == FOUND:
        from attncheck.report.finding_lines import count_findings

        return count_findings(report.findings_at(policy.fail_on))
    if code == Interrupted.exit_code:
        return "interrupted"
    return "no answer from " + ", ".join(dict.fromkeys(question.name for question in report.unanswered))


def _refuse(node: node_leader.NodeRank, code: int, argv: Sequence[str], reason: str) -> int:
    """Print on standard error that the command is not started, and return the exit code.

    The node of rank 0, whose report was shown, ends with the gate's own code. Another node prints one line.
    """
    text = f"attncheck: refused: {reason}; {argv[0]} was not started"
    if not node.reports:
        text, code = f"attncheck: this node refuses {argv[0]}: {reason}; run `attncheck gate` there", FOUND
    _print_last(text)
    return code


def _print_last(text: str) -> None:
    """Print a line on standard error; a failure to print is ignored."""
    with suppress(AttributeError, OSError, ValueError):
        print_message(text)
        sys.stderr.flush()


def fit_node(policy: Policy, node: node_leader.NodeRank) -> Policy:
    """Return the policy that one node of a launch can check: its ring has at most as many ranks as the node."""
    size = min(policy.ring_size, node.local_size or policy.ring_size)
    return replace(policy, ring_size=size if size > 1 else 0)
