"""Calls TransformerEngine's DotProductAttention on a rank's shard, with keys and values sent round the ring."""

import importlib
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs, Refused
from attncheck.attention.calls.common import backward, deterministic_algorithms, make_leaves
from attncheck.attention.inputs import Inputs


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run a rank's shard, forward and backward."""
    case, leaves = inputs.case, make_leaves(inputs)
    operands: tuple[Tensor, ...] = leaves
    documents: dict[str, Any] = {}
    if case.layout == "packed":
        operands = tuple(x[0] for x in leaves)
        cu_seqlens = masks.build_cu_seqlens(case.seqlens_q, inputs.device)  # of the whole row
        names = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
        documents = {**dict.fromkeys(names, cu_seqlens), "pad_between_seqs": False}
        documents |= dict.fromkeys(("max_seqlen_q", "max_seqlen_kv"), max(case.seqlens_q))
    shape = (case.num_heads, case.num_kv_heads, case.head_dim, case.softmax_scale)
    with deterministic_algorithms(deterministic):
        attention = _make_attention(shape, case.layout == "packed", case.causal, deterministic, inputs.group)
        try:
            out = attention(*operands, **documents)
        except Exception as error:
            if "No dot product attention" in str(error):
                raise Refused(str(error).splitlines()[0]) from None
            raise
        return backward(inputs, out.view(*inputs.q.shape[:3], case.v_head_dim), leaves)


@cache
def _make_attention(
    shape: tuple[int, int, int, float], packed: bool, causal: bool, deterministic: bool, group: Any
) -> Any:
    """Return the module over the group's ranks; when it is made it reads whether it must be `deterministic`."""
    heads, kv_heads, head_dim, scale = shape
    mask = ("padding_causal" if causal else "padding") if packed else "causal" if causal else "no_mask"
    attention = importlib.import_module("transformer_engine.pytorch").DotProductAttention(
        heads,
        head_dim,
        num_gqa_groups=kv_heads,
        qkv_format="thd" if packed else "bshd",
        attn_mask_type=mask,
        softmax_scale=scale,
    )
    group = dist.group.WORLD if group is None else group
    stream = torch.cuda.Stream() if torch.cuda.is_available() else None
    attention.set_context_parallel_group(group, dist.get_process_group_ranks(group), stream, "p2p")
    return attention
