"""How a scaled-down launch ended: successfully, with its own error, or because of a restriction of the rehearsal."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal.execution import SHELL_ERRORS, Execution

ERROR_LINES = 4
NAMED = 4  # the most ranks in a message
# The last line of a trainer's or argparse's error, not a launcher's message that its child failed.
ERROR_LINE = re.compile(
    r"^(?!.*(?:ChildFailed|CalledProcess|SignalException))(?:\[rank\d+\]: ?)?\S*(?:Error|Exception)\b|\berror: "
    r"|: can't open file |: No module named |: Error while finding module specification for "
    # Hydra's, hydra 1.3.2 _internal/config_loader_impl.py, without the error's name
    r"|^(?:In '[^']+': )?Could not (?:append|delete|find|load|override)"
)
CONTINUED = re.compile(r":$|\d validation errors? for [\w.]+$")  # pydantic's, 2.14
RANK = re.compile(r"^\[rank\d+\]: ?")
# The error of a class whose name says nothing, after a traceback's lines.
OWN_ERROR = re.compile(r"(?!torch\.distributed\.elastic|.*(?:CalledProcess|SignalException))[A-Za-z_][\w.]*(?:: .*)?")
# A rank's error because another rank has ended.
CONSEQUENCE = re.compile(r"DistBackendError|DistNetworkError|(?i:connection) (?:closed|reset)|Broken pipe|by peer")
# The first line of torchrun's own report on a rank that failed: torch 2.13 distributed/elastic/multiprocessing/api.py.
BANNER = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank")
KILLED = (-9, 137)  # SIGKILL, as the exit code of a process or its shell
# Errors caused by restrictions of a rehearsal.
NETWORK_ERRORS = (
    *("Network is unreachable", "name resolution", "Name or service not known"),
    "attncheck rehearses without a network",
)
WRITE_ERRORS = ("Permission denied", "Read-only file system")
CPU_ERROR = "FlexAttention does not support backward on CPU"  # torch 2.13 nn/attention/flex_attention.py:2082
CUDA_ERROR = "Error 304: OS call failed"


def judge_end(ended: Execution, remark: str = "") -> CheckResult:
    """Return how the launch ended, with a possible explanation of an error."""
    if ended.returncode == 0:
        return CheckResult("run", notes=(f"{ended.steps} steps in {ended.seconds:.0f} s",))
    if ended.waits:
        waits = "; ".join(ended.waits[:NAMED])
        violation = f"all {len(ended.waits)} ranks wait for each other after {ended.steps} steps: {waits}"
        return CheckResult("run", violations=(violation,))
    if ended.returncode is None:
        reason = f"it was stopped after {ended.seconds:.0f} s, {ended.steps} steps taken; --timeout allows more"
        return CheckResult("run", "out_of_time", reason)
    lines = [line for line in ended.lines if line.strip()]
    places = list(_iter_errors(lines))
    places = [place for place in places if not CONSEQUENCE.search(lines[place])] or places
    if ended.returncode in SHELL_ERRORS and lines:
        places = [len(lines) - 1]
    status = ended.returncode
    if not places:  # the ranks' last lines, before the launcher's
        banner = next((place for place, line in enumerate(lines) if BANNER.search(line)), None)
        if banner is not None and (match := BANNER.search(lines[banner])):
            status, lines = int(match[1]), lines[:banner]
    error = lines[places[-1]] if places else ""
    if CONTINUED.search(error.rstrip()):  # its cause is on the next line
        error = " ".join(line.strip() for line in lines[places[-1] : places[-1] + 2])
    # a launcher's message about its child is left out, and lines of marks
    lines = [line for line in lines[: places[-1] + 1 if places else None] if RANK.sub("", line).strip("~^=- ")]
    lines, is_bare = lines[-ERROR_LINES:], RANK.sub("", error).strip() == "AssertionError"
    error = RANK.sub("", ": ".join((error, *(RANK.sub("", line).strip() for line in lines[-2:-1] if is_bare))))
    notes = tuple(line.strip()[:300] for line in lines)
    if refusal := explain_refusal(ended, lines):
        return CheckResult("run", "skipped", f"{refusal} (status {ended.returncode})", notes=notes)
    end = f"ended with status {ended.returncode} after {ended.steps} steps"
    first = f"{error.strip()[:340]} ({end})" if error else ": ".join((f"it {end}", *notes[-1:]))
    if status in KILLED:
        first = f"it was killed after {ended.steps} steps (status {status}), probably because memory ran out"
    return CheckResult("run", violations=(first[:400],), notes=(*filter(None, (remark,)), *notes))


def excuse_stand_in(end: CheckResult, kind: str, name: str) -> CheckResult:
    """Return the end of a launch whose model was replaced by one of another type, which its error may name.

    Then it is no fault. A script may choose its classes by the type, or call methods that only its model's class has.
    """
    named = rf"(?<![\w/.-]){kind.replace('_', '_?')}(?:For\w+|Model|Config)?(?![\w/-])"
    if not (name and end.violations and re.search(named, end.violations[0], re.IGNORECASE)):
        return end
    because = f"{name} is not available locally, and the script does not accept a small {kind} (--model names another)"
    return replace(end, outcome="skipped", reason=f"{because}: {end.violations[0]}", violations=())


def _iter_errors(lines: Sequence[str]) -> Iterator[int]:
    """Yield the places of the last lines of errors, without those that Python ignores as it deletes objects."""
    is_in_traceback = is_ignored = is_end = False
    for place, line in enumerate(lines):
        own = RANK.sub("", line)
        is_ignored = own.startswith("Exception ignored") or (is_ignored and not is_end)
        is_end = (is_in_traceback or is_ignored) and not own.startswith((" ", "Exception ignored", "Traceback"))
        is_in_traceback = "Traceback (most recent call last)" in own or (is_in_traceback and not is_end)
        if not is_ignored and (ERROR_LINE.search(line) or (is_end and OWN_ERROR.fullmatch(own))):
            yield place


def explain_refusal(ended: Execution, lines: Sequence[str]) -> str:
    """Return the action that the rehearsal denied the launch, if its error lines show one, otherwise ""."""
    text = "\n".join(lines)
    if any(word in text for word in NETWORK_ERRORS):
        return "the launch needs the network, which a rehearsal does not have"
    if CPU_ERROR in text:
        return "flex_attention has no backward pass on a CPU: rehearse on a machine with a GPU"
    if ended.isolation.files == "landlock" and CUDA_ERROR in text:
        return (
            "CUDA cannot start if only Landlock protects root's files, because it writes to /proc: rehearse as another "
            "user, or with user namespaces"
        )
    denied = [path for path in ended.isolation.denied if path in text or os.path.basename(path) in text]
    if denied and any(word in text for word in WRITE_ERRORS):
        return f"the launch must write {denied[0]}, which a rehearsal does not allow"
    return ""
