"""USP (unified sequence parallelism) of yunchang: Ulysses within groups of ranks, a zigzag ring across them.

`LongContextAttention(ring_impl_type="zigzag")` around flash-attn 2. Of n ranks, `core.sharding.usp_degrees` form a
Ulysses group, as many as divide the heads but fewer than n, so that there is a ring. RoPE positions: the row is cut
into 2r chunks for r Ulysses groups; group g holds chunks g and 2r-1-g, and its ranks hold equal parts of them in order
(`sharding.shard_ranges`, "usp").
Source: arXiv 2405.07719; yunchang 0.6.4, hybrid/attn_layer.py (`LongContextAttention`), globals.py
(`set_seq_parallel_pg`), comm/extract_local.py (`zigzag_extract_local`).
"""

from dataclasses import replace
from functools import partial

from attncheck.attention.backends import Backend, Case, Device, defer, ring_flash_attn
from attncheck.attention.backends.flash_attention_2 import DETERMINISTIC, KERNEL_PATTERN
from attncheck.attention.calls.flash_attn_package import find_distribution
from attncheck.core.sharding import Sharding


def refuse(case: Case, device: Device) -> str:
    """Return why the scheme cannot run the case on `device`, or ""."""
    if not case.causal:
        return "its zigzag asserts that the mask is causal"
    capped = replace(case, softcap=0.0)  # unlike ring-flash-attn's, its functions take a softcap
    return (
        ring_flash_attn.refuse_operands(case)
        or ring_flash_attn.refuse_ring_flash_attn(capped, device, SHARDING, packed=False)
        or ring_flash_attn.refuse_single_rank(case, device)
    )


SHARDING: Sharding = "usp"
BACKEND = Backend(
    name="yunchang_usp",
    title="yunchang, USP",
    package="yunchang",
    installed=partial(find_distribution, "yunchang", "yunchang"),
    refuse=refuse,
    run=defer("yunchang:run"),
    kernel_pattern=KERNEL_PATTERN,
    deterministic=DETERMINISTIC,
    deterministic_switch="argument",
    sharding=SHARDING,
    class_factor=ring_flash_attn.block_factor,
)
