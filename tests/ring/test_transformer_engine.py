"""TransformerEngine's ring through a stand-in: its module runs on CUDA alone, so its interface is imitated in torch.

What is tested is our call: the tokens of each rank, the masks' names, cu_seqlens of the whole row, the group.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.attention.backend import Device
from attncheck.attention.backends import transformer_engine_ring
from attncheck.core.cases import Case, with_name
from attncheck.core.verdicts import Run, judge_run
from attncheck.ring.bench import SCHEMES
from tests.plugins import write_plugin
from tests.ring.on_ranks import measure_items

pytest.importorskip("torch")
RANKS = 2
CUDA = Device("cuda", compute_capability=(9, 0), torch=(99, 0), ranks=RANKS)
STAND_IN = '''
"""DotProductAttention as TransformerEngine d0067d0d declares it, for p2p: keys are gathered, not sent round."""
import torch
import torch.distributed as dist


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad[dist.get_rank(ctx.group)], None


def tokens_of(rank, n, edges):
    """DualChunkSwap: two chunks of each sequence."""
    spans = [torch.arange(a, b).chunk(2 * n) for a, b in zip(edges, edges[1:])]
    return torch.cat([torch.cat([chunks[rank], chunks[2 * n - 1 - rank]]) for chunks in spans])


class DotProductAttention:
    def __init__(self, num_attention_heads, kv_channels, num_gqa_groups=None, *, qkv_format="sbhd",
                 attn_mask_type="causal", softmax_scale=None):
        self.group = num_attention_heads // num_gqa_groups
        self.format, self.mask, self.scale = qkv_format, attn_mask_type, softmax_scale
        assert qkv_format in ("bshd", "thd") and ("padding" in attn_mask_type) == (qkv_format == "thd")

    def set_context_parallel_group(self, cp_group, cp_global_ranks, cp_stream, cp_comm_type="p2p"):
        assert isinstance(cp_group, dist.ProcessGroup) and cp_comm_type == "p2p"
        assert list(cp_global_ranks) == dist.get_process_group_ranks(cp_group)
        self.cp_group = cp_group

    def __call__(self, q, k, v, cu_seqlens_q=None, cu_seqlens_kv=None, cu_seqlens_q_padded=None,
                 cu_seqlens_kv_padded=None, max_seqlen_q=None, max_seqlen_kv=None, pad_between_seqs=None):
        n, rank = dist.get_world_size(self.cp_group), dist.get_rank(self.cp_group)
        packed = self.format == "thd"
        assert not packed or (cu_seqlens_q_padded is not None and cu_seqlens_kv_padded is not None)
        q, k, v = (x[None] if packed else x for x in (q, k, v))
        length = n * q.shape[1]
        edges = cu_seqlens_q.tolist() if packed else [0, length]
        assert edges[-1] == length and (not packed or max_seqlen_q == max(b - a for a, b in zip(edges, edges[1:])))
        order = torch.cat([tokens_of(r, n, edges) for r in range(n)])
        rows, tokens = tokens_of(rank, n, edges), torch.arange(length)
        document = torch.bucketize(tokens, torch.tensor(edges[1:-1]), right=True)
        k, v = (Gather.apply(x.float(), self.cp_group).transpose(0, 1).flatten(1, 2) for x in (k, v))
        k, v = (x[:, order.argsort()] for x in (k, v))
        k, v = (x.repeat_interleave(self.group, 2).transpose(1, 2) for x in (k, v))
        visible = document[rows][:, None] == document
        if "causal" in self.mask:
            visible = visible & (tokens <= rows[:, None])
        scores = (q.float().transpose(1, 2) @ k.mT * self.scale).masked_fill(~visible, float("-inf"))
        out = (scores.softmax(-1) @ v).transpose(1, 2).to(q.dtype).flatten(2)
        return out[0] if packed else out
'''
PLUGIN = """
from dataclasses import replace
from unittest import mock
from attncheck.attention.backends import transformer_engine_ring

def run(inputs, deterministic):
    from attncheck.attention.calls import transformer_engine
    {change}
    return transformer_engine.run(inputs, deterministic)

BACKEND = replace(transformer_engine_ring.BACKEND, name="{name}", run=run, refuse=lambda case, device: "")
"""
CHANGES = {  # nothing, and what a wrong call would do
    "te_stand_in": "",
    "te_other_order": "inputs = replace(inputs, **{x: getattr(inputs, x).flip(1) for x in 'qkv'})",
}


def make_cases() -> tuple[Case, ...]:
    dense = Case("dense", (64,), (64,), num_kv_heads=2, head_dim=32, v_head_dim=32, context_parallel_size=RANKS)
    packed = replace(dense, seqlens_q=(24, 4, 36), seqlens_k=(24, 4, 36), layout="packed", dtype="float16", scale=0.3)
    batch = replace(dense, seqlens_q=(32, 32), seqlens_k=(32, 32), causal=False)
    return tuple(map(with_name, (dense, packed, batch, replace(packed, causal=False))))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    """Return all runs, of one group of ranks."""
    folder = tmp_path_factory.mktemp("stand_in")
    package = folder / "transformer_engine" / "pytorch"
    package.mkdir(parents=True)
    Path(package.parent, "__init__.py").write_text("")
    Path(package, "__init__.py").write_text(STAND_IN)
    for name, change in CHANGES.items():
        write_plugin(folder, name, PLUGIN.format(name=name, change=change))
    items = [(name, case.name) for name in CHANGES for case in make_cases()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))))
        return measure_items(RANKS, items, make_cases())


@pytest.mark.parametrize("case", make_cases(), ids=lambda case: case.name)
def test_each_rank_gives_its_tokens_and_the_whole_rows_documents(case: Case, runs: dict[tuple[str, str], Run]) -> None:
    right, wrong = (runs[name, case.name] for name in CHANGES)
    assert judge_run(right).answer == "pass", judge_run(right)
    assert {score.tensor for score in right.scores} == {"out", "dq", "dk", "dv"}
    assert judge_run(wrong).answer == "fail", wrong


def test_what_it_refuses() -> None:
    plain = make_cases()[0]
    assert not transformer_engine_ring.refuse(plain, CUDA)
    assert not transformer_engine_ring.refuse(make_cases()[1], CUDA)
    for changed, word in (
        ({"window_size": (8, 0)}, "window"),
        ({"operands": "kvpacked"}, "separate"),
        ({"dtype": "float32"}, "16-bit"),
        ({"sinks": True}, "sinks"),
        ({"seqlens_q": (62,), "seqlens_k": (62,)}, "divisible"),
    ):
        assert word in transformer_engine_ring.refuse(replace(plain, **changed), CUDA)
    assert "--ring-size" in transformer_engine_ring.refuse(plain, replace(CUDA, ranks=0))
    assert "CUDA" in transformer_engine_ring.refuse(plain, replace(CUDA, kind="cpu"))


def test_it_is_timed_beside_the_others_and_named_where_it_is_missing() -> None:
    assert all("transformer_engine_ring" in schemes for schemes in SCHEMES.values())
    assert "transformer-engine is not installed" in transformer_engine_ring.BACKEND.installed().missing
