"""What the device does with plain work: a large product of matrices and a large copy, on normal random numbers.

Zeros would not do: on an H200 a product of 8192 × 8192 × 8192 in bfloat16 ran at 788 TFLOP/s on random numbers and at
894 on zeros, because power depends on the bits that change (Horace He, "Strangely, Matrix Multiplications on GPUs Run
Faster When Given 'Predictable' Data!").
"""

from __future__ import annotations

import torch

from attncheck.core.results.timings import DeviceRates
from attncheck.measure.flops import tflops
from attncheck.measure.worker.clock import Budget, l2_bytes, measure

SIZE = {"cuda": 8192, "cpu": 768}
COPIED = {"cuda": 1 << 30, "cpu": 1 << 27}  # bytes
THOROUGH = Budget(1.0, 1.0)
BRIEF = Budget(0.2, 0.3)


class Reference:
    """A product of matrices that is timed again and again: its times tell how the device's speed drifts."""

    def __init__(self, kind: str, dtype: str) -> None:
        self.kind, self.dtype, self.size = kind, dtype, SIZE[kind]
        torch.manual_seed(0)
        wanted = getattr(torch, dtype)
        self._a, self._b = (torch.randn(self.size, self.size, device=kind).to(wanted) for _ in range(2))

    def ms(self, budget: Budget = BRIEF) -> float:
        """Return the median milliseconds of a product."""
        return measure(lambda: torch.matmul(self._a, self._b), self.kind, budget).median


def rates(kind: str, dtype: str) -> DeviceRates:
    """Return what the device was measured to do with `dtype`."""
    reference = Reference(kind, dtype)
    ms = reference.ms(THOROUGH)
    return DeviceRates(
        dtype=dtype,
        matmul_size=reference.size,
        matmul_ms=ms,
        matmul_tflops=tflops(2.0 * reference.size**3, ms),
        copy_gb_per_s=_copy(kind),
        l2_bytes=l2_bytes() if kind == "cuda" else 0,
        threads=0 if kind == "cuda" else torch.get_num_threads(),
    )


def _copy(kind: str) -> float:
    """Return GB/s of a copy within the device's memory, counting what is read and what is written."""
    size = COPIED[kind]
    source = torch.randn(size // 4, device=kind)
    target = torch.empty_like(source)
    ms = measure(lambda: target.copy_(source), kind, BRIEF).median
    return 2.0 * size / ms / 1e6
