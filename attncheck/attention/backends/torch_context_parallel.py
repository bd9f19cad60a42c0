"""torch's own context parallelism: `context_parallel` turns SDPA into a ring over the group; CUDA only.

Its load balancing, on by default, is zigzag: rank r of n has chunks r and 2n-1-r of the row, at their positions in it
(`sharding.positions`, "zigzag"). It silently shards a row contiguously if its length is not a multiple of 2n. The
backend pins FLASH_ATTENTION and checks, with a sharded tensor of positions, that torch puts tokens on the expected
ranks. Source: torch 2.13, torch/distributed/tensor/experimental/_context_parallel/_attention.py (`context_parallel`,
`_templated_ring_attention`, `_sdpa_handler`, which supports CUDA's flash, efficient and cuDNN operators) and
_load_balancer.py (`_create_default_load_balancer`).
"""

from attncheck.attention.backends import Backend, Case, Device, Installed, defer, ring_flash_attn, sdpa_flash
from attncheck.core.sharding import Sharding, explain_indivisible


def refuse_ring(case: Case, device: Device) -> str:
    """Return why torch's ring, through its public interface or its templates, cannot run the case, or ""."""
    return (
        ring_flash_attn.refuse_single_device(device)
        or _refuse_mask(case)
        or _refuse_shape(case)
        or explain_indivisible(SHARDING, case)
    )


def _refuse_mask(case: Case) -> str:
    if not case.causal:
        return 'torch: "Load balancing requires `is_causal=True`", and it is on unless a private option is changed'
    if case.layout == "packed" or case.windowed or case.alibi:
        feature = "packed documents" if case.layout == "packed" else "window" if case.windowed else "ALiBi"
        return f'supports no {feature}: its ring takes no mask (torch: "attn_bias is not supported yet")'
    if case.dropout:
        return "keeps only the last block's random state of a ring, so gradients of dropout would be wrong"
    return ""


def _refuse_shape(case: Case) -> str:
    if reason := ring_flash_attn.refuse_operands(case):
        return reason
    if case.seqlens_q != case.seqlens_k:
        return 'torch: "is_causal requires the same query and context sequence lengths"'
    return "knows no padding" if case.padded else ""


def refuse(case: Case, device: Device) -> str:
    """Return why the scheme cannot run the case on `device`, or ""."""
    if device.kind == "cpu":
        return (
            "torch has no sharding strategy for the CPU's operator (_scaled_dot_product_flash_attention_for_cpu); "
            "torch_ring_templates runs the ring below it"
        )
    return refuse_ring(case, device) or sdpa_flash.refuse(case, device)


SHARDING: Sharding = "zigzag"
BACKEND = Backend(
    name="torch_context_parallel",
    title="torch context_parallel, ring",
    package="torch",
    installed=Installed,
    refuse=refuse,
    run=defer("torch_context_parallel:run_context_parallel"),
    kernel_pattern=sdpa_flash.BACKEND.kernel_pattern,
    deterministic=sdpa_flash.BACKEND.deterministic,
    deterministic_switch="torch",
    sharding=SHARDING,
    class_factor=ring_flash_attn.block_factor,
)
