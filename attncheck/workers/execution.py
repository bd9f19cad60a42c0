"""Common parts of all measuring commands: the target interpreter and device, progress, the machine's record."""

import glob
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from attncheck.core.environment import Selection
from attncheck.core.verdicts import MeasuredOn, Outcome
from attncheck.workers.pool import Event, EventKind, Pool
from attncheck.workers.processors import share_cores


@dataclass(frozen=True)
class ExecutionTarget:
    """Where cases run: the interpreter, the requested device ("auto", "cpu", "cuda"), the seconds per case."""

    python: str
    device: str = "auto"
    seconds: float = 60.0
    selection: Selection = Selection()  # why this interpreter was selected
    extra_path: str = ""  # a folder of packages that its workers import from before the environment's own

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU is likely to be used, by the device files; none is opened."""
        return self.device == "cuda" or (self.device == "auto" and bool(glob.glob("/dev/nvidia[0-9]*")))

    def threads_per_worker(self, slots: int, spare: int = 0) -> int:
        """Return the number of CPU threads for each of `slots` workers, with `spare` cores left free."""
        return share_cores(slots, os.environ, spare)


def unmeasured_outcome(event: Event) -> Outcome:
    """Return the outcome of an item without a measurement; a rank without memory raises, and is not at fault."""
    if event.kind == "raised" and "out of memory" in event.reason.lower():
        return "out_of_memory"
    outcomes: dict[EventKind, Outcome] = {
        "raised": "raised",
        "died": "died",
        "timed_out": "timed_out",
        "out_of_time": "out_of_time",
        "skipped": "skipped",
        "given_up": "skipped",
    }
    return outcomes[event.kind]


def make_measured_on(
    pool: Pool, seed: int, began: float, suite: str = "", not_reached: int = 0, interrupted: bool = False
) -> MeasuredOn:
    """Return the record of device, torch, suite, seed and elapsed seconds; `began` is a time.monotonic() value."""
    kind, name, torch = (str(pool.device.get(key, "")) for key in ("kind", "name", "torch"))
    return MeasuredOn(kind, name, torch, suite, seed, round(time.monotonic() - began, 3), not_reached, interrupted)


@dataclass
class Progress:
    """Reports the number of finished cases, and the remaining time."""

    report_progress: Callable[[str], None]
    total: int
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    first_done_at: float = 0.0  # when the first case was finished; the time before was start-up

    def on_event(self, event: Event) -> None:
        """Count an event of the pool and report the progress."""
        if event.kind != "started":
            self.done += 1
            self.first_done_at = self.first_done_at or time.monotonic()
        self.report_progress(
            f"{self.done} of {self.total} cases{self._describe_time_left()} · {event.job}: {event.item}"
        )

    def _describe_time_left(self) -> str:
        elapsed = time.monotonic() - (self.first_done_at or time.monotonic())
        if self.done < 5 or elapsed < 1.0:
            return ""
        return f", about {max(1, round(elapsed / self.done * (self.total - self.done)))} s left"
