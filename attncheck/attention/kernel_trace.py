"""The GPU kernels or CPU operators that ran, and the backends that they belong to."""

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attncheck.attention.backend import Backend

T = TypeVar("T")
OVERHEAD_PREFIXES = (
    *("cuda", "cuLaunch", "Memcpy", "Memset"),
    *("Activity Buffer", "Lazy Function", "Command Buffer", "Runtime Trig"),
)


class _OperatorRecorder(TorchDispatchMode):
    """Records the name of every operator that is dispatched, in forward and backward."""

    supports_higher_order_operators = True  # flex_attention is one, and refuses other modes

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, because otherwise torch (2.6 to 2.13) would import its compiler, which takes 2 s per worker."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def trace_kernels(call: Callable[[], T], device: str) -> tuple[T, tuple[str, ...]]:
    """Return the result of `call`, and the names of the kernels (CUDA) or operators (CPU) that it ran."""
    if torch.device(device).type != "cuda":
        with _OperatorRecorder() as recorder:
            result = call()
        return result, tuple(sorted(recorder.names))
    # The profiler below torch.profiler.profile, which would import torch._inductor, for seconds, because of CUDA graphs
    # (torch 2.3 to 2.13, profiler/profiler.py); since 2.1 it accepts use_device.
    from torch.autograd.profiler import profile

    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as profiler:
        result = call()
        torch.cuda.synchronize()
    names = {event.key for event in profiler.key_averages() if not event.key.startswith(OVERHEAD_PREFIXES)}
    return result, tuple(sorted(names))


def foreign_kernels(backend: Backend, names: Iterable[str], others: Iterable[Backend], complete: bool = True) -> str:
    """Return which kernels ran instead of those of `backend`, or "" if its own ran and no others did.

    A missing kernel is proof only if `names` is the `complete` trace and not just an autograd node. An empty trace
    proves nothing. Backends of one package share their kernels.
    """
    kernel_names = tuple(names)
    if not kernel_names:
        return ""
    if backend.kernel_pattern and any(re.search(backend.kernel_pattern, name) for name in kernel_names):
        return ""
    for other in others:
        if (
            other.kernel_pattern
            and not other.compiles
            and other.package + other.kernel_pattern != backend.package + backend.kernel_pattern
        ):
            foreign = next((name for name in kernel_names if re.search(other.kernel_pattern, name)), None)
            if foreign is not None:
                return f"{other.name} ({foreign[:80]})"
    if backend.kernel_pattern and complete:
        return f"another kernel ({', '.join(name[:60] for name in kernel_names[:3])})"
    return ""


def own_kernels(backend: Backend, names: Iterable[str]) -> tuple[str, ...]:
    """Return up to four kernel names to show: the backend's own, or the first ones."""
    kernel_names = tuple(names)
    matching = tuple(
        name for name in kernel_names if backend.kernel_pattern and re.search(backend.kernel_pattern, name)
    )
    return tuple(name[:120] for name in (matching or kernel_names)[:4])
