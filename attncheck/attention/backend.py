"""The record of an attention backend; each module of `attncheck.attention.backends` holds one, frozen: `BACKEND`.

A backend refuses a case with a reason, or runs it. It never falls back to another kernel: the question is about this
one, so it also names the kernels and operators that a trace shows when it runs. A backend's module imports neither
torch nor its own package at its top: it is loaded before anything heavy is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attncheck.core.cases import Case
from attncheck.core.environment import ExtensionBuild
from attncheck.core.sharding import Sharding

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.attention.inputs import Inputs


MAX_MASK_SCORES = (
    1 << 28
)  # memory per score of documents packed into a row, most of it for pairs in different documents


@dataclass(frozen=True)
class Installed:
    """What `Backend.installed` finds without importing anything heavy: a version, or why the package is missing."""

    version: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Device:
    """The device that cases run on."""

    kind: Literal["cpu", "cuda"]
    name: str = "CPU"
    compute_capability: tuple[int, int] = (0, 0)
    torch: tuple[int, int] = (0, 0)  # its release, (2, 11)
    ranks: int = 0  # the context-parallel group that this device belongs to; 0: none
    emulated: bool = False  # flash-attn's block functions are attncheck's own, in plain torch
    builds: tuple[ExtensionBuild, ...] = ()  # how packages that record it were built


@dataclass(frozen=True)
class Outputs:
    """What a backend returns, in the layout of the inputs; `lse` is float32 `(batch, num_heads, seqlen_q)`."""

    out: Tensor
    lse: Tensor | None = None
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    dsinks: Tensor | None = None
    operators: tuple[str, ...] = ()  # operators that the backend itself knows to have run, such as an autograd node


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
    """Return 1, the class factor of a single kernel: no legitimate rounding beyond the noise model's."""
    return 1.0


class Refused(Exception):
    """The backend cannot run this case on this device; the message is the reason."""


def refusal(backend: Backend, case: Case, device: Device) -> str:
    """Return why `backend` cannot run `case` on `device`, or "": its own reason, or that of a whole class of
    backends."""
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
    reasons that only the call can reveal. `refuse(case, device)` returns why it cannot run a case, or "".
    `kernel_pattern` is a regular expression for the names of its own kernels (GPU) and operators (CPU); if empty, any
    kernel that belongs to no other backend will do. `noise` is the class of rounding error by which it is judged.
    `script_lines(case)` returns the Python lines of a standalone script that call it on q, k, v, or None.
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
        no_extra_roundings  # further ones, while summing dq; dk and dv
    )
    rounded_bias: bool = False  # takes ALiBi as a mask in the case's dtype
    takes_mask: bool = False  # as a tensor, whose form matters
    takes_chunks: bool = False  # has attention chunks without a mask
    bytes_per_score: float = 0.0  # bytes it holds per score entry, if it holds them
    compiles: bool = False  # each new shape costs seconds: a suite gives it few
    plans: bool = False  # each new shape costs parts of a second: its cases are spread over workers by their shapes
    indexes_by_cu_seqlens: bool = False  # never reads what lies outside a document, so that NaN there is harmless
    deterministic: str = ""  # what makes its backward reproducible, as one writes it; "" if nothing needs to
    deterministic_switch: Literal["", "argument", "torch"] = ""  # how `run(…, deterministic=True)` gets it
    sharding: Sharding | None = (
        None  # context parallelism's: `run` gets a rank's shard and returns that shard's outputs
    )
    class_factor: Callable[[Case], float] = unit_class_factor  # how much more it may legitimately round
