"""Recorded rings: iterations/s of ring-flash-attn's schemes, and one GPU's block times from which they are predicted.

All at 8,192 tokens a rank, 32/8 heads, head_dim 128, bf16, causal. Sources:
- H200: benchmarks/RESULTS.md, "Speed: four H200" and "One device". The full block is what its column "achievable" was
  computed from: 4 · t_c / Y = t_c + 3 · t_f + merging gives 2.97 ms forward and 11.51 ms both, from the ring's row and
  from the zigzag's alike. The diagonal that is a token shorter is flash_attention_2_varlen's share of
  flash_attention_2: flash-attn has one kernel for lengths that are multiples of its tile and one for others.
- Eight H200, NVLS off: ring-flash-attn's benchmark_kvpacked_func.py.
- Eight H800, eight A100: the README of zhuzilin/ring-flash-attention at 01c8baf. No block but its flash-attn is known
  there: an H200's blocks, scaled by it. Copies as the data sheets' memory bandwidths, 3.35 and 2.039 (A100 80 GB) of
  4.8 TB/s; NVLink as the data sheets have it, 200 and 300 GB/s one way.
"""

from __future__ import annotations

from dataclasses import dataclass

from attncheck.core.results.prediction import BlockKind, BlockTiming, LinkRate
from attncheck.core.results.ring_timings import Passes
from attncheck.ring.predict.block_times import fit_blocks
from attncheck.ring.predict.cluster import Cluster
from attncheck.ring.predict.simulation import Machine
from attncheck.ring.roofline import Shape

SHAPE = Shape(8192, 32, 8, 128)
FULL_MS = (2.97, 11.51)
SHIFTED_SHARES = (1.770 / 1.628, 6.546 / 6.080)


@dataclass(frozen=True)
class RecordedRing:
    """One table: flash-attn's iterations/s on one GPU, forward and both passes, and each scheme's."""

    name: str
    ring_size: int
    flash: tuple[float, float]
    schemes: dict[str, tuple[float, float]]
    copy_gb_per_s: float
    link: LinkRate
    full_ms: tuple[float, float] = FULL_MS
    tolerance: float = 0.07

    def make_machine(self) -> Machine:
        """Return the machine as one GPU's measurements have it."""
        causal_ms = [1e3 / rate for rate in self.flash]
        shifted_ms = [ms * share for ms, share in zip(causal_ms, SHIFTED_SHARES)]
        kinds: dict[BlockKind, list[float]] = {
            "causal": causal_ms,
            "full": list(self.full_ms),
            "shifted": shifted_ms,
        }
        passes: tuple[Passes, Passes] = ("forward", "forward_backward")
        timings = [BlockTiming(kind, p, 8192, ms=ms) for kind, times in kinds.items() for p, ms in zip(passes, times)]
        return Machine(fit_blocks(timings, SHAPE), self.copy_gb_per_s, Cluster(8, self.link))


H200_LINK = LinkRate("nvlink", 136.0, 122.4, 149.6, "measured")
FOUR_H200 = RecordedRing(
    "four H200",
    4,
    (616.2, 162.8),
    {
        "ring_flash_attn": (90.4, 23.06),
        "zigzag_ring_flash_attn": (148.7, 38.46),
        "stripe_flash_attn": (128.5, 36.22),
    },
    4260.0,
    H200_LINK,
)
EIGHT_H200 = RecordedRing(
    "eight H200",
    8,
    (618.3, 162.3),
    {
        "ring_flash_attn": (41.0, 10.82),
        "zigzag_ring_flash_attn": (67.7, 18.81),
        "stripe_flash_attn": (60.06, 17.70),
    },
    4260.0,
    H200_LINK,
)
EIGHT_H800 = RecordedRing(
    "eight H800",
    8,
    (591.5, 154.7),
    {
        "ring_flash_attn": (38.5, 10.4),
        "zigzag_ring_flash_attn": (63.0, 17.4),
        "stripe_flash_attn": (55.0, 16.0),
    },
    4260.0 * 3.35 / 4.8,
    LinkRate("nvlink", 200.0, 60.0, 200.0),
    (2.97 * 616.2 / 591.5, 11.51 * 162.8 / 154.7),
    0.15,
)
EIGHT_A100 = RecordedRing(
    "eight A100",
    8,
    (373.4, 94.7),
    {
        "ring_flash_attn": (24.0, 6.2),
        "zigzag_ring_flash_attn": (38.2, 10.6),
        "stripe_flash_attn": (32.5, 9.75),
    },
    4260.0 * 2.039 / 4.8,
    LinkRate("nvlink", 300.0, 90.0, 300.0),
    (2.97 * 616.2 / 373.4, 11.51 * 162.8 / 94.7),
    0.155,
)
RECORDED = (FOUR_H200, EIGHT_H200, EIGHT_H800, EIGHT_A100)
MEASURED_BLOCKS = RECORDED[:3]  # an A100's blocks are to its flash-attn in other proportions than a Hopper's
# llama3 on four H200, `--sweep heads-k-stride`, forward + backward, by stride: iterations/s, and MiB beyond its inputs.
LLAMA3_RATES = {1: 35.9, 2: 37.9, 4: 39.1, 8: 39.5}
LLAMA3_MIB = {1: 334, 2: 474, 4: 756, 8: 1220}
