"""How long backends take: plain data, and the number of floating-point operations of a case.

Times are in milliseconds, rates in TFLOP/s (10^12) and GB/s (10^9 bytes).
"""

from dataclasses import dataclass
from typing import Literal

from attncheck.core.cases import Case
from attncheck.core.results.ring_timings import Clocks, Passes
from attncheck.core.verdicts import Answer, Outcome

TimedMode = Literal["default", "deterministic"]
Wanted = Literal["correct", "deterministic"]
RATES_ITEM = "plain work"  # name of the item by which a worker measures the device's rates
LAUNCH_BOUND = 0.9  # share of the device time that the host needs to launch: above it, the device waits for the host
PASSES_TITLES: dict[Passes, str] = {"forward": "forward", "forward_backward": "forward + backward"}


@dataclass(frozen=True)
class DeviceRates:
    """Measured rates of the device on simple work: a large matrix product, a large copy."""

    dtype: str = ""
    matmul_size: int = 0  # n in n × n × n
    matmul_ms: float = 0.0
    matmul_tflops: float = 0.0  # on normal random numbers; zeros would run faster than any training
    copy_gb_per_s: float = 0.0  # bytes read and bytes written
    l2_bytes: int = 0
    threads: int = 0  # threads of the CPU if that was measured


@dataclass(frozen=True)
class Timing:
    """How long one backend takes for one case in one mode; if `outcome` is not "ok", `reason` says why not.

    `answer` is parity's for this case and mode. `varied` are the tensors whose bits changed among `repeats` calls.
    `reference_ms` is the time of one matrix product, measured before and after in the same process.
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
    stable: bool = False  # whether warm-up settled and the interval became as narrow as requested
    host_ms: float = 0.0  # host time to launch a call; 0: not measured
    flushed: bool = False  # whether the L2 cache was emptied between calls
    tflops: float = 0.0
    matmul_share: float = 0.0  # share of the device's measured rate
    peak_memory_bytes: int = 0  # in addition to the inputs; 0: not measured
    repeats: int = 0
    varied: tuple[str, ...] = ()
    deterministic_switch: str = ""  # the setting that makes it reproducible, if one is needed
    reference_ms: tuple[float, ...] = ()
    clocks: Clocks = Clocks()
    layers: int = 1  # number of the model's layers of this kind
    seconds: float = 0.0  # duration of the whole item: parity, repeated calls and timing

    @property
    def launch_bound(self) -> bool:
        """Whether launching on the host limits the speed."""
        return self.host_ms > LAUNCH_BOUND * self.median_ms > 0

    @property
    def reproducible(self) -> bool:
        """Whether its bits are reproducible: none changed, and its backward needs no additional switch."""
        held = self.outcome == "ok" and self.repeats > 1 and not self.varied
        return held and (self.mode == "deterministic" or not self.deterministic_switch or self.passes == "forward")


@dataclass(frozen=True)
class Anchor:
    """A published speed of a kernel, or of a context-parallel scheme on several GPUs; TFLOP/s per GPU."""

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
    seqlen: int  # the measured length
    share: float  # share of the anchor's TFLOP/s
    anchor: Anchor

    @property
    def description(self) -> str:
        """The share in one sentence, with the anchor and its source."""
        a = self.anchor
        mask = "causal" if a.causal else "full"
        shape = f"{mask}, {a.seqlen} tokens, {a.num_heads}:{a.num_kv_heads} heads, head_dim {a.head_dim}"
        measured = f", measured at {self.seqlen} tokens" * (self.seqlen != a.seqlen)
        return (
            f"{self.backend}, {PASSES_TITLES[self.passes]}{measured}: {self.share:.0%} of the best published speed for "
            f"{a.gpu} ({a.kernel}, {shape}: about {a.tflops:.0f} TFLOP/s; {a.source})"
        )


@dataclass(frozen=True)
class Candidate:
    """A backend in one mode, with the total time of all layers and its possible error as a share of that time."""

    backend: str
    mode: TimedMode
    ms: float
    noise: float
    peak_memory_bytes: int = 0
    deterministic_switch: str = ""  # what its mode switches on


@dataclass(frozen=True)
class Recommendation:
    """The recommended backend for one kind of pass. Without one, `reason` says why, and `tied` names equal backends.

    `cost` is its time divided by that of the fastest correct backend, reproducible or not; 0: not known. `order_only`:
    a CPU was measured, which says nothing about a GPU. The fastest there is named, without a setting.
    """

    passes: Passes
    wanted: Wanted
    choice: str = ""
    mode: TimedMode = "default"
    setting: str = ""  # how a training job selects it, and what that switches on
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
