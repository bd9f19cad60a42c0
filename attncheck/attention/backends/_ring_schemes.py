"""ring-flash-attn's schemes as backends: what they refuse, and what their own rounding legitimately costs."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend, Device, Outputs
from attncheck.attention.backends.flash_attention_2 import DETERMINISTIC, SEEN
from attncheck.attention.calls import flash_attn_package, ring_package
from attncheck.core.cases import Case
from attncheck.core.sharding import Sharding, indivisible

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs

BLOCKS = 1.25  # 16-bit results of blocks, merged in float32: sqrt(3/2), measured 1.18 to 1.34


def block_factor(case: Case) -> float:
    """Return what 16-bit results of blocks cost, whatever the number of ranks beyond one."""
    return BLOCKS if case.context_parallel_size > 1 else 1.0


def reduce_scatter_factor(case: Case) -> float:
    """Return what adding dk and dv up over n ranks in the io dtype costs: 1.25 · sqrt(1 + n/5)."""
    n = case.context_parallel_size
    return BLOCKS * math.sqrt(1.0 + n / 5.0) if n > 1 else 1.0


def refuse(case: Case, device: Device, sharding: Sharding, packed: bool) -> str:
    """Return why no function of ring-flash-attn with this sharding can run the case, or ""."""
    return alone(device) or _kernels(case, device) or _shape(case, sharding, packed) or _features(case)


def sends_to_itself(case: Case, device: Device) -> str:
    """Return why a single rank cannot run the ring's backward: its gradients travel n steps, to itself, on gloo."""
    if device.kind == "cpu" and device.ranks == 1 and case.backward:
        return "its backward sends to itself on a ring of one rank, which gloo cannot"
    return ""


def alone(device: Device) -> str:
    """Return why a device that is not one of a group cannot run a context-parallel scheme."""
    return "" if device.ranks else "runs over ranks: attncheck parity --ring-size 2"


def _kernels(case: Case, device: Device) -> str:
    if case.dtype == "float32":
        return "takes 16-bit dtypes only (with float32 its own buffers alias, and gradients are wrong)"
    if device.emulated:
        return ""
    if importlib.util.find_spec("flash_attn") is None:
        return "flash-attn is not installed; --emulate runs the schedule with kernels in plain torch"
    return flash_attn_package.refuse(case, device)


def _shape(case: Case, sharding: Sharding, packed: bool) -> str:
    if case.seqlens_q != case.seqlens_k:
        return "shards queries and keys alike: seqlens_q and seqlens_k must be the same"
    if case.padded:
        return "knows no padding; unpad first"
    if packed != (case.layout == "packed"):
        return "takes packed rows only" if packed else "takes rows of one length, not packed documents"
    if case.v_head_dim != case.head_dim:
        return "needs v with q's head_dim"
    if case.operands == "qkvpacked" and case.num_heads != case.num_kv_heads:
        return "q, k and v in one tensor need as many kv heads as heads"
    return indivisible(sharding, case)


def _features(case: Case) -> str:
    if case.dropout:
        return "does not support dropout (its README: the random states of all blocks would have to be kept)"
    if case.softcap:
        return "has no softcap argument"
    if case.sinks:
        return "has no sinks argument"
    if case.alibi:
        return "asserts that alibi_slopes is None"
    return ""


def scheme(
    name: str, title: str, sharding: Sharding, *, packed: bool = False, causal: bool = False, strided: bool = False
) -> Backend:
    """Return the backend of the function `<name>_func` and its variants.

    `causal` where it asserts that the mask is; `strided` for llama3's, which gathers `heads_k_stride` kv heads at a
    time and adds dk and dv up by a reduce-scatter.
    """

    def refuses(case: Case, device: Device) -> str:
        if causal and not case.causal:
            return "asserts that the mask is causal"
        if strided:
            return _stride(case) or refuse(case, device, sharding, packed)
        if case.heads_k_stride:
            return "has no heads_k_stride"
        return refuse(case, device, sharding, packed) or sends_to_itself(case, device)

    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        from attncheck.attention.calls import ring_flash_attn

        if strided:
            return ring_flash_attn.llama3(inputs, deterministic)
        return (ring_flash_attn.packed if packed else ring_flash_attn.dense)(name, inputs, deterministic)

    return Backend(
        name=name,
        title=title,
        package=ring_package.NAME,
        installed=ring_package.find,
        refuse=refuses,
        run=run,
        kernel_pattern=SEEN,
        deterministic=DETERMINISTIC,
        deterministic_switch="argument",
        sharding=sharding,
        class_factor=reduce_scatter_factor if strided else block_factor,
    )


def _stride(case: Case) -> str:
    if case.heads_k_stride and case.num_kv_heads % case.heads_k_stride:
        return f"heads_k_stride {case.heads_k_stride} does not divide {case.num_kv_heads} kv heads"
    return ""
