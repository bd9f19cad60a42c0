"""The device's peak rates: a large matrix product and a large copy, on normal random numbers.

Zeros would give wrong rates: on an H200 a product of 8192 × 8192 × 8192 in bfloat16 ran at 788 TFLOP/s on random
numbers and at 894 on zeros, because power depends on the bits that change (Horace He, "Strangely, Matrix
Multiplications on GPUs Run Faster When Given 'Predictable' Data!").
"""

import torch

from attncheck.core.results.timings import DeviceRates
from attncheck.measure.flops import compute_tflops
from attncheck.measure.worker.clock import Budget, l2_bytes, time_calls

MATMUL_SIZE = {"cuda": 8192, "cpu": 768}
COPIED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}
LONG_BUDGET = Budget(1.0, 1.0)
SHORT_BUDGETS = {"cuda": Budget(0.1, 0.15), "cpu": Budget(0.2, 0.3)}


class DriftMatmul:
    """A matrix product that is timed repeatedly: its times show how the device's speed drifts."""

    def __init__(self, kind: str, dtype: str) -> None:
        self.kind, self.dtype, self.size = kind, dtype, MATMUL_SIZE[kind]
        torch.manual_seed(0)
        torch_dtype = getattr(torch, dtype)
        self._a, self._b = (torch.randn(self.size, self.size, device=kind).to(torch_dtype) for _ in range(2))

    def measure_ms(self, budget: Budget | None = None) -> float:
        """Time the product, briefly if there is no budget. Return its median milliseconds."""
        budget = budget or SHORT_BUDGETS[self.kind]
        return time_calls(lambda: torch.matmul(self._a, self._b), self.kind, budget).median_ms


def measure_rates(kind: str, dtype: str) -> DeviceRates:
    """Return the device's measured rates of a matrix product in `dtype` and of a copy."""
    matmul = DriftMatmul(kind, dtype)
    ms = matmul.measure_ms(LONG_BUDGET)
    return DeviceRates(
        dtype=dtype,
        matmul_size=matmul.size,
        matmul_ms=ms,
        matmul_tflops=compute_tflops(2.0 * matmul.size**3, ms),
        copy_gb_per_s=_measure_copy(kind),
        l2_bytes=l2_bytes() if kind == "cuda" else 0,
        threads=0 if kind == "cuda" else torch.get_num_threads(),
    )


def _measure_copy(kind: str) -> float:
    """Return the GB/s of a copy within the device's memory, counting bytes read and bytes written."""
    size = COPIED_BYTES[kind]
    source = torch.randn(size // 4, device=kind)
    target = torch.empty_like(source)
    ms = time_calls(lambda: target.copy_(source), kind, SHORT_BUDGETS[kind]).median_ms
    return 2.0 * size / ms / 1e6
