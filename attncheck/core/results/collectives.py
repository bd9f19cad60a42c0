"""Measured collectives among ranks, and the links that they used: plain data.

Bandwidth is the rate of a link in one direction: bytes over seconds for send_recv and ring, and nccl-tests' bus
bandwidth, bytes × (n − 1) / n over seconds, for all_gather and reduce_scatter, where bytes counts the whole array
(NVIDIA/nccl-tests, doc/PERFORMANCE.md). So all of them compare with the link's rate. GB is 10⁹ bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attncheck.core.verdicts import Outcome

Operation = Literal["send_recv", "ring", "all_gather", "reduce_scatter"]
Transport = Literal["nccl", "gloo", ""]


@dataclass(frozen=True)
class WrongPlace:
    """The first wrong element that one rank received in a collective."""

    rank: int  # the rank that received it
    sender: int  # the rank whose data was expected; -1: the sum of all
    index: int  # index of the element within the sender's data, or within the rank's part of the sums
    length: int  # number of elements in that data
    dtype: str
    got: str  # "rank 2's data", "zeros", "nothing", …
    expected: str


@dataclass(frozen=True)
class CollectiveResult:
    """One operation among ranks: whether every byte was right, and how fast it was.

    "send_recv" is one pair, in both directions. "ring" sends two tensors to the next rank and receives two from the
    previous one, by one `batch_isend_irecv` on the context-parallel group, as ring-flash-attn does.
    """

    operation: Operation
    ranks: tuple[int, ...]
    outcome: Outcome
    reason: str = ""
    bytes: int = 0  # size of the timed message
    ms: float = 0.0  # median of the slowest rank; one direction of a pair
    gb_per_s: float = 0.0
    dtypes: tuple[str, ...] = ()  # dtypes that were compared
    compared: int = 0  # elements compared, over all ranks and sizes
    wrong: int = 0
    places: tuple[WrongPlace, ...] = ()  # one for each rank that received something wrong

    @property
    def name(self) -> str:
        """The operation's name in messages: "ring all of 8"."""
        return f"{self.operation} {describe_ranks(self.operation, self.ranks)}"


@dataclass(frozen=True)
class RankFacts:
    """The hardware and software of one rank. `node` counts hosts from rank 0's; host names are not recorded."""

    rank: int
    node: int
    device: str
    torch: str
    python: str = ""
    nccl: str = ""
    driver: str = ""
    # number of the GPU among those of all ranks: two ranks with the same number share one; -1: not known
    card: int = -1
    gpu: int = -1  # the GPU's number in the snapshot, on rank 0's host
    packages: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)  # settings that all ranks must share


@dataclass(frozen=True)
class Route:
    """How two ranks are connected ("NV18", "PIX", "network", "host", "": not known); documented one-way rate, or 0."""

    first: int
    second: int
    kind: str
    gb_per_s: float = 0.0


@dataclass(frozen=True)
class Communication:
    """The check of communication among ranks; empty if there were no ranks."""

    world_size: int = 0
    transport: Transport = ""
    ranks: tuple[RankFacts, ...] = ()
    exchanges: tuple[CollectiveResult, ...] = ()
    routes: tuple[Route, ...] = ()
    seconds: float = 0.0


def describe_ranks(operation: Operation, ranks: tuple[int, ...]) -> str:
    """Return which ranks took part, in words: "0-3", "all of 8"."""
    return "-".join(map(str, ranks)) if operation == "send_recv" else f"all of {len(ranks)}"


def compute_bandwidth(operation: Operation, ranks: int, size: int, ms: float) -> float:
    """Return the one-way bandwidth, in GB/s, of an operation on `size` bytes among `ranks` ranks that took `ms`."""
    share = (ranks - 1) / ranks if operation in ("all_gather", "reduce_scatter") else 1.0
    return size * share / ms / 1e6 if ms > 0 else 0.0
