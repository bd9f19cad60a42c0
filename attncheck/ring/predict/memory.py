"""Estimates the GPU memory that a scheme needs beyond its inputs, from the buffers that its code holds at its peak.

flash-attn's backward holds dq in float32. With fewer kv heads than heads it also holds dk and dv of every head. One
H200 measured 419 MiB at 8,192 tokens of 32/8 heads; these formulas give 416. For llama3 on four H200, 334, 474, 756 and
1,220 MiB with strides 1, 2, 4 and 8 are predicted within 3 %.
"""

from attncheck.core.results.ring_timings import Passes
from attncheck.ring.predict.schedules import LLAMA3, ULYSSES, kv_elements, q_elements
from attncheck.ring.roofline import Shape


def estimate_memory(scheme: str, passes: Passes, shape: Shape, ring_size: int, heads_k_stride: int = 0) -> int:
    """Return the bytes that one GPU needs beyond q, k, v and dout; `shape` is a rank's share."""
    q, kv = q_elements(shape) * shape.bytes, kv_elements(shape) * shape.bytes
    backward = passes == "forward_backward"
    if ring_size == 1:
        return round(2 * q + kv + _flash_backward(shape, q, 1.0) if backward else q)
    if scheme == LLAMA3:
        return _estimate_llama3(backward, shape, q, kv, ring_size, heads_k_stride or shape.num_kv_heads)
    if scheme == ULYSSES:
        repeated = kv * max(1, ring_size // shape.num_kv_heads)
        there = 2 * (q + repeated) + 2 * q  # packed and received; out before and after
        return round(there + (3 * q + 2 * repeated + _flash_backward(shape, q, 1.0) if backward else 0))
    forward = 7 * q + 2 * kv  # float32: out, the block and their sum; the block itself; the arriving k and v
    if not backward:
        return round(forward)
    # out, dq of a block, dq in float32; dk and dv of a block, three pairs of them in float32 in transit, k and v twice
    return round(max(forward, 4 * q + 9 * kv + kv + _flash_backward(shape, q, 1.0)))


def _estimate_llama3(backward: bool, shape: Shape, q: float, kv: float, ring_size: int, heads_k_stride: int) -> int:
    share = heads_k_stride / shape.num_kv_heads
    gathered = kv * share * ring_size
    if not backward:
        return round(2 * q + 2 * gathered + kv * share)  # out by stride and as a whole, two buffers, the data to send
    contiguous = 2 * kv * share if share < 1 else 0.0
    # dk and dv are returned separately and in one tensor, as the function for joint k and v takes them
    return round(2 * q + 2 * kv + 3 * gathered + contiguous + _flash_backward(shape, q * share, ring_size))


def _flash_backward(shape: Shape, q: float, key_lengths: float) -> float:
    """Return the bytes that flash-attn's backward holds: dq in float32, and dk and dv of each head."""
    return 2 * q + (2 * q * key_lengths if shape.num_heads != shape.num_kv_heads else 0.0)
