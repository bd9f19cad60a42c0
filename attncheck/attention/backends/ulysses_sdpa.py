"""Ulysses with torch's SDPA: an all-to-all gives each rank all tokens of some heads, and a second one reverses it.

The two all-to-alls are attncheck's own, with `torch.distributed.all_to_all_single`. They do the same as verl's
`gather_seq_scatter_heads` and DeepSpeed's `DistributedAttention`, which are not called. This tests the group, its
collective, and the kernel with a rank's share of the heads. SDPA runs FLASH_ATTENTION. On CUDA, if that does not
support the mask, packed rows and windows run EFFICIENT_ATTENTION. If there are fewer kv heads than ranks, they are
repeated, as in verl. RoPE positions: rank r of n has positions r·S/n … (r+1)·S/n - 1 (`sharding.positions`,
"contiguous").
Source: arXiv 2309.14509; verl 0.9.1, verl/utils/ulysses.py and verl/models/transformers/monkey_patch.py
(`_ulysses_flash_attention_forward`, `apply_monkey_patch`); DeepSpeed 0.19.8, deepspeed/sequence/layer.py.
"""

from attncheck.attention.backends import (
    Backend,
    Case,
    Device,
    Installed,
    defer,
    ring_flash_attn,
    sdpa_efficient,
    sdpa_flash,
)
from attncheck.attention.calls.ulysses_heads import local_case, sdpa_backend
from attncheck.core.sharding import Sharding, explain_indivisible


def refuse_ulysses(case: Case, device: Device) -> str:
    """Return why Ulysses cannot run the case with any attention function, or ""."""
    return (
        ring_flash_attn.refuse_single_device(device)
        or _refuse_heads(case)
        or _refuse_shape(case)
        or explain_indivisible(SHARDING, case)
    )


def _refuse_heads(case: Case) -> str:
    n, heads, kv_heads = case.context_parallel_size, case.num_heads, case.num_kv_heads
    if heads % n:
        return f"distributes heads across ranks: {heads} heads are not divisible by {n} ranks"
    if kv_heads % n and n % kv_heads:
        return f"{kv_heads} kv heads are not divisible by {n} ranks, nor {n} ranks by them"
    return ""


def _refuse_shape(case: Case) -> str:
    if reason := ring_flash_attn.refuse_operands(case):
        return reason
    if case.seqlens_q != case.seqlens_k:
        return "splits queries and keys the same way: seqlens_q and seqlens_k must be equal"
    if case.padded:
        return "takes rows without padding only (verl: use_remove_padding)"
    if case.sinks or case.alibi:
        return (
            f"does not give each rank its own heads' {'sinks' if case.sinks else 'ALiBi slopes'}; "
            "neither do verl and DeepSpeed"
        )
    return "its dropout is not tested across ranks" if case.dropout else ""


def refuse(case: Case, device: Device) -> str:
    """Return why the scheme cannot run the case on `device`, or ""."""
    attending = sdpa_flash if sdpa_backend(case, device.kind) == "FLASH_ATTENTION" else sdpa_efficient
    return refuse_ulysses(case, device) or attending.refuse(local_case(case), device)


def roundings(case: Case, device: Device) -> tuple[float, float]:
    """Return SDPA's own roundings on the CPU, plus one of dk and dv if kv heads were repeated and summed."""
    dq, dkv = sdpa_flash.roundings(local_case(case), device)
    return dq, dkv + (case.context_parallel_size > case.num_kv_heads)


SHARDING: Sharding = "contiguous"
BACKEND = Backend(
    name="ulysses_sdpa",
    title="Ulysses around torch SDPA",
    package="torch",
    installed=Installed,
    refuse=refuse,
    run=defer("ulysses:run_sdpa"),
    kernel_pattern=f"{sdpa_flash.BACKEND.kernel_pattern}|{sdpa_efficient.BACKEND.kernel_pattern}",
    roundings=roundings,
    deterministic=sdpa_flash.BACKEND.deterministic,
    deterministic_switch="torch",
    sharding=SHARDING,
)
