"""TransformerEngine's context parallelism, `cp_comm_type="p2p"`: keys and values travel round a ring; CUDA only.

`DotProductAttention.set_context_parallel_group`, as Megatron calls it. TransformerEngine itself chooses flash-attn or
cuDNN's fused attention for the blocks. Its DualChunkSwap is zigzag, whatever the mask: rank r of n has chunks r and
2n-1-r of the row, or of each document (`sharding.shard_ranges`, "zigzag_documents"). Lengths must be divisible by 2n.
Source: NVIDIA/TransformerEngine at d0067d0d, pytorch/attention/dot_product_attention/context_parallel.py
(`attn_forward_func_with_cp`), dot_product_attention.py; tests/pytorch/attention/run_attention_with_cp.py.
"""

from functools import partial

from attncheck.attention.backends import Backend, Case, Device, defer, ring_flash_attn, sdpa_cudnn
from attncheck.attention.backends.flash_attention_2 import KERNEL_PATTERN
from attncheck.attention.calls.flash_attn_package import find_distribution
from attncheck.core.sharding import Sharding


def refuse(case: Case, device: Device) -> str:
    """Return why the scheme cannot run the case on `device`, or ""."""
    if device.kind == "cpu":
        return "TransformerEngine runs on CUDA only"
    if reason := ring_flash_attn.refuse_operands(case):
        return reason
    if case.dtype == "float32":
        return "takes 16-bit dtypes only"
    if case.windowed:
        return 'supports no window with "p2p"'
    packed = case.layout == "packed"
    return ring_flash_attn.refuse_single_device(device) or ring_flash_attn.refuse_features(case, SHARDING, packed)


SHARDING: Sharding = "zigzag_documents"
BACKEND = Backend(
    name="transformer_engine_ring",
    title="TransformerEngine, ring (p2p)",
    package="transformer-engine",
    installed=partial(find_distribution, "transformer_engine", "transformer-engine"),
    refuse=refuse,
    run=defer("transformer_engine:run"),
    kernel_pattern=f"{KERNEL_PATTERN}|{sdpa_cudnn.BACKEND.kernel_pattern}",
    deterministic="torch.use_deterministic_algorithms(True)",
    deterministic_switch="torch",
    sharding=SHARDING,
    class_factor=ring_flash_attn.block_factor,
)
