"""ring-flash-attn's six schemes: the cases that they refuse, and their legitimate additional rounding.

Read in zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/<name>.py. The sharding (`core.sharding.positions`) decides
a rank's tokens, and thus their RoPE positions. For rank r of n and a row of S tokens:

- ring: positions r·S/n … (r+1)·S/n - 1. Keys and values travel, and blocks are merged by their LSE. With a causal mask
  the last rank has the most work. Packed, each document is sharded separately over all ranks; one `cu_seqlens` serves
  queries and keys.
- zigzag: chunks r and 2n-1-r of 2n, an early and a late one, so that causal work is even. It asserts `causal`. Packed,
  each document is sharded this way separately.
- stripe: positions r, r+n, r+2n, … so that each block is nearly causal. It asserts `causal` (Striped Attention, arXiv
  2311.09431).
- llama3: the packed row is cut into contiguous shards, each token at its position in its document, and some kv heads
  are gathered at a time. `heads_k_stride` must divide the kv heads. dk and dv are summed across the ranks by a
  reduce-scatter in the io dtype, which costs precision: 1.25 · sqrt(1 + n/5) (arXiv 2407.21783, 3.3.2).
"""

import importlib.util
import math
from typing import TYPE_CHECKING

from attncheck.attention.backends import Backend, Case, Device, Outputs
from attncheck.attention.backends.flash_attention_2 import DETERMINISTIC, KERNEL_PATTERN
from attncheck.attention.calls import flash_attn_package, ring_package
from attncheck.core.sharding import Sharding, explain_indivisible

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs

BLOCK_FACTOR = 1.25  # blocks with 16-bit results, merged in float32: sqrt(3/2), measured 1.18 to 1.34


def block_factor(case: Case) -> float:
    """Return the class factor of merging blocks with 16-bit results; it is the same for any number of ranks above 1."""
    return BLOCK_FACTOR if case.context_parallel_size > 1 else 1.0


def reduce_scatter_factor(case: Case) -> float:
    """Return the class factor of summing dk and dv over n ranks in the io dtype: 1.25 · sqrt(1 + n/5)."""
    n = case.context_parallel_size
    return BLOCK_FACTOR * math.sqrt(1.0 + n / 5.0) if n > 1 else 1.0


def refuse_ring_flash_attn(case: Case, device: Device, sharding: Sharding, packed: bool) -> str:
    """Return why no function of ring-flash-attn with this sharding can run the case, or ""."""
    return refuse_single_device(device) or _refuse_kernels(case, device) or refuse_features(case, sharding, packed)


def refuse_single_rank(case: Case, device: Device) -> str:
    """Return why a single rank cannot run the ring's backward with gloo, or "": gloo cannot send to itself."""
    if device.kind == "cpu" and device.ranks == 1 and case.backward:
        return "its backward sends to itself on a ring of one rank, which gloo cannot do"
    return ""


def refuse_single_device(device: Device) -> str:
    """Return why a device outside a group cannot run a context-parallel scheme, or ""."""
    return "" if device.ranks else "runs across ranks: attncheck parity --ring-size 2"


def _refuse_kernels(case: Case, device: Device) -> str:
    if case.dtype == "float32":
        return "takes 16-bit dtypes only (with float32 its buffers alias, and gradients are wrong)"
    if device.emulated:
        return ""
    if importlib.util.find_spec("flash_attn") is None:
        return "flash-attn is not installed; --emulate runs the schedule with kernels in plain torch"
    return flash_attn_package.refuse(case, device)


def refuse_operands(case: Case) -> str:
    """Return why a scheme that takes only q, k and v cannot run the case, or ""."""
    if case.operands != "split":
        return "takes separate q, k and v"
    return "has no heads_k_stride" if case.heads_k_stride else ""


def refuse_features(case: Case, sharding: Sharding, packed: bool) -> str:
    """Return why a ring that takes no padding and no masks cannot run the case, or ""."""
    if case.seqlens_q != case.seqlens_k:
        return "splits queries and keys the same way: seqlens_q and seqlens_k must be equal"
    if case.padded:
        return "supports no padding; unpad first"
    if packed != (case.layout == "packed"):
        return "takes packed rows only" if packed else "takes rows of equal length, not packed documents"
    if case.v_head_dim != case.head_dim:
        return "needs v with q's head_dim"
    if case.operands == "qkvpacked" and case.num_heads != case.num_kv_heads:
        return "q, k and v in one tensor need as many kv heads as heads"
    if case.dropout:
        return "does not support dropout (its README: the random states of all blocks would have to be kept)"
    if case.softcap:
        return "has no softcap argument"
    if case.sinks:
        return "has no sinks argument"
    if case.alibi:
        return "asserts that alibi_slopes is None"
    return explain_indivisible(sharding, case)


def ring_backend(
    name: str,
    title: str,
    sharding: Sharding,
    *,
    packed: bool = False,
    causal: bool = False,
    takes_heads_k_stride: bool = False,
) -> Backend:
    """Return the backend of the function `<name>_func` and its variants.

    `causal`: it asserts a causal mask. `takes_heads_k_stride`: llama3's argument for the number of kv heads to gather
    at a time; llama3 also sums dk and dv by a reduce-scatter.
    """

    def refuse(case: Case, device: Device) -> str:
        if causal and not case.causal:
            return "asserts that the mask is causal"
        if takes_heads_k_stride:
            return _refuse_stride(case) or refuse_ring_flash_attn(case, device, sharding, packed)
        if case.heads_k_stride:
            return "has no heads_k_stride"
        return refuse_ring_flash_attn(case, device, sharding, packed) or refuse_single_rank(case, device)

    def run(inputs: "Inputs", deterministic: bool) -> Outputs:
        from attncheck.attention.calls import ring_flash_attn

        if takes_heads_k_stride:
            return ring_flash_attn.run_llama3(inputs, deterministic)
        return (ring_flash_attn.run_packed if packed else ring_flash_attn.run_dense)(name, inputs, deterministic)

    return Backend(
        name=name,
        title=title,
        package=ring_package.DISTRIBUTION,
        installed=ring_package.installed,
        refuse=refuse,
        run=run,
        kernel_pattern=KERNEL_PATTERN,
        deterministic=DETERMINISTIC,
        deterministic_switch="argument",
        sharding=sharding,
        class_factor=reduce_scatter_factor if takes_heads_k_stride else block_factor,
    )


def _refuse_stride(case: Case) -> str:
    if case.heads_k_stride and case.num_kv_heads % case.heads_k_stride:
        return f"heads_k_stride {case.heads_k_stride} does not divide {case.num_kv_heads} kv heads"
    return ""


BACKENDS = (
    ring_backend("ring_flash_attn", "ring-flash-attn, ring", "contiguous"),
    ring_backend("ring_flash_attn_varlen", "ring-flash-attn, ring, packed", "contiguous_documents", packed=True),
    ring_backend("stripe_flash_attn", "ring-flash-attn, stripe", "stripe", causal=True),
    ring_backend("zigzag_ring_flash_attn", "ring-flash-attn, zigzag", "zigzag", causal=True),
    ring_backend(
        "zigzag_ring_flash_attn_varlen", "ring-flash-attn, zigzag, packed", "zigzag_documents", packed=True, causal=True
    ),
    ring_backend(
        "llama3_flash_attn_varlen",
        "ring-flash-attn, llama3, packed",
        "contiguous",
        packed=True,
        takes_heads_k_stride=True,
    ),
)
