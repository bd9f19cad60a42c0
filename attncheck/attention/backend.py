"""The record of an attention backend; each module of `attncheck.attention.backends` has a frozen one: `BACKEND`.

A backend refuses a case with a reason, or runs it. It never falls back to another kernel, because only this kernel is
tested. It therefore also names the kernels and operators that a trace shows when it runs. Its module imports neither
torch nor its own package at the top, because it is loaded before any heavy package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attncheck.core import registry
from attncheck.core.cases import Case
from attncheck.core.environment import ExtensionBuild
from attncheck.core.sharding import Sharding

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.attention.inputs import Inputs


MAX_MASK_SCORES = (
    1 << 28
)  # memory per score of documents packed into a row, most of it for pairs of different documents


@dataclass(frozen=True)
class Installed:
    """The result of `Backend.installed`, without heavy imports: a version, or why the package is missing."""

    version: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Device:
    """The device that cases run on."""

    kind: Literal["cpu", "cuda"]
    name: str = "CPU"
    compute_capability: tuple[int, int] = (0, 0)
    torch: tuple[int, int] = (0, 0)  # torch's release, (2, 11)
    ranks: int = 0  # the size of the context-parallel group that this device belongs to; 0: none
    emulated: bool = False  # whether flash-attn's block functions are attncheck's emulation in plain torch
    builds: tuple[ExtensionBuild, ...] = ()  # how packages were built, if they record it


@dataclass(frozen=True)
class Outputs:
    """What a backend returns, in the layout of the inputs; `lse` is float32 `(batch, num_heads, seqlen_q)`."""

    out: Tensor
    lse: Tensor | None = None
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    dsinks: Tensor | None = None
    operators: tuple[str, ...] = ()  # operators that the backend knows to have run, such as an autograd node


@dataclass(frozen=True)
class SinksArgument:
    """How a function takes attention sinks: the argument's name, its dtype, and whether it returns their gradient."""

    name: str
    dtype: str = "float32"
    has_gradient: bool = True


def no_extra_roundings(case: Case, device: Device) -> tuple[float, float]:
    """Return (0, 0): a kernel's gradients are rounded once, at the end."""
    return 0.0, 0.0


def unit_class_factor(case: Case) -> float:
    """Return 1, the class factor of a single kernel, which rounds only as the noise model does."""
    return 1.0


def defer(name: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
    """Return a function that calls "sdpa:run" of `attncheck.attention.calls`, imported at its first call.

    `arguments` and `options` follow those of each call.
    """
    return registry.defer(f"attention.calls.{name}", *arguments, **options)


class Refused(Exception):
    """The backend cannot run this case on this device; the message is the reason."""


def refusal(backend: Backend, case: Case, device: Device) -> str:
    """Return why `backend` cannot run `case` on `device`: its own reason, or its class's; "" if it can."""
    if case.mask and not backend.takes_mask:
        return "takes no mask tensor; the same lengths without a mask test it"
    if case.attention_chunk and not (backend.takes_mask or backend.takes_chunks):
        return "has no attention chunks"
    if case.scores > max(MAX_MASK_SCORES, 64 * case.cells) and not backend.indexes_by_cu_seqlens:
        return "takes a mask, but hardly any of its documents would be masked"
    if case.probe == "nan_poison" and not backend.indexes_by_cu_seqlens:
        return "takes a mask, through which NaN spreads by arithmetic (0 × NaN); the poison probe tests it instead"
    return backend.refuse(case, device)


@dataclass(frozen=True)
class Backend:
    """One attention implementation.

    `run(inputs, deterministic)` computes forward and, if the case requests it, backward. It raises `Refused` for
    reasons that only the call shows. `refuse(case, device)` returns why it cannot run a case, or "". `kernel_pattern`
    is a regular expression for the names of its kernels (GPU) and operators (CPU). If it is empty, any kernel is
    accepted that belongs to no other backend. `noise` is its class of rounding error, which is used to judge it.
    `script_lines(case)` returns the Python lines of a standalone script that calls it on q, k, v, or None.
    """

    name: str
    title: str
    package: str  # the distribution that provides it
    installed: Callable[[], Installed]
    refuse: Callable[[Case, Device], str]
    run: Callable[[Inputs, bool], Outputs]
    script_lines: Callable[[Case], tuple[str, ...]] | None = None
    kernel_pattern: str = ""
    noise: Literal["fused", "eager"] = "fused"
    roundings: Callable[[Case, Device], tuple[float, float]] = (
        no_extra_roundings  # additional roundings while summing dq, and while summing dk and dv
    )
    rounded_bias: bool = False  # whether it takes ALiBi as a mask in the case's dtype
    takes_mask: bool = False  # whether it takes a mask tensor, whose form matters
    takes_chunks: bool = False  # whether it supports attention chunks without a mask
    bytes_per_score: float = 0.0  # bytes per score entry, if it stores them
    compiles: bool = False  # whether each new shape costs seconds, so that a suite has few cases for it
    # whether each new shape costs fractions of a second, so that its cases are spread over workers by shape
    plans: bool = False
    indexes_by_cu_seqlens: bool = False  # whether it never reads outside a document, so that NaN there is harmless
    deterministic: str = ""  # the setting that makes its backward reproducible, as users write it; "" if none is needed
    deterministic_switch: Literal["", "argument", "torch"] = ""  # how `run(…, deterministic=True)` applies it
    sharding: Sharding | None = (
        None  # for context parallelism: `run` gets a rank's shard and returns that shard's outputs
    )
    class_factor: Callable[[Case], float] = unit_class_factor  # the factor of its legitimate additional rounding
