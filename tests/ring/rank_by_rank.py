"""Simulates a ring rank by rank and event by event, as the upstream code reads; knows nothing of the closed form.

Each rank has a clock and a queue of communication, as NCCL's stream is one: an exchange begins when both neighbours
have posted it and have none before it, and is over on a rank when both its sending and its receiving are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Cost = Callable[[int, int], tuple[float, float]]  # (rank, step) -> block, merge in ms


@dataclass
class Ring:
    size: int
    pair_ms: Callable[[int, float], float]  # from this rank to the next, so many bytes

    def __post_init__(self) -> None:
        self.clock = [0.0] * self.size
        self.queue_free = [0.0] * self.size

    def post(self, sent_bytes: float) -> list[float]:
        """Every rank posts an exchange at its clock; return when it is over on each."""
        n = self.size
        ready = [max(self.clock[r], self.queue_free[r]) for r in range(n)]
        arrival = [max(ready[r], ready[(r + 1) % n]) + self.pair_ms(r, sent_bytes) for r in range(n)]
        self.queue_free = [max(arrival[r], arrival[r - 1]) for r in range(n)]
        return list(self.queue_free)

    def wait(self, done: list[float]) -> None:
        self.clock = [max(self.clock[r], done[r]) for r in range(self.size)]

    def spend(self, ms: Callable[[int], float]) -> None:
        self.clock = [self.clock[r] + ms(r) for r in range(self.size)]


def run_forward(ring: Ring, cost: Cost, key_bytes: float, last_ms: float) -> float:
    for step in range(ring.size):
        done = ring.post(key_bytes) if step + 1 != ring.size else None
        ring.spend(lambda r, step=step: sum(cost(r, step)))  # type: ignore[misc]
        if done is not None:
            ring.wait(done)
    ring.spend(lambda r: last_ms)
    return max(ring.clock)


def run_backward(ring: Ring, cost: Cost, key_bytes: float, gradient_bytes: float, last_ms: float) -> float:
    gradients = None
    for step in range(ring.size):
        keys = ring.post(key_bytes) if step + 1 != ring.size else None
        ring.spend(lambda r, step=step: cost(r, step)[0])  # type: ignore[misc]
        if gradients is not None:
            ring.wait(gradients)
        ring.spend(lambda r, step=step: cost(r, step)[1])  # type: ignore[misc]
        if keys is not None:
            ring.wait(keys)
        gradients = ring.post(gradient_bytes)
    assert gradients is not None
    ring.wait(gradients)
    ring.spend(lambda r: last_ms)
    return max(ring.clock)
