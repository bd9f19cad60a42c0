"""A lock: the stack that is known to be good, and what attncheck measured on it; plain data.

It names no machine, folder or person, so it can be committed to a repository.
"""

from dataclasses import dataclass

from attncheck.core.facts import Absent, Fact
from attncheck.core.results.ring_timings import Passes
from attncheck.core.results.timings import TimedMode
from attncheck.core.verdicts import Answer

LOCK_SCHEMA = 1
LOCK_FILE = "attncheck.lock.json"


@dataclass(frozen=True)
class LockedPackage:
    """One relevant distribution. `from_index`: its installer can fetch this version again by name."""

    name: str
    version: str
    wheel_tags: tuple[str, ...] = ()
    record_sha256: str = ""  # hash of RECORD's lines about the distribution's own files; "": not known
    installer: str = ""
    from_index: bool = False


@dataclass(frozen=True)
class LockedGpu:
    """GPUs of one kind."""

    name: str
    compute_capability: str  # "9.0"; "" if it is not known
    count: int


@dataclass(frozen=True)
class LockedError:
    """Parity's worst error of a backend in a family of cases, in units of its budget; 0 if the backend refused."""

    backend: str
    family: str
    suite: str  # with its seed: "quick 0"; "" for the cases that bench timed
    device: str  # "cuda" or "cpu"
    answer: Answer
    worst: float


@dataclass(frozen=True)
class LockedRepeats:
    """Determinism's answer for one case of a backend in one mode."""

    backend: str
    case: str  # with its mode: "dense-causal-…@deterministic"
    device: str  # "NVIDIA H200", or "cpu"
    answer: Answer


@dataclass(frozen=True)
class LockedSpeed:
    """How long a backend takes for one case on one kind of GPU."""

    backend: str
    case: str
    passes: Passes
    mode: TimedMode
    gpu: str
    median_ms: float
    interval_ms: float  # half-width of the median's 95 % confidence interval
    reference_ms: float = 0.0  # time of a matrix product measured next to it; 0: not measured


@dataclass(frozen=True)
class Lock:
    """The stack of one environment on one machine, and what was measured on it."""

    lock_schema: int
    attncheck: str
    date: str
    python: str  # "3.12.3"
    python_abi: str  # "cp312"
    platform: str  # "linux x86_64"
    packages: tuple[LockedPackage, ...] = ()
    torch_cuda: Fact[str] = Absent("torch is not installed")
    driver: Fact[str] = Absent()
    gpus: Fact[tuple[LockedGpu, ...]] = Absent()
    errors: tuple[LockedError, ...] = ()
    repeats: tuple[LockedRepeats, ...] = ()
    speeds: tuple[LockedSpeed, ...] = ()

    def package(self, name: str) -> LockedPackage | None:
        """Return the package called `name`, None if the lock does not contain it."""
        return next((package for package in self.packages if package.name == name), None)

    @property
    def measurements(self) -> int:
        """The number of measured answers in the lock."""
        return len(self.errors) + len(self.repeats) + len(self.speeds)
