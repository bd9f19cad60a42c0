"""ring-flash-attn's plain ring over packed documents: each document is sharded by itself, over all ranks.

RoPE positions: rank r of n holds, of a document of length s, positions r·s/n … (r+1)·s/n - 1 (`sharding.positions`,
"contiguous_documents"). One `cu_seqlens` serves queries and keys.
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/ring_flash_attn_varlen.py.
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
    if case.heads_k_stride:
        return "has no heads_k_stride"
    return ring_terms.refuse(case, device, SHARDING, packed=True) or ring_terms.sends_to_itself(case, device)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run this rank's shard."""
    from attncheck.measure import ring_call

    return ring_call.packed("ring_flash_attn_varlen", inputs, deterministic)


def call(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it on a rank's shard."""
    from attncheck.measure import ring_script

    return ring_script.lines("ring_flash_attn_varlen", SHARDING, case)


SHARDING: Sharding = "contiguous_documents"
BACKEND = Backend(
    name="ring_flash_attn_varlen",
    title="ring-flash-attn, ring, packed",
    package="ring-flash-attn",
    find=ring_package.find,
    refuse=refuse,
    run=run,
    call=call,
    seen=SEEN,
    deterministic=DETERMINISTIC,
    switch="argument",
    sharding=SHARDING,
    class_factor=ring_terms.block_factor,
)
