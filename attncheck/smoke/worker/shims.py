"""Repairs that are applied inside the training process while a context is open."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from attncheck.core.plan import NO_CUDNN_SDPA, Plan


@contextmanager
def applied_shims(plan: Plan) -> Iterator[None]:
    """Apply a plan's repairs that are torch settings; the repair of ring-flash-attn is applied on its import."""
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    if NO_CUDNN_SDPA in plan.shims:
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)
