"""What decides whether a training step has the same bits again, switched for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


@contextmanager
def switched(variables: Mapping[str, str], strict: bool) -> Iterator[None]:
    """Set environment variables and torch's deterministic algorithms for a while."""
    kept = {name: os.environ.get(name) for name in variables}
    enabled = torch.are_deterministic_algorithms_enabled()
    os.environ.update(variables)
    torch.use_deterministic_algorithms(strict or enabled)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled)
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def wait(device: torch.device) -> None:
    """Wait until a GPU has done what it was given; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize()
