"""Stand-ins for attention packages that need a GPU: the signatures of their releases, answered by torch in float32.

What they compute is written down here once more, from flash-attn's and xformers' documentation, so that a fault in how
attncheck calls them (layout, cu_seqlens, window, scale, sinks) shows as a wrong answer. `CALLS` holds each call's
arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

CALLS: list[dict[str, Any]] = []
OutAndLse = tuple[Tensor, Tensor]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool = False,
    window: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    added: Tensor | None = None,
    bottom_right: bool = True,
) -> OutAndLse:
    """Return out in q's dtype and the float32 LSE (batch, heads, seqlen) of (batch, seqlen, heads, head_dim)."""
    query, key, value = (x.float().transpose(1, 2) for x in (q, k, v))
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if added is not None:
        scores = scores + added.float()
    shift = k.shape[1] - q.shape[1] if bottom_right else 0
    distance = torch.arange(k.shape[1])[None, :] - torch.arange(q.shape[1])[:, None] - shift
    left, right = (side if side is not None and side >= 0 else None for side in window)
    visible = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        visible &= distance <= 0
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    scores = scores.masked_fill(~visible, -math.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)), -1)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse[..., None].masked_fill(lse[..., None] == -math.inf, 0.0))
    out = weights[..., : k.shape[1]] @ value
    return out.transpose(1, 2).to(q.dtype), lse


def attend_documents(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *args: Any, **kwargs: Any
) -> OutAndLse:
    """Return out (tokens, heads, head_dim) and LSE (heads, tokens) of documents packed one after another."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    outs, lses = [], []
    for i in range(len(cu_q) - 1):
        a, b, c, d = (int(x) for x in (cu_q[i], cu_q[i + 1], cu_k[i], cu_k[i + 1]))
        out, lse = attend(q[None, a:b], k[None, c:d], v[None, c:d], *args, **kwargs)
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, -1)


# Signatures as they are in the releases. hopper/flash_attn_interface.py of Dao-AILab/flash-attention:
SCALES = "q_descale=None, k_descale=None, v_descale=None"
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
REST_28 = "softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0"
FA3_27 = "softmax_scale=None, causal=False, window_size=(-1, -1), deterministic=False"
FA3_28 = f"softmax_scale=None, causal=False, qv=None, {SCALES}, window_size=(-1, -1), attention_chunk=0, {REST_28}"
FA3_MAIN = f"{FA3_28}, return_attn_probs=False"
# vllm-flash-attn3/torch-ext/vllm_flash_attn3/flash_attn_interface.py of huggingface/kernels-community:
FA3_VLLM = f"softmax_scale=None, causal=False, qv=None, {SCALES}, window_size=(-1, -1), {REST_28}, s_aux=None"
# flash_attn/flash_attn_interface.py of flash-attn 2.8.3:
FA2 = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False"
)
# flash_attn/cute/interface.py of flash-attn-4 4.0.0b36:
FA4 = (
    "softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, "
    "pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, aux_tensors=None, "
    "return_lse=False"
)
FA4_LENGTHS = (
    "qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None, "
    "seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None"
)
SEQUSED = "seqused_q=None, seqused_k=None"


def fa3_v27() -> ModuleType:
    """Return v2.7.0's module: no soft-cap, (out, lse)."""
    return _make_module("flash_attn_interface", FA3_27, f"{LENGTHS}, {FA3_27}", always_lse=True)


def fa3_v28(with_lse: bool) -> ModuleType:
    """Return v2.8.0's module, with LSE, or v2.8.3's, which has the same signature and returns out alone."""
    return _make_module("flash_attn_interface", FA3_28, f"{LENGTHS}, {SEQUSED}, {FA3_28}", always_lse=with_lse)


def fa3_main(name: str = "flash_attn_interface") -> ModuleType:
    """Return main's module, which refuses to be deterministic beyond a head_dim of 192."""
    return _make_module(name, FA3_MAIN, f"{LENGTHS}, {SEQUSED}, {FA3_MAIN}", limit=192)


def fa3_vllm() -> ModuleType:
    """Return the module of vLLM's build of the Hub."""
    return _make_module("vllm_flash_attn3", FA3_VLLM, f"{LENGTHS}, {SEQUSED}, {FA3_VLLM}", always_lse=True)


def fa2_hub() -> ModuleType:
    """Return the module of the Hub's build of flash-attn 2."""
    return _make_module("flash_attn2", FA2, f"{LENGTHS}, {FA2}")


def fa4() -> ModuleType:
    """Return flash-attn-4's module, whose functions always return (out, lse)."""
    return _make_module(
        "flash_attn.cute", f"qv=None, gather_kv_indices=None, {FA4}", f"{FA4_LENGTHS}, {FA4}", always_lse=True
    )


def _make_module(name: str, dense: str, packed: str, always_lse: bool = False, limit: int = 1 << 30) -> ModuleType:
    """Return a module with the two functions of the given parameters behind q, k, v."""

    def call_stub(arguments: dict[str, Any]) -> Any:
        CALLS.append({name: value for name, value in arguments.items() if name not in ("q", "k", "v")})
        if arguments.get("deterministic") and arguments["q"].shape[-1] > limit:
            raise RuntimeError("Deterministic backward not supported for hdim 256.")
        out, lse = _attend_arguments(arguments)
        return (out, lse, None) if arguments.get("return_attn_probs") else (out, lse) if always_lse else out

    module = ModuleType(name)
    for function, parameters in (("flash_attn_func", dense), ("flash_attn_varlen_func", packed)):
        exec(
            f"def {function}(q, k, v, {parameters}):\n    return answer(locals())",
            {"answer": call_stub},
            module.__dict__,
        )
    return module


def _attend_arguments(arguments: dict[str, Any]) -> OutAndLse:
    q, k, v = arguments["q"], arguments["k"], arguments["v"]
    sinks = arguments.get("learnable_sink")
    if arguments.get("s_aux") is not None:
        sinks = arguments["s_aux"].detach()
        assert sinks.dtype == torch.bfloat16
    kwargs = {name: arguments.get(name, default) for name, default in (("causal", False), ("softcap", 0.0))}
    scale = arguments["softmax_scale"] or q.shape[-1] ** -0.5
    kwargs |= {"scale": scale, "window": arguments["window_size"], "sinks": sinks}
    if arguments.get("cu_seqlens_q") is None:
        return attend(q, k, v, added=_alibi_bias(arguments.get("alibi_slopes"), q.shape[1], k.shape[1]), **kwargs)
    cu_q, cu_k = arguments["cu_seqlens_q"], arguments["cu_seqlens_k"]
    assert arguments["max_seqlen_q"] == int((cu_q[1:] - cu_q[:-1]).max())
    assert arguments["max_seqlen_k"] == int((cu_k[1:] - cu_k[:-1]).max())
    return attend_documents(q, k, v, cu_q, cu_k, **kwargs)


def _alibi_bias(slopes: Tensor | None, rows: int, keys: int) -> Tensor | None:
    if slopes is None:
        return None
    distance = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)[None, :]
    return -slopes[:, None, None] * distance.abs()


# --- xformers 0.0.35


@dataclass
class Bias:
    """A bias of xformers: what it masks inside each block."""

    causal: bool = False
    bottom_right: bool = False
    window: tuple[int, int] = (-1, -1)
    q: Sequence[int] = ()
    k: Sequence[int] = ()

    def make_causal(self) -> Bias:
        return Bias(True, False, q=self.q, k=self.k)

    def make_causal_from_bottomright(self) -> Bias:
        assert all(k >= q for q, k in zip(self.q, self.k))
        return Bias(True, True, q=self.q, k=self.k)

    def make_local_attention(self, size: int) -> Bias:
        return Bias(True, False, (size - 1, 0), self.q, self.k)

    def make_local_attention_from_bottomright(self, size: int) -> Bias:
        return Bias(True, True, (size - 1, 0), self.q, self.k)


class Operator:
    """An operator of xformers; `reasons` is what it says against its inputs."""

    IS_DETERMINISTIC = True
    VARLEN_LSE_PACKED = True
    reasons: tuple[str, ...] = ()

    @classmethod
    def not_supported_reasons(cls, inputs: Any) -> list[str]:
        return list(cls.reasons)


@dataclass
class FmhaInputs:
    query: Tensor
    key: Tensor
    value: Tensor
    attn_bias: Any = None
    p: float = 0.0
    scale: float | None = None


def _attend_fmha(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Any, scale: float, packed_lse: bool
) -> OutAndLse:
    assert query.shape[2] == key.shape[2] == value.shape[2]
    if isinstance(attn_bias, Tensor):
        assert attn_bias.stride(2) % 8 == 0 and attn_bias.shape[:2] == (query.shape[0], query.shape[2])
        return attend(query, key, value, scale, added=attn_bias)
    bias = attn_bias or Bias()
    mask: dict[str, Any] = {"causal": bias.causal, "window": bias.window, "bottom_right": bias.bottom_right}
    if not bias.q:
        return attend(query, key, value, scale, **mask)
    cu_q, cu_k = (torch.tensor([0, *x]).cumsum(0, dtype=torch.int32) for x in (bias.q, bias.k))
    out, lse = attend_documents(query[0], key[0], value[0], cu_q, cu_k, scale, **mask)
    if packed_lse:
        return out[None], lse[None]
    rows = torch.full((len(bias.q), query.shape[2], -max(bias.q) // 32 * -32), math.inf)
    for i, part in enumerate(lse.split(list(bias.q), -1)):
        rows[i, :, : part.shape[-1]] = part
    return out[None], rows


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float = 1.0,
    *,
    op: tuple[type[Operator], type[Operator]],
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return out as xformers does with its operators pinned."""
    CALLS.append({"attn_bias": attn_bias, "p": p, "scale": scale, "op": op})
    return _attend_fmha(query, key, value, attn_bias, scale, op[0].VARLEN_LSE_PACKED)[0]


def memory_efficient_attention_forward_requires_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float = 1.0,
    *,
    op: type[Operator],
) -> OutAndLse:
    """Return out and LSE."""
    return _attend_fmha(query, key, value, attn_bias, scale, op.VARLEN_LSE_PACKED)


def xformers_modules() -> dict[str, ModuleType]:
    """Return the stand-in's modules by the names that they are imported by."""
    names = ("xformers", "xformers.ops", "xformers.ops.fmha", "xformers.ops.fmha.common")
    modules = {name: ModuleType(name) for name in names}
    fmha = modules["xformers.ops.fmha"]
    members = {
        "memory_efficient_attention": memory_efficient_attention,
        "memory_efficient_attention_forward_requires_grad": memory_efficient_attention_forward_requires_grad,
        "cutlass": _make_operators(packed=False, deterministic=True),
        "flash": _make_operators(packed=True, deterministic=False),
        "attn_bias": SimpleNamespace(
            BlockDiagonalMask=SimpleNamespace(from_seqlens=lambda q, k: Bias(q=q, k=k)),
            LowerTriangularMask=lambda: Bias(True),
            LowerTriangularFromBottomRightMask=lambda: Bias(True, True),
            LowerTriangularFromBottomRightLocalAttentionMask=lambda size: Bias(True, True, (size - 1, 0)),
            LocalAttentionFromBottomRightMask=lambda left, right: Bias(False, True, (left, right)),
        ),
    }
    fmha.__dict__.update(members)
    modules["xformers.ops"].__dict__["fmha"] = fmha
    modules["xformers.ops.fmha.common"].__dict__["Inputs"] = FmhaInputs
    return modules


def _make_operators(packed: bool, deterministic: bool) -> SimpleNamespace:
    forward = type("FwOp", (Operator,), {"VARLEN_LSE_PACKED": packed})
    backward = type("BwOp", (Operator,), {"VARLEN_LSE_PACKED": packed, "IS_DETERMINISTIC": deterministic})
    return SimpleNamespace(FwOp=forward, BwOp=backward)
