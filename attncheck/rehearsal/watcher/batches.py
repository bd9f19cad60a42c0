"""Keeps the first batches of data loaders, with labels that a trainer removes before it calls its model."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

MAX_BATCHES = 8  # of a process


def watch_batches(folder: str) -> Callable[[Any], None]:
    """Return a patch for torch.utils.data.dataloader: `batches-PID-N.pt` holds the tensors of a batch by name."""
    count = 0

    def patch(module: Any) -> None:
        take_next = module._BaseDataLoaderIter.__next__

        @functools.wraps(take_next)
        def keep_next(loader: Any) -> Any:
            nonlocal count
            batch = take_next(loader)
            if count < MAX_BATCHES:
                _keep(batch, os.path.join(folder, f"batches-{os.getpid()}-{count}.pt"))
                count += 1
            return batch

        module._BaseDataLoaderIter.__next__ = keep_next

    return patch


def _keep(batch: Any, path: str) -> None:
    import torch

    if isinstance(batch, Mapping):
        tensors = {str(name): value for name, value in batch.items() if isinstance(value, torch.Tensor)}
        torch.save({name: value.detach().cpu() for name, value in tensors.items() if value.dim() == 2}, path)
