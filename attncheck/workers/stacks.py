"""Tells from a hanging rank's stack whether it is stuck by itself or waits for its peers."""

from __future__ import annotations

import re

# Where a rank waits for others: torch's collectives, a request's wait, the all-gather of texts through the store.
_WAITING = re.compile(r"torch/distributed/(?!run)|in (?:wait|synchronize|all_gather_text)\b")


def is_waiting_for_peers(stack: str) -> bool:
    """Say whether the innermost frames of `stack`, as faulthandler prints it, wait for other ranks."""
    frames = [line for line in stack.splitlines() if line.strip().startswith("File")]
    return any(_WAITING.search(frame) for frame in frames[:3])
