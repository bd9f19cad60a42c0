"""What ring-flash-attn's schemes refuse, and what their own rounding legitimately costs."""

from __future__ import annotations

import importlib.util
import math

from attncheck.backends import Device
from attncheck.cases import Case
from attncheck.measure import flash_call
from attncheck.sharding import Sharding, indivisible

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
    return flash_call.refuse(case, device)


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
