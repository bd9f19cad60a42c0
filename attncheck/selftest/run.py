"""Proves that the checks can fail: plants faults in throwaway places and runs the real checks on them.

family -> control (nothing planted: silent) and faults (planted: the expected codes fire). Every run is attncheck's own
command line in a child, in a temporary folder that is gone afterwards, whatever happens.
"""

from __future__ import annotations

import glob
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attncheck.core import interrupts
from attncheck.core.errors import CLEAN, FOUND, UNANSWERED, BadUsage, Unanswered
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.probes.take import take
from attncheck.selftest import faults
from attncheck.selftest.faults import Family, Fault, Ground, running
from attncheck.selftest.faults.running import Check, Ended
from attncheck.workers.pool import cores
from attncheck.workers.process import uninterrupted

Status = Literal["caught", "missed", "skipped"]
Silence = Literal["silent", "alarm"]
SECONDS = 150.0  # for one run of a check
TICK = 0.05  # seconds between looks at what runs
HEAVY = 2  # runs that fill the machine, at once: much of their time is waiting for deadlines


@dataclass(frozen=True)
class Result:
    """What came of one fault; `because` says what fired, what did not, or what is missing here."""

    fault: str
    codes: tuple[str, ...]
    status: Status
    seconds: float
    planted: str
    because: str
    family: str
    imitates: str


@dataclass(frozen=True)
class Control:
    """What a family's check says where nothing is planted; `codes` are those that must not fire."""

    family: str
    checks: str
    status: Silence
    seconds: float
    codes: tuple[str, ...]
    because: str


@dataclass(frozen=True)
class Outcome:
    """What selftest found out."""

    results: tuple[Result, ...]
    controls: tuple[Control, ...]
    seconds: float

    def count(self, status: Status) -> int:
        """Return how many faults came to `status`."""
        return sum(result.status == status for result in self.results)

    @property
    def exit_code(self) -> int:
        """0 where every planted fault was caught and every control silent, 1 where not, 3 where nothing could run."""
        if self.count("missed") or any(control.status == "alarm" for control in self.controls):
            return FOUND
        return CLEAN if self.count("caught") else UNANSWERED


def chosen(codes: Iterable[str]) -> tuple[Fault, ...]:
    """Return the faults whose codes begin with one of `codes`; "all", or none named, means every one.

    Raises `BadUsage` for a code that no rule has, `Unanswered` for one that no fault covers.
    """
    every, broken = faults.load()
    if broken:
        raise BadUsage(f"the faults of {broken[0].name} cannot be loaded: {broken[0].reason}")
    asked = tuple(code.strip().upper() for code in codes if code.strip())
    if not asked or "ALL" in asked:
        return every
    engine.check_codes(asked)
    for prefix in asked:
        if not any(code.startswith(prefix) for fault in every for code in fault.codes):
            raise Unanswered(f"no fault is planted for {prefix}; `attncheck selftest --list` says which codes have one")
    return tuple(fault for fault in every if any(code.startswith(asked) for code in fault.codes))


def uncovered() -> tuple[tuple[str, str], ...]:
    """Return (code, name) of every rule for which no fault is planted."""
    covered = {code for fault in faults.load()[0] for code in fault.codes}
    return tuple((rule.code, rule.name) for rule in engine.all_rules()[0] if rule.code not in covered)


def run(codes: tuple[str, ...], python: str | None, device: str, timeout: float, say: Callable[[str], None]) -> Outcome:
    """Plant the faults of `codes`, run the checks on them and say whether they fired."""
    return prove(chosen(codes), python, device, timeout, say)


def prove(
    planted: Sequence[Fault], python: str | None, device: str, timeout: float, say: Callable[[str], None]
) -> Outcome:
    """Return what the checks make of `planted` and of their families' controls."""
    began = time.monotonic()
    say("looking at the environment")
    here = _Here(take(python, ("static",)), device)
    lacking = {fault.name: here.lacks((*fault.family.needs, *fault.needs)) for fault in planted}
    possible = [fault for fault in planted if not lacking[fault.name]]
    folder: Path | None = None
    try:
        with uninterrupted():
            folder = Path(tempfile.mkdtemp(prefix="attncheck-selftest-"))
        tasks = list(_tasks(possible, folder, python or sys.executable, here))
        ended = _run(tasks, timeout, say)
    finally:
        with uninterrupted():
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
    by_fault = {fault.name: (task, ended[task.name]) for task in tasks for fault in task.faults}
    results = [
        _skipped(fault, lacking[fault.name]) if lacking[fault.name] else _judged(fault, *by_fault[fault.name])
        for fault in planted
    ]
    controls = [_control(task, ended[task.name]) for task in tasks if not task.faults]
    return Outcome(tuple(results), tuple(controls), round(time.monotonic() - began, 1))


class _Here:
    """What the examined environment and this machine offer."""

    def __init__(self, snapshot: Snapshot, device: str) -> None:
        self.snapshot = snapshot
        self.device = device
        self.gpus = 0 if device == "cpu" else len(glob.glob("/dev/nvidia[0-9]*"))

    def lacks(self, needs: Iterable[str]) -> str:
        """Return the first thing of `needs` that is not here, in words; "" for nothing."""
        return next((reason for need in needs if (reason := self._lacks(need))), "")

    def _lacks(self, need: str) -> str:
        if need in ("gpu", "two gpus"):
            return "" if self.gpus >= (2 if need == "two gpus" else 1) else f"needs {need.replace('gpu', 'GPU')}"
        if need == "cpu":
            return "" if not self.gpus else "is planted into what stands in for a GPU's kernels"
        if need == "linux":
            return "" if sys.platform.startswith("linux") else "needs Linux"
        return "" if self.snapshot.has(need) else f"needs {need}, which is not installed in the environment"


@dataclass(frozen=True)
class _Task:
    """One run of a check: a control, or one planted fault, or several that have a subject each."""

    name: str
    family: Family
    faults: tuple[Fault, ...]
    ground: Ground


def _tasks(planted: Sequence[Fault], folder: Path, python: str, here: _Here) -> Iterator[_Task]:
    """Yield the runs, the heavy ones last."""
    families = list(dict.fromkeys(fault.family for fault in planted))
    number = 0
    for family in sorted(families, key=lambda family: family.heavy):
        mine = [fault for fault in planted if fault.family is family]
        groups: list[tuple[Fault, ...]] = [(), *([tuple(mine)] if family.together else [(fault,) for fault in mine])]
        for group in groups:
            number += 1
            place = folder / str(number)
            yield _Task(f"{number}", family, group, Ground(place, python, here.device, here.gpus))


def _start(task: _Task) -> Check:
    """Lay the ground, plant, and start the check. Whatever planting raises is the fault's own result."""
    ground = task.ground
    ground.folder.mkdir()
    task.family.lay(ground)
    for fault in task.faults:
        fault.plant(ground)
    return running.start(ground)


def _run(tasks: Sequence[_Task], timeout: float, say: Callable[[str], None]) -> dict[str, Ended]:
    """Return how every run ended."""
    waiting = list(tasks)
    active: dict[str, tuple[_Task, Check]] = {}
    ended: dict[str, Ended] = {}
    slots = max(1, cores())
    try:
        while waiting or active:
            interrupts.check()
            for name, (task, check) in list(active.items()):
                if (found := check.look(timeout)) is not None:
                    ended[name] = found
                    del active[name]
                    shutil.rmtree(task.ground.folder, ignore_errors=True)
            while waiting and len(active) < (HEAVY if waiting[0].family.heavy else slots):
                task = waiting.pop(0)
                say(f"{len(ended)} of {len(tasks)} checks · {task.family.name}")
                active[task.name] = (task, _start(task))
            time.sleep(TICK)
    finally:
        for _, check in active.values():
            check.stop()
    return ended


def _skipped(fault: Fault, reason: str) -> Result:
    return _result(fault, "skipped", 0.0, reason)


def _result(fault: Fault, status: Status, seconds: float, because: str) -> Result:
    return Result(fault.name, fault.codes, status, seconds, fault.title, because, fault.family.name, fault.imitates)


def _judged(fault: Fault, task: _Task, ended: Ended) -> Result:
    """Say whether each expected code fired for this fault, and whether the exit code told of it."""
    if ended.findings is None:
        return _result(fault, "missed", ended.seconds, ended.reason)
    fired = []
    for code in fault.codes:
        found = next((each for each in ended.findings if each["code"] == code and _says(each, fault.says)), None)
        if found is None:
            others = ", ".join(dict.fromkeys(str(each["code"]) for each in ended.findings)) or "nothing"
            return _result(fault, "missed", ended.seconds, f"{code} did not fire; the check found {others}")
        fired.append(str(found["message"]))
    if ended.returncode != FOUND and any(each["severity"] == "error" for each in ended.findings):
        words = f"an error was found, and the check ended with exit status {ended.returncode}"
        return _result(fault, "missed", ended.seconds, words)
    return _result(fault, "caught", ended.seconds, "; ".join(fired))


def _says(finding: dict[str, Any], words: Sequence[str]) -> bool:
    text = "\n".join((finding["message"], finding["subject"], *finding["evidence"]))
    return all(word in text for word in words)


def _control(task: _Task, ended: Ended) -> Control:
    """Say whether the check is silent where nothing is planted: none of the codes that the family's faults expect."""
    codes = tuple(sorted({code for fault in faults.load()[0] if fault.family is task.family for code in fault.codes}))
    status: Silence = "silent"
    because = "none of these codes"
    if ended.findings is None:
        status, because = "alarm", ended.reason
    elif alarms := [each for each in ended.findings if each["code"] in codes]:
        status, because = "alarm", "; ".join(f"{each['code']} {each['message']}" for each in alarms[:3])
    elif task.family.measures and not ended.passed:
        status, because = "alarm", "the check measured nothing that it could find right: its silence proves nothing"
    return Control(task.family.name, task.family.title, status, ended.seconds, codes, because)
