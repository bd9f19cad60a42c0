"""ring-flash-attn's llama3 scheme: the packed row is cut into contiguous shards, some kv heads are gathered at a time.

RoPE positions: rank r of n holds tokens r·S/n … (r+1)·S/n - 1 of the packed row, each at its position in its own
document (`sharding.positions`, "contiguous"). `heads_k_stride` must divide the kv heads. dk and dv are added up over
the ranks by a reduce-scatter in the io dtype, which costs precision: 1.25 · sqrt(1 + n/5).
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/llama3_flash_attn_varlen.py; arXiv 2407.21783, 3.3.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.backends import Backend, Device, Outputs
from attncheck.backends.flash_attention_2 import DETERMINISTIC, SEEN
from attncheck.cases import Case
from attncheck.measure import ring_package, ring_terms
from attncheck.sharding import Sharding

if TYPE_CHECKING:
    from attncheck.measure.inputs import Inputs


def refuse(case: Case, device: Device) -> str:
    """Return why the scheme cannot run the case on `device`, or ""."""
    if case.heads_k_stride and case.num_kv_heads % case.heads_k_stride:
        return f"heads_k_stride {case.heads_k_stride} does not divide {case.num_kv_heads} kv heads"
    return ring_terms.refuse(case, device, SHARDING, packed=True)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run this rank's shard."""
    from attncheck.measure import ring_call

    return ring_call.llama3(inputs, deterministic)


def call(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it on a rank's shard."""
    from attncheck.measure import ring_script

    return ring_script.lines("llama3_flash_attn_varlen", SHARDING, case)


SHARDING: Sharding = "contiguous"
BACKEND = Backend(
    name="llama3_flash_attn_varlen",
    title="ring-flash-attn, llama3, packed",
    package="ring-flash-attn",
    find=ring_package.find,
    refuse=refuse,
    run=run,
    call=call,
    seen=SEEN,
    deterministic=DETERMINISTIC,
    switch="argument",
    sharding=SHARDING,
    class_factor=ring_terms.reduce_scatter_factor,
)
