"""Shows that the checks can fail: injects faults into throwaway sandboxes and runs the real checks on them.

A family has a control (nothing is injected: no code may fire) and faults (injected: the expected codes must fire).
Every run is attncheck's own command line in a child, in a temporary folder that is always removed afterwards.
"""

import contextlib
import glob
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attncheck.core.io import interrupts
from attncheck.core.io.errors import CLEAN, FOUND, UNANSWERED, BadUsage, Interrupted, Unanswered
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.probes.collect import collect_snapshot
from attncheck.selftest import faults
from attncheck.selftest.faults import Family, Fault, Sandbox, running
from attncheck.selftest.faults.running import CheckOutcome, CheckProcess
from attncheck.workers.process import defer_signals
from attncheck.workers.processors import count_cores

Status = Literal["caught", "missed", "skipped"]
ControlStatus = Literal["silent", "alarm"]
POLL_SECONDS = 0.05  # between two polls of the running checks
# at once: each can use the whole machine, but spends much time waiting for deadlines
MIN_HEAVY_CHECKS, MAX_HEAVY_CHECKS = 2, 6
CORES_PER_HEAVY_CHECK = 3


@dataclass(frozen=True)
class FaultResult:
    """A check's result for one fault; `because` names the codes that fired or did not, or what is missing here."""

    fault: str
    codes: tuple[str, ...]
    status: Status
    seconds: float
    planted: str
    because: str
    family: str
    imitates: str


@dataclass(frozen=True)
class ControlResult:
    """The findings of a family's check without an injected fault; `codes` are those that must not fire."""

    family: str
    checks: str
    status: ControlStatus
    seconds: float
    codes: tuple[str, ...]
    because: str


@dataclass(frozen=True)
class SelftestResult:
    """The results of all faults and controls."""

    results: tuple[FaultResult, ...]
    controls: tuple[ControlResult, ...]
    seconds: float
    interrupted: bool = False

    def count_status(self, status: Status) -> int:
        """Return the number of faults with this status."""
        return sum(result.status == status for result in self.results)

    @property
    def exit_code(self) -> int:
        """0 if every fault was caught and every control was silent, 1 if not, 3 if nothing ran, 130 after Ctrl-C."""
        if self.interrupted:
            return Interrupted.exit_code
        if self.count_status("missed") or any(control.status == "alarm" for control in self.controls):
            return FOUND
        return CLEAN if self.count_status("caught") else UNANSWERED


def select_faults(codes: Iterable[str]) -> tuple[Fault, ...]:
    """Return the faults whose codes begin with one of `codes`; "all", or no code, means every fault.

    Raises `BadUsage` if no rule has a code, `Unanswered` if no fault covers it.
    """
    all_faults, broken = faults.load()
    if broken:
        raise BadUsage(f"the faults of {broken[0].name} cannot be loaded: {broken[0].reason}")
    prefixes = tuple(code.strip().upper() for code in codes if code.strip())
    if not prefixes or "ALL" in prefixes:
        return all_faults
    engine.check_codes(prefixes)
    for prefix in prefixes:
        if not any(code.startswith(prefix) for fault in all_faults for code in fault.codes):
            raise Unanswered(f"no fault is injected for {prefix}; `attncheck selftest --list` lists the faults")
    return tuple(fault for fault in all_faults if any(code.startswith(prefixes) for code in fault.codes))


def run(
    codes: tuple[str, ...], python: str | None, device: str, timeout: float, report_progress: Callable[[str], None]
) -> SelftestResult:
    """Inject the faults of `codes`, run the checks on them and return whether they fired."""
    return run_faults(select_faults(codes), python, device, timeout, report_progress)


def run_faults(
    selected: Sequence[Fault], python: str | None, device: str, timeout: float, report_progress: Callable[[str], None]
) -> SelftestResult:
    """Run the checks on `selected` faults and on their families' controls, and return the results."""
    began = time.monotonic()
    report_progress("examining the environment")
    capabilities = Capabilities(collect_snapshot(python, ("static",)), device)
    missing = {fault.name: capabilities.missing_need((*fault.family.needs, *fault.needs)) for fault in selected}
    possible = [fault for fault in selected if not missing[fault.name]]
    with throwaway_folder() as folder:
        tasks = list(_plan_tasks(possible, folder, python or sys.executable, capabilities))
        outcomes: dict[str, CheckOutcome] = {}
        interrupted = False
        try:
            run_tasks(tasks, timeout, report_progress, outcomes)
        except KeyboardInterrupt:
            if not outcomes:
                raise
            interrupted = True
    tasks = [task for task in tasks if task.name in outcomes]
    by_fault = {fault.name: outcomes[task.name] for task in tasks for fault in task.faults}
    missing |= {fault.name: "not reached: interrupted" for fault in possible if fault.name not in by_fault}
    results = [
        _make_result(fault, "skipped", 0.0, reason)
        if (reason := missing[fault.name])
        else _judge_fault(fault, by_fault[fault.name])
        for fault in selected
    ]
    known = (*faults.load()[0], *selected)
    controls = [_judge_control(task, outcomes[task.name], known) for task in tasks if not task.faults]
    return SelftestResult(tuple(results), tuple(controls), round(time.monotonic() - began, 1), interrupted)


@contextlib.contextmanager
def throwaway_folder() -> Iterator[Path]:
    """Yield a new folder, which is removed afterwards."""
    folder: Path | None = None
    try:
        with defer_signals():
            folder = Path(tempfile.mkdtemp(prefix="attncheck-selftest-"))
        yield folder
    finally:
        with defer_signals():
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


class Capabilities:
    """The capabilities of the examined environment and this machine."""

    def __init__(self, snapshot: Snapshot, device: str) -> None:
        self.snapshot = snapshot
        self.device = device
        self.gpus = 0 if device == "cpu" else len(glob.glob("/dev/nvidia[0-9]*"))

    def missing_need(self, needs: Iterable[str]) -> str:
        """Return the first of `needs` that is missing, in words; "" if none is."""
        return next((reason for need in needs if (reason := self._describe_missing(need))), "")

    def _describe_missing(self, need: str) -> str:
        if need in ("gpu", "two gpus"):
            return "" if self.gpus >= (2 if need == "two gpus" else 1) else f"needs {need.replace('gpu', 'GPU')}"
        if need == "cpu":
            return "" if not self.gpus else "is injected into the replacement of a GPU's kernels"
        if need == "linux":
            return "" if sys.platform.startswith("linux") else "needs Linux"
        return "" if self.snapshot.has(need) else f"needs {need}, which is not installed in the environment"


@dataclass(frozen=True)
class Task:
    """One run of a check: a control, one fault, or several faults."""

    name: str
    family: Family
    faults: tuple[Fault, ...]
    sandbox: Sandbox


def _plan_tasks(selected: Sequence[Fault], folder: Path, python: str, capabilities: Capabilities) -> Iterator[Task]:
    """Yield the runs."""
    families = list(dict.fromkeys(fault.family for fault in selected))
    number = 0
    for family in families:
        family_faults = [fault for fault in selected if fault.family is family]
        groups = [tuple(family_faults)] if family.together else [(fault,) for fault in family_faults]
        for group in ((), *groups):
            number += 1
            sandbox = Sandbox(folder / str(number), python, capabilities.device, capabilities.gpus)
            yield Task(f"{number}", family, group, sandbox)


def _start_task(task: Task) -> CheckProcess:
    """Set up the sandbox, inject the faults, and start the check. Exceptions from the injection are not caught."""
    sandbox = task.sandbox
    sandbox.folder.mkdir()
    task.family.setup(sandbox)
    for fault in task.faults:
        fault.inject(sandbox)
    return running.start_check(sandbox)


def run_tasks(
    tasks: Sequence[Task],
    timeout: float,
    report_progress: Callable[[str], None],
    outcomes: dict[str, CheckOutcome] | None = None,
) -> dict[str, CheckOutcome]:
    """Return how every run ended, by task name; each is also put into `outcomes` as soon as it ends.

    Heavy runs start together with light ones, which use the idle cores.
    """
    waiting = {
        # the longest first
        True: sorted((task for task in tasks if task.family.heavy), key=lambda task: -len(task.faults)),
        False: [task for task in tasks if not task.family.heavy],
    }
    active: dict[str, tuple[Task, CheckProcess]] = {}
    outcomes = {} if outcomes is None else outcomes
    cores = count_cores()
    try:
        while waiting[True] or waiting[False] or active:
            interrupts.raise_if_interrupted()
            for name, (task, check) in list(active.items()):
                if (outcome := check.poll(timeout)) is not None:
                    outcomes[name] = outcome
                    del active[name]
                    shutil.rmtree(task.sandbox.folder, ignore_errors=True)
            for heavy in (True, False):
                while waiting[heavy] and _has_slot(heavy, [task for task, _ in active.values()], cores):
                    task = waiting[heavy].pop(0)
                    report_progress(f"{len(outcomes)} of {len(tasks)} checks · {task.family.name}")
                    active[task.name] = (task, _start_task(task))
            time.sleep(POLL_SECONDS)
    finally:
        for _, check in active.values():
            check.stop()
    return outcomes


def _has_slot(heavy: bool, active: Sequence[Task], cores: int) -> bool:
    """Return whether one more check of this kind may start alongside the active ones."""
    heavy_slots = min(MAX_HEAVY_CHECKS, max(MIN_HEAVY_CHECKS, cores // CORES_PER_HEAVY_CHECK))
    active_heavy = sum(task.family.heavy for task in active)
    if heavy:
        return active_heavy < heavy_slots
    return len(active) - active_heavy < max(1, cores - 2 * active_heavy)


def _make_result(fault: Fault, status: Status, seconds: float, because: str) -> FaultResult:
    return FaultResult(
        fault.name, fault.codes, status, seconds, fault.title, because, fault.family.name, fault.imitates
    )


def _judge_fault(fault: Fault, outcome: CheckOutcome) -> FaultResult:
    """Return whether each expected code fired for this fault, and whether the exit code showed it."""
    if outcome.findings is None:
        return _make_result(fault, "missed", outcome.seconds, outcome.reason)
    fired = []
    for code in fault.codes:
        finding = find_naming_finding(fault, code, outcome.findings)
        if finding is None:
            others = ", ".join(dict.fromkeys(str(finding["code"]) for finding in outcome.findings)) or "nothing"
            return _make_result(fault, "missed", outcome.seconds, f"{code} did not fire; the check found {others}")
        fired.append(str(finding["message"]))
    if outcome.returncode != FOUND and any(finding["severity"] == "error" for finding in outcome.findings):
        reason = f"an error was found, and the check ended with exit status {outcome.returncode}"
        return _make_result(fault, "missed", outcome.seconds, reason)
    return _make_result(fault, "caught", outcome.seconds, "; ".join(fired))


def find_naming_finding(fault: Fault, code: str, findings: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the finding with this code that names the fault, None if there is none."""
    with_code = (finding for finding in findings if finding["code"] == code)
    return next((finding for finding in with_code if _contains_all(finding, fault.mentions)), None)


def _contains_all(finding: dict[str, Any], words: Sequence[str]) -> bool:
    text = "\n".join((finding["message"], finding["subject"], *finding["evidence"]))
    return all(word in text for word in words)


def _judge_control(task: Task, outcome: CheckOutcome, known: Iterable[Fault]) -> ControlResult:
    """Return whether the check is silent without a fault: it reports no code of its family's `known` faults."""
    codes = tuple(sorted({code for fault in known if fault.family is task.family for code in fault.codes}))
    status: ControlStatus = "silent"
    because = "none of these codes"
    if outcome.findings is None:
        status, because = "alarm", outcome.reason
    elif alarms := [finding for finding in outcome.findings if finding["code"] in codes]:
        status, because = "alarm", "; ".join(f"{alarm['code']} {alarm['message']}" for alarm in alarms[:3])
    elif task.family.measures and not outcome.passed:
        status, because = (
            "alarm",
            ("the check measured nothing that it could judge, so having no findings proves nothing"),
        )
    return ControlResult(task.family.name, task.family.title, status, outcome.seconds, codes, because)
