"""Ulysses with flash-attn 2: an all-to-all gives each rank all tokens of some heads, and a second one reverses it.

Packed rows go to `flash_attn_varlen_func` with the cu_seqlens of the whole row, as in verl; dense ones go to
`flash_attn_func`. `ulysses_sdpa` has the all-to-alls and names the sources.
"""

from dataclasses import replace

from attncheck.attention.backends import Backend, Case, Device, defer, flash_attention_2
from attncheck.attention.backends.ulysses_sdpa import SHARDING, refuse_ulysses
from attncheck.attention.calls.ulysses_heads import local_case

EMULATED_CAPABILITY = (9, 0)  # the emulated kernels accept the same arguments as the real ones on this GPU


def refuse(case: Case, device: Device) -> str:
    """Return why the scheme cannot run the case on `device`, or ""."""
    gpu = replace(device, kind="cuda", compute_capability=EMULATED_CAPABILITY) if device.emulated else device
    return refuse_ulysses(case, device) or flash_attention_2.refuse_any_layout(local_case(case), gpu)


def roundings(case: Case, device: Device) -> tuple[float, float]:
    """Return one additional rounding of dk and dv if kv heads were repeated: the repeats' sum is rounded."""
    return 0.0, float(case.context_parallel_size > case.num_kv_heads)


BACKEND = Backend(
    name="ulysses_flash_attn",
    title="Ulysses around flash-attn 2",
    package="flash-attn",
    installed=flash_attention_2.installed,
    refuse=refuse,
    run=defer("ulysses:run_flash_attn"),
    kernel_pattern=flash_attention_2.KERNEL_PATTERN,
    roundings=roundings,
    indexes_by_cu_seqlens=True,
    deterministic=flash_attention_2.DETERMINISTIC,
    deterministic_switch="argument",
    sharding=SHARDING,
)
