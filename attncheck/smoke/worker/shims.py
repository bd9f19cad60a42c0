"""Repairs inside the training process, for the duration of a context."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from attncheck.core.plan import NO_CUDNN_SDPA, Plan


@contextmanager
def applied_shims(plan: Plan) -> Iterator[None]:
    """Apply a plan's repairs that are torch settings; ring-flash-attn's is applied when it is imported."""
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    if NO_CUDNN_SDPA in plan.shims:
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)
