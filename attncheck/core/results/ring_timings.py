"""How fast a ring is: one scheme's measured time next to the local call's, and its roofline; plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from attncheck.core.verdicts import Answer, Outcome

Table = Literal["batch", "varlen"]
Passes = Literal["forward", "forward_backward"]
TABLES: tuple[Table, ...] = ("batch", "varlen")
PASSES: tuple[Passes, ...] = ("forward", "forward_backward")
# A shorter local call is dominated by launching: a percentage would mean nothing. Backward is 2.5 forwards of work.
LAUNCH_BOUND_MS: Mapping[Passes, float] = {"forward": 0.3, "forward_backward": 1.05}
LOCAL_FLASH = "flash_attn"  # the local call on one device, which is the reference for efficiency
LOCAL_FLASH_FULL = "flash_attn_full"  # the same without a mask: what a ring's later steps compute


@dataclass(frozen=True)
class Clocks:
    """Clocks, power and temperature of rank 0's GPU while it was timed; zeros if it does not report them."""

    sm_mhz_low: int = 0
    sm_mhz_high: int = 0
    power_w: int = 0  # the maximum
    temperature_c: int = 0  # the maximum
    throttled: tuple[str, ...] = ()  # reasons for throttling other than idling


@dataclass(frozen=True)
class RingRates:
    """Measured rates of the machine: a matrix product, a copy (read and write), a transfer to a neighbour."""

    matmul_tflops: float = 0.0
    copy_gb_per_s: float = 0.0
    link_gb_per_s: float = 0.0
    clocks: Clocks = Clocks()


@dataclass(frozen=True)
class Stopwatch:
    """Rounds of calls on every rank: the slowest rank's median, its spread, and a 95 % interval of the median."""

    ms: float  # duration of one call
    p10_ms: float
    p90_ms: float
    interval: float  # half-width, as a share of the median
    calls: int
    slowest_rank: int
    spread: float  # the slowest rank's time divided by the fastest's
    peak_memory_bytes: int = 0  # in addition to the inputs, on the rank that needed most; 0: not measured
    silent_ms: float = 0.0  # duration of the same call without communication; 0: not measured


@dataclass(frozen=True)
class RingTiming:
    """One scheme, one table of ring-flash-attn's README, one kind of pass, at one length and stride.

    `efficiency` is iterations per second divided by (those of the local call / ring size), as in that README.
    `achievable` is the roofline's efficiency, `reached` the measured share of it.
    """

    backend: str
    table: Table
    passes: Passes
    ring_size: int
    seqlen: int  # tokens per rank
    heads_k_stride: int = 0
    outcome: Outcome = "ok"
    reason: str = ""
    stopwatch: Stopwatch = Stopwatch(0.0, 0.0, 0.0, 0.0, 0, 0, 0.0)
    iterations_per_s: float = 0.0
    efficiency: float = 0.0
    achievable: float = 0.0
    reached: float = 0.0
    communication_ms: float = 0.0  # time to communicate in all steps, without computing
    overlapped: float = 0.0  # the measured share of it that computing hides
    limited_by: str = ""
    correct: Answer = "skipped"  # parity's answer for this scheme and shape

    @property
    def title(self) -> str:
        """Its name in tables and sentences."""
        return self.backend + (f" stride {self.heads_k_stride}" if self.heads_k_stride else "")

    @property
    def launch_bound(self) -> bool:
        """Whether the local call is so short that a percentage would be meaningless."""
        return self.backend == LOCAL_FLASH and 0.0 < self.stopwatch.ms < LAUNCH_BOUND_MS[self.passes]
