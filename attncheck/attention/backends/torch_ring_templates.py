"""torch's private ring templates around the CPU's flash operator: the ring of `context_parallel`, without a GPU.

`context_parallel` itself fails on the CPU, because a sharding strategy is missing; the ring below it takes any
operator. This tests torch's schedule, merging and communication with the CPU's operator; kv heads are repeated first.
The templates are private, so any release may change them; torch 2.11 to 2.13 were read.
Source: torch 2.13, torch/distributed/tensor/experimental/_context_parallel/_attention.py (`_templated_ring_attention`,
`_templated_ring_attention_backward`).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.attention.backends import Backend, Case, Device, Installed, Outputs, ring_flash_attn, sdpa_flash
from attncheck.attention.backends.torch_context_parallel import SHARDING, refuse_ring

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs

MIN_TORCH = (2, 11)


def refuse(case: Case, device: Device) -> str:
    """Return why the templates cannot run the case on `device`, or ""."""
    if device.kind != "cpu":
        return "torch_context_parallel runs the same ring through its public interface on CUDA"
    if device.torch < MIN_TORCH:
        return "torch's templates are private; attncheck supports those of torch 2.11 and newer"
    return refuse_ring(case, device) or sdpa_flash.refuse(case, device)


def roundings(case: Case, device: Device) -> tuple[float, float]:
    """Return the roundings of the CPU's operator on a rank's block, plus one for the sum over repeated kv heads."""
    length = case.seqlen_q // case.context_parallel_size
    block = replace(case, seqlens_q=(length,), seqlens_k=(length,), num_kv_heads=case.num_heads)
    dq, dkv = sdpa_flash.roundings(block, device)
    return dq, dkv + (case.num_heads != case.num_kv_heads)


def run(inputs: "Inputs", deterministic: bool) -> Outputs:
    """Run this rank's shard."""
    from attncheck.attention.calls import torch_context_parallel

    return torch_context_parallel.run_templates(inputs)


BACKEND = Backend(
    name="torch_ring_templates",
    title="torch's ring templates",
    package="torch",
    installed=Installed,
    refuse=refuse,
    run=run,
    roundings=roundings,
    sharding=SHARDING,
    class_factor=ring_flash_attn.block_factor,
)
