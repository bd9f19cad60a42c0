"""ring-flash-attn's zigzag ring: two chunks a rank, an early and a late one, so that causal work is even.

RoPE positions: rank r of n holds chunks r and 2n-1-r of 2n (`sharding.positions`, "zigzag").
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/zigzag_ring_flash_attn.py, which asserts `causal`.
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
    if not case.causal:
        return "asserts that the mask is causal"
    if case.heads_k_stride:
        return "has no heads_k_stride"
    return ring_terms.refuse(case, device, SHARDING, packed=False) or ring_terms.sends_to_itself(case, device)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run this rank's shard."""
    from attncheck.measure import ring_call

    return ring_call.dense("zigzag_ring_flash_attn", inputs, deterministic)


def call(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it on a rank's shard."""
    from attncheck.measure import ring_script

    return ring_script.lines("zigzag_ring_flash_attn", SHARDING, case)


SHARDING: Sharding = "zigzag"
BACKEND = Backend(
    name="zigzag_ring_flash_attn",
    title="ring-flash-attn, zigzag",
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
