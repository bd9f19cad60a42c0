"""Settings that decide whether a training step repeats bit for bit, for the duration of a context."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


@contextmanager
def determinism_settings(variables: Mapping[str, str], strict: bool) -> Iterator[None]:
    """Set environment variables and torch's deterministic algorithms inside the context, and restore both after it."""
    previous = {name: os.environ.get(name) for name in variables}
    was_strict = torch.are_deterministic_algorithms_enabled()
    os.environ.update(variables)
    torch.use_deterministic_algorithms(strict or was_strict)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_strict)
        for name, value in previous.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all queued work; on a CPU return at once."""
    if device.type == "cuda":
        torch.cuda.synchronize()
