"""How long backends take: plain data, and the floating-point operations that a case needs.

Times are in milliseconds, rates in TFLOP/s (10^12) and GB/s (10^9 bytes).
"""

from dataclasses import dataclass
from typing import Literal

from attncheck.core.cases import Case
from attncheck.core.results.ring_timings import Clocks, Passes
from attncheck.core.verdicts import Answer, Outcome

TimedMode = Literal["default", "deterministic"]
Wanted = Literal["correct", "deterministic"]
RATES_ITEM = "plain work"  # the item of a worker that measures the device's rates
LAUNCH_BOUND = 0.9  # of the time on the device that the host takes to launch: the device waits for it
PASSES_TITLES: dict[Passes, str] = {"forward": "forward", "forward_backward": "forward + backward"}


@dataclass(frozen=True)
class DeviceRates:
    """Measured rates of the device on plain work: a large product of matrices, a large copy."""

    dtype: str = ""
    matmul_size: int = 0  # n, of n × n × n
    matmul_ms: float = 0.0
    matmul_tflops: float = 0.0  # on normal random numbers, never zeros: those run faster than any training
    copy_gb_per_s: float = 0.0  # bytes read and bytes written
    l2_bytes: int = 0
    threads: int = 0  # of the CPU, where it is what was measured


@dataclass(frozen=True)
class Timing:
    """How long one backend takes for one case, in one mode; if `outcome` is not "ok", `reason` says why not.

    `answer` is parity's on this very case in this very mode. `varied` are the tensors whose bits changed among
    `repeats` calls. `reference_ms` is the same product of matrices timed before and after, in the same process.
    """

    backend: str
    case: Case
    passes: Passes
    mode: TimedMode
    outcome: Outcome
    reason: str = ""
    answer: Answer = "skipped"
    answer_reason: str = ""
    median_ms: float = 0.0
    p10_ms: float = 0.0
    p90_ms: float = 0.0
    interval_ms: float = 0.0  # half-width of the 95 % confidence interval of the median
    calls: int = 0
    stable: bool = False  # warm-up settled, and the interval became as narrow as requested
    host_ms: float = 0.0  # what the host took to launch a call; 0: not measured
    flushed: bool = False  # the L2 cache was emptied between calls
    tflops: float = 0.0
    matmul_share: float = 0.0  # of the device's measured rate
    peak_memory_bytes: int = 0  # beyond the inputs; 0: not measured
    repeats: int = 0
    varied: tuple[str, ...] = ()
    deterministic_switch: str = ""  # what makes it reproducible, where something must
    reference_ms: tuple[float, ...] = ()
    clocks: Clocks = Clocks()
    layers: int = 1  # how many layers of the model are of this kind
    seconds: float = 0.0  # that this took, parity, repeated calls and all

    @property
    def launch_bound(self) -> bool:
        """Whether the host's launching is what takes the time."""
        return self.host_ms > LAUNCH_BOUND * self.median_ms > 0

    @property
    def reproducible(self) -> bool:
        """Whether its bits are reliable: none changed, and its backward needs no further switch."""
        held = self.outcome == "ok" and self.repeats > 1 and not self.varied
        return held and (self.mode == "deterministic" or not self.deterministic_switch or self.passes == "forward")


@dataclass(frozen=True)
class Anchor:
    """A published speed: a kernel's, or a context-parallel scheme's on several GPUs; TFLOP/s of each GPU."""

    kernel: str
    gpu: str  # "H100"
    gpus: int
    passes: str  # "forward", "backward" or "forward_backward"
    seqlen: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool
    tflops: float
    source: str  # title, version, date
    url: str = ""


@dataclass(frozen=True)
class PublishedShare:
    """How a measured backend compares with the best published anchor."""

    backend: str
    passes: Passes
    seqlen: int  # that was measured
    share: float  # of the anchor's TFLOP/s
    anchor: Anchor

    @property
    def description(self) -> str:
        """The share in one sentence, with the anchor and its source."""
        a = self.anchor
        mask = "causal" if a.causal else "full"
        shape = f"{mask}, {a.seqlen} tokens, {a.num_heads}:{a.num_kv_heads} heads, head_dim {a.head_dim}"
        measured = f", measured at {self.seqlen} tokens" * (self.seqlen != a.seqlen)
        return (
            f"{self.backend}, {PASSES_TITLES[self.passes]}{measured}: {self.share:.0%} of the best published for "
            f"{a.gpu} ({a.kernel}, {shape}: about {a.tflops:.0f} TFLOP/s; {a.source})"
        )


@dataclass(frozen=True)
class Candidate:
    """A backend in one mode with the time of all layers together, and how far that may be off, as a share of it."""

    backend: str
    mode: TimedMode
    ms: float
    noise: float
    peak_memory_bytes: int = 0
    deterministic_switch: str = ""  # what its mode switches on


@dataclass(frozen=True)
class Recommendation:
    """The backend to take for one kind of pass. No choice: `reason` says why, and `tied` between which.

    `cost` is its time over that of the fastest backend that is right, whether reproducible or not; 0: not known.
    `order_only`: a CPU was measured, which says nothing of a GPU; the fastest here is named, without a setting to take.
    """

    passes: Passes
    wanted: Wanted
    choice: str = ""
    mode: TimedMode = "default"
    setting: str = ""  # how a training job selects it, and what it switches on
    reason: str = ""
    tied: tuple[str, ...] = ()
    ms: float = 0.0
    noise: float = 0.0
    cost: float = 0.0
    peak_memory_bytes: int = 0
    order_only: bool = False


def passes_of(case: Case) -> Passes:
    """Return the passes that a case runs."""
    return "forward_backward" if case.backward else "forward"
