# mypy: ignore-errors
# Triton has no type stubs, and parameters of a kernel are not what they are annotated as.
"""The Triton kernels of `triton_kernels`: attention forward and backward, with a switch for planted faults.

After Triton's tutorial 06 (fused attention): scores in base 2, float32 running maximum, sum and accumulators, P and dS
rounded to the io dtype for their products. One program owns a block of queries (forward, dq) or of keys (dk, dv) of one
query head; nothing is tuned. `fault` names the fault that is compiled in, "" none.
"""

import triton
import triton.language as tl


@triton.jit
def tile(base, places, size, stride, head_dim: tl.constexpr):
    """Load rows of `places` of one head; those past the end are zero."""
    columns = tl.arange(0, head_dim)
    return tl.load(base + places[:, None] * stride + columns[None, :], mask=places[:, None] < size, other=0.0)


@triton.jit
def store(base, places, size, stride, values, head_dim: tl.constexpr):
    """Store rows of one head."""
    columns = tl.arange(0, head_dim)
    where = base + places[:, None] * stride + columns[None, :]
    tl.store(where, values.to(base.dtype.element_ty), mask=places[:, None] < size)


@triton.jit
def kv_head(head, num_heads: tl.constexpr, group: tl.constexpr, fault: tl.constexpr):
    """Return the kv head of a query head."""
    own = head // group
    if fault == "kv_heads_tiled":
        own = head % (num_heads // group)
    return own


@triton.jit
def scores(q, k, rows, keys, seqlen_k, offset, scale, causal: tl.constexpr, fault: tl.constexpr):
    """Return masked scores in base 2."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = (keys[None, :] < seqlen_k) & (rows[:, None] >= 0)
    if fault == "tail_of_zeros":
        seen = (keys[None, :] >= 0) & (rows[:, None] >= 0)
    if causal:
        last = rows[:, None] + offset
        if fault == "causal_future":
            last = last + 1
        seen = seen & (keys[None, :] <= last)
    return tl.where(seen, s, float("-inf"))


@triton.jit
def forward(
    q, k, v, out, lse, scale,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, o_batch, o_row, o_head,
    seqlen_q, seqlen_k, offset,
    num_heads: tl.constexpr, group: tl.constexpr, head_dim: tl.constexpr, block_q: tl.constexpr, block_k: tl.constexpr,
    causal: tl.constexpr, fault: tl.constexpr,
):  # fmt: skip
    """Compute out and LSE of a block of queries."""
    batch = (tl.program_id(1) // num_heads).to(tl.int64)
    head = (tl.program_id(1) % num_heads).to(tl.int64)
    own = kv_head(head, num_heads, group, fault)
    rows = tl.program_id(0) * block_q + tl.arange(0, block_q)
    queries = tile(q + batch * q_batch + head * q_head, rows, seqlen_q, q_row, head_dim)
    k_base = k + batch * k_batch + own * k_head
    v_base = v + batch * v_batch + own * v_head
    top = tl.full([block_q], float("-inf"), tl.float32)
    total = tl.zeros([block_q], tl.float32)
    acc = tl.zeros([block_q, head_dim], tl.float32)
    stop = seqlen_k
    if fault == "last_block_dropped":
        stop = (seqlen_k - 1) // block_k * block_k
    for start in range(0, stop, block_k):
        keys = start + tl.arange(0, block_k)
        s = scores(
            queries, tile(k_base, keys, seqlen_k, k_row, head_dim), rows, keys, seqlen_k, offset, scale, causal, fault
        )
        higher = tl.maximum(top, tl.max(s, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - shift[:, None])
        shrink = tl.exp2(top - shift)
        total = total * shrink + tl.sum(p, 1)
        if fault != "out_not_rescaled":
            acc = acc * shrink[:, None]
        places = keys
        if fault == "stale_values":
            places = tl.where(keys >= block_k, keys - block_k, keys)
        values = tile(v_base, places, seqlen_k, v_row, head_dim)
        acc += tl.dot(p.to(values.dtype), values, input_precision="ieee")
        top = higher
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    store(out + batch * o_batch + head * o_head, rows, seqlen_q, o_row, acc, head_dim)
    sums = tl.where(total == 0.0, float("-inf"), top + tl.log2(tl.where(total == 0.0, 1.0, total)))
    if fault != "lse_base_2":
        sums = sums * 0.6931471805599453
    tl.store(lse + tl.program_id(1).to(tl.int64) * seqlen_q + rows, sums, mask=rows < seqlen_q)


@triton.jit
def p_and_ds(
    queries, keys_, values, douts, rows, keys, lse, delta, seqlen_q, seqlen_k, offset, scale,
    causal: tl.constexpr, fault: tl.constexpr,
):  # fmt: skip
    """Return P and dS of a tile, in float32; `lse` and `delta` point at the head's first row."""
    s = scores(queries, keys_, rows, keys, seqlen_k, offset, scale, causal, fault)
    sums = tl.load(lse + rows, mask=rows < seqlen_q, other=float("-inf")) * 1.4426950408889634
    p = tl.exp2(s - tl.where(sums == float("-inf"), 0.0, sums)[:, None])
    p = tl.where(rows[:, None] < seqlen_q, p, 0.0)
    dp = tl.dot(douts, tl.trans(values), input_precision="ieee")
    if fault != "delta_missing":
        dp = dp - tl.load(delta + rows, mask=rows < seqlen_q, other=0.0)[:, None]
    return p, p * dp


@triton.jit
def gradients_of_keys(
    q, k, v, dout, lse, delta, dk, dv, scale, softmax_scale,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, o_batch, o_row, o_head,
    d_batch, d_row, d_head, seqlen_q, seqlen_k, offset,
    num_heads: tl.constexpr, group: tl.constexpr, head_dim: tl.constexpr, block_q: tl.constexpr, block_k: tl.constexpr,
    causal: tl.constexpr, fault: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of a block of keys, for one query head."""
    batch = (tl.program_id(1) // num_heads).to(tl.int64)
    head = (tl.program_id(1) % num_heads).to(tl.int64)
    own = kv_head(head, num_heads, group, fault)
    keys = tl.program_id(0) * block_k + tl.arange(0, block_k)
    keys_ = tile(k + batch * k_batch + own * k_head, keys, seqlen_k, k_row, head_dim)
    values = tile(v + batch * v_batch + own * v_head, keys, seqlen_k, v_row, head_dim)
    line = tl.program_id(1).to(tl.int64) * seqlen_q
    sum_k = tl.zeros([block_k, head_dim], tl.float32)
    sum_v = tl.zeros([block_k, head_dim], tl.float32)
    for start in range(0, seqlen_q, block_q):
        rows = start + tl.arange(0, block_q)
        queries = tile(q + batch * q_batch + head * q_head, rows, seqlen_q, q_row, head_dim)
        douts = tile(dout + batch * o_batch + head * o_head, rows, seqlen_q, o_row, head_dim)
        p, ds = p_and_ds(
            queries, keys_, values, douts, rows, keys, lse + line, delta + line, seqlen_q, seqlen_k, offset, scale,
            causal, fault,
        )  # fmt: skip
        if fault == "dv_lost_block":
            p = tl.where(rows[:, None] >= block_q, p, 0.0)
        sum_v += tl.dot(tl.trans(p).to(douts.dtype), douts, input_precision="ieee")
        sum_k += tl.dot(tl.trans(ds).to(queries.dtype), queries, input_precision="ieee")
    place = batch * d_batch + head * d_head
    store(dk + place, keys, seqlen_k, d_row, sum_k * softmax_scale, head_dim)
    store(dv + place, keys, seqlen_k, d_row, sum_v, head_dim)


@triton.jit
def gradient_of_queries(
    q, k, v, dout, lse, delta, dq, scale, softmax_scale,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, o_batch, o_row, o_head,
    d_batch, d_row, d_head, seqlen_q, seqlen_k, offset,
    num_heads: tl.constexpr, group: tl.constexpr, head_dim: tl.constexpr, block_q: tl.constexpr, block_k: tl.constexpr,
    causal: tl.constexpr, fault: tl.constexpr,
):  # fmt: skip
    """Compute dq of a block of queries."""
    batch = (tl.program_id(1) // num_heads).to(tl.int64)
    head = (tl.program_id(1) % num_heads).to(tl.int64)
    own = kv_head(head, num_heads, group, fault)
    rows = tl.program_id(0) * block_q + tl.arange(0, block_q)
    queries = tile(q + batch * q_batch + head * q_head, rows, seqlen_q, q_row, head_dim)
    douts = tile(dout + batch * o_batch + head * o_head, rows, seqlen_q, o_row, head_dim)
    line = tl.program_id(1).to(tl.int64) * seqlen_q
    sum_q = tl.zeros([block_q, head_dim], tl.float32)
    for start in range(0, seqlen_k, block_k):
        keys = start + tl.arange(0, block_k)
        keys_ = tile(k + batch * k_batch + own * k_head, keys, seqlen_k, k_row, head_dim)
        values = tile(v + batch * v_batch + own * v_head, keys, seqlen_k, v_row, head_dim)
        _, ds = p_and_ds(
            queries, keys_, values, douts, rows, keys, lse + line, delta + line, seqlen_q, seqlen_k, offset, scale,
            causal, fault,
        )  # fmt: skip
        sum_q += tl.dot(ds.to(keys_.dtype), keys_, input_precision="ieee")
    if fault != "dq_not_scaled":
        sum_q = sum_q * softmax_scale
    store(dq + batch * d_batch + head * d_head, rows, seqlen_q, d_row, sum_q, head_dim)
