"""A ring's predicted performance on a cluster that is not available.

It has the block times measured on one device, the links, and the results.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from attncheck.core.report import MeasuredOn, MeasuredSection, Outcome, Verdict, deduplicate, describe_no_timing
from attncheck.core.results.ring_timings import Passes
from attncheck.core.results.timings import DeviceRates

# The blocks that schemes compute: the diagonal, a block without a mask, half of its keys or queries, and stripe's
# diagonal, which is one token shorter.
BlockKind = Literal["causal", "full", "half_keys", "half_queries", "shifted"]
LinkSource = Literal["given", "measured"]


@dataclass(frozen=True)
class BlockTiming:
    """One call on one device, forward or forward and backward, on blocks of `seqlen` tokens."""

    kind: BlockKind
    passes: Passes
    seqlen: int
    outcome: Outcome = "ok"
    reason: str = ""
    ms: float = 0.0
    interval_ms: float = 0.0  # half-width of the 95 % interval of the median


@dataclass(frozen=True)
class LinkRate:
    """The one-way rate of a GPU over a link, in GB/s of 10⁹ bytes, and the interval of that rate."""

    name: str  # "nvlink", "ib", …
    gb_per_s: float
    low_gb_per_s: float
    high_gb_per_s: float
    source: LinkSource = "given"


@dataclass(frozen=True)
class Prediction:
    """One scheme on one ring size: one pass over a row of `seqlen` tokens, with the expected interval.

    The parts add up to `ms`, unless launching takes longer than all of them.
    """

    scheme: str
    passes: Passes
    ring_size: int
    nodes: int
    seqlen: int
    heads_k_stride: int = 0
    outcome: Outcome = "ok"
    reason: str = ""
    ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0
    iterations_per_s: float = 0.0
    tokens_per_s: float = 0.0
    efficiency: float = 0.0  # iterations/s divided by (those of the local call / ring size), as in the ring bench
    memory_bytes: int = 0  # the scheme's buffers on one GPU, in addition to its inputs
    compute_ms: float = 0.0
    merge_ms: float = 0.0
    exposed_ms: float = 0.0  # exchange that computing does not hide
    slowed_ms: float = 0.0  # how much a hidden exchange slows computing
    launch_ms: float = 0.0  # time to launch the kernels; it decides if it exceeds the other parts together
    limited_by: str = ""

    @property
    def title(self) -> str:
        """Its name in tables and sentences."""
        return self.scheme + (f" stride {self.heads_k_stride}" if self.heads_k_stride else "")


@dataclass(frozen=True)
class PredictionSection(MeasuredSection):
    """Block times measured on one device, the links, and what every scheme would reach over the ranks."""

    name: ClassVar[str] = "prediction"
    answering_outcomes: ClassVar[tuple[Outcome, ...]] = ("ok",)
    measured_on: MeasuredOn = MeasuredOn()
    verdicts: tuple[Verdict, ...] = ()
    backend: str = ""  # the backend that was timed
    gpus_per_node: int = 0
    rates: DeviceRates = DeviceRates()
    links: tuple[LinkRate, ...] = ()
    blocks: tuple[BlockTiming, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    conclusions: tuple[str, ...] = ()

    @property
    def measurements(self) -> tuple[tuple[Outcome, str], ...]:
        """The outcome of each scheme on the requested ring size."""
        largest = max((row.ring_size for row in self.predictions), default=0)
        rows = [row for row in self.predictions if row.ring_size == largest]
        return tuple((row.outcome, describe_no_timing(row.outcome, row.reason)) for row in rows)

    def merge(self, later: "PredictionSection") -> "PredictionSection":
        """Return the sections of two models as one."""
        return PredictionSection(
            self.measured_on.merge(later.measured_on),
            deduplicate((*self.verdicts, *later.verdicts)),
            later.backend or self.backend,
            later.gpus_per_node or self.gpus_per_node,
            later.rates if later.rates != DeviceRates() else self.rates,
            deduplicate((*self.links, *later.links)),
            (*self.blocks, *later.blocks),
            (*self.predictions, *later.predictions),
            (*self.conclusions, *later.conclusions),
        )


SECTION = PredictionSection
