"""What really ran: names of kernels on a GPU, of operators on the CPU, and whose they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attncheck.attention.backend import Backend

T = TypeVar("T")
OVERHEAD = (
    *("cuda", "cuLaunch", "Memcpy", "Memset"),
    *("Activity Buffer", "Lazy Function", "Command Buffer", "Runtime Trig"),
)


class _Listener(TorchDispatchMode):
    """Writes down every operator that is dispatched, in forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def watch(call: Callable[[], T], device: str) -> tuple[T, tuple[str, ...]]:
    """Return what `call` returns, and the names of the kernels (CUDA) or operators (CPU) it ran."""
    if torch.device(device).type != "cuda":
        with _Listener() as listener:
            answer = call()
        return answer, tuple(sorted(listener.names))
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        answer = call()
        torch.cuda.synchronize()
    names = {event.key for event in profiler.key_averages() if not event.key.startswith(OVERHEAD)}
    return answer, tuple(sorted(names))


def another(backend: Backend, names: Iterable[str], others: Iterable[Backend], everything: bool = True) -> str:
    """Return what ran in place of `backend`, or "": another's names are there, or its own are missing.

    Its own can be missed only where `names` is `everything` that ran, not just an autograd node; a profiler that saw
    nothing at all proves nothing. Backends of one package share their kernels.
    """
    seen = tuple(names)
    if not seen:
        return ""
    if backend.kernel_pattern and any(re.search(backend.kernel_pattern, name) for name in seen):
        return ""
    for other in others:
        if (
            other.kernel_pattern
            and not other.compiles
            and other.package + other.kernel_pattern != backend.package + backend.kernel_pattern
        ):
            strange = next((name for name in seen if re.search(other.kernel_pattern, name)), None)
            if strange is not None:
                return f"{other.name} ({strange[:80]})"
    if backend.kernel_pattern and everything:
        return f"something else ({', '.join(name[:60] for name in seen[:3])})"
    return ""


def own(backend: Backend, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names worth showing: the backend's own, or the first few."""
    seen = tuple(names)
    mine = tuple(name for name in seen if backend.kernel_pattern and re.search(backend.kernel_pattern, name))
    return tuple(name[:120] for name in (mine or seen)[:4])
