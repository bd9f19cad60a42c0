"""Attention over whole score matrices, in parts that can be replaced: what a kernel with a known mistake computes.

It is for small cases. The oracle computes the right results, for any size and with their noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attncheck.attention.inputs import Inputs
from attncheck.attention.masks import build_mask_bias
from attncheck.attention.reference.oracle import wide_dtype
from attncheck.core.cases import UNBOUNDED, Case, diagonal_shift, iter_segments

MAX_SCORES = 1 << 20


@dataclass(frozen=True)
class Places:
    """The document of each token, -1 in q's padding and -2 in k's, and its position on the document's axis of keys.

    Tensors are `(batch, seqlen_q, 1)` for queries and `(batch, 1, seqlen_k)` for keys. `k_length` is that of a key's
    document, and `k_start` the number of keys in the row before a query's document.
    """

    q_document: Tensor
    k_document: Tensor
    q: Tensor
    k: Tensor
    k_length: Tensor
    k_start: Tensor

    @classmethod
    def of(cls, case: Case, device: str) -> Places:
        """Return the places of a case's tokens."""
        q_document, q, k_start = (torch.full((case.batch, case.seqlen_q), -1) for _ in range(3))
        k_document, k, k_length = (torch.full((case.batch, case.seqlen_k), -2) for _ in range(3))
        for s in iter_segments(case):
            rows, keys = (s.batch, slice(s.q_start, s.q_stop)), (s.batch, slice(s.k_start, s.k_stop))
            seqlen_q, seqlen_k = s.q_stop - s.q_start, s.k_stop - s.k_start
            q_document[rows], k_document[keys], k_length[keys], k_start[rows] = s.index, s.index, seqlen_k, s.k_start
            q[rows] = torch.arange(seqlen_q) + diagonal_shift(case, seqlen_q, seqlen_k)
            k[keys] = torch.arange(seqlen_k)
        by_query, by_key = (q_document, q, k_start), (k_document, k, k_length)
        (q_document, q, k_start), (k_document, k, k_length) = (
            tuple(x.to(device).unsqueeze(dim) for x in tensors) for tensors, dim in ((by_query, 2), (by_key, 1))
        )
        return cls(q_document, k_document, q, k, k_length, k_start)

    def visible(self, case: Case, same: Tensor | None = None) -> Tensor:
        """Return the mask of a case as `(batch, 1, seqlen_q, seqlen_k)`; `same`: pairs of one document."""
        seen = self.q_document == self.k_document if same is None else same
        distance, (left, right) = self.k - self.q, case.window_size
        if case.causal:
            seen = seen & (distance <= 0)
        if left != UNBOUNDED:
            seen = seen & (distance >= -left)
        if right != UNBOUNDED:
            seen = seen & (distance <= right)
        if case.attention_chunk:
            seen = seen & (self.q // case.attention_chunk == self.k // case.attention_chunk)
        return seen[:, None]


@dataclass(frozen=True)
class DenseAttention:
    """The parts of an attention; tensors are `(batch, heads, seqlen, d)`, k and v with kv heads.

    `hooks` change a quantity after it is computed: "product", "tanh", "cap_slope", "scores", "weights", "lse", "delta",
    "dp", "ds", "dsink_rows" and the results.
    """

    case: Case
    places: Places
    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    k_heads: Tensor  # the kv head of k, of v, and in the product dS·K, that each query head reads
    v_heads: Tensor
    dq_heads: Tensor
    summed: Tensor  # the weight of each query head in its kv head's gradients
    visible: Tensor
    bias: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None  # (heads, 1, 1), or one for each row
    scale: float
    softcap: float
    hidden_score: float = -math.inf
    extra: Tensor | None = None  # is added to each row's sum of exponentials
    hooks: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: Inputs) -> DenseAttention:
        """Return the right attention."""
        case, device, wide = inputs.case, inputs.device, wide_dtype(inputs.device, inputs.case.dtype)
        q, k, v, dout = (x.transpose(1, 2).to(wide) for x in (inputs.q, inputs.k, inputs.v, inputs.dout))
        places = Places.of(case, device)
        heads = torch.arange(case.num_heads, device=device) // (case.num_heads // case.num_kv_heads)
        bias: Tensor | None = None
        if inputs.slopes is not None:
            bias = alibi_bias(places, inputs.slopes.to(wide))
        elif case.mask == "additive":
            bias = build_mask_bias(case, device).to(wide)
        return cls(
            case, places, q, k, v, dout, heads, heads, heads,
            torch.ones(case.num_heads, dtype=wide, device=device), places.visible(case), bias,
            None if inputs.slopes is None else inputs.slopes.to(wide),
            None if inputs.sinks is None else inputs.sinks.to(wide)[:, None, None], case.softmax_scale, case.softcap,
        )  # fmt: skip

    def _change(self, name: str, x: Tensor) -> Tensor:
        return self.hooks[name](x) if name in self.hooks else x

    def scores(self) -> tuple[Tensor, Tensor | None]:
        """Return the scores, -inf for hidden keys, and the derivative of their soft-cap."""
        s, slope = self._change("product", self.q @ self.k[:, self.k_heads].mT * self.scale), None
        if self.softcap:
            tanh = self._change("tanh", torch.tanh(s / self.softcap))
            s, slope = tanh * self.softcap, self._change("cap_slope", 1.0 - tanh.square())
        s = self._change("scores", s if self.bias is None else s + self.bias)
        return s.masked_fill(~self.visible, self.hidden_score), slope

    def _lse(self, s: Tensor) -> Tensor:
        lse = torch.logsumexp(s, -1, keepdim=True)
        for term in (self.sinks, None if self.extra is None else self.extra.to(lse.dtype).log()):
            lse = lse if term is None else torch.logaddexp(lse, term.expand_as(lse))
        return lse

    def weights(self) -> Tensor:
        """Return the weights of keys."""
        s, _ = self.scores()
        return _normalise(s, self._lse(s))

    def forward(self) -> dict[str, Tensor]:
        """Return out and lse."""
        s, _ = self.scores()
        lse = self._lse(s)
        p = self._change("weights", _normalise(s, lse))
        return {"out": self._change("out", p @ self.v[:, self.v_heads]), "lse": self.save_lse(lse)}

    def save_lse(self, lse: Tensor) -> Tensor:
        """Return the LSE as the forward saves it for the backward."""
        return self._change("lse", lse)

    def backward(self, forward: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradients, from what a forward returned."""
        s, slope = self.scores()
        lse = forward["lse"]
        p = _normalise(s, lse)
        dp = self._change("dp", self.dout @ self.v[:, self.v_heads].mT)
        delta = self._change("delta", (self.dout * forward["out"]).sum(-1, keepdim=True))
        ds = p * (dp - delta)
        ds = self._change("ds", ds if slope is None else ds * slope)
        results = {"dq": ds @ self.k[:, self.dq_heads] * self.scale}
        results["dk"] = self._sum_heads(ds.mT @ self.q * self.scale, self.k_heads)
        results["dv"] = self._sum_heads(self._change("weights", p).mT @ self.dout, self.v_heads)
        if self.sinks is not None:
            rows = self._change("dsink_rows", torch.exp(self.sinks - lse) * delta)
            results["dsinks"] = -rows.nan_to_num(0.0).sum((0, 2, 3))
        return {name: self._change(name, x) for name, x in results.items()}

    def _sum_heads(self, x: Tensor, heads: Tensor) -> Tensor:
        """Return gradients of query heads `(batch, heads, seqlen_k, d)` summed by kv head."""
        total = x.new_zeros(len(x), self.case.num_kv_heads, *x.shape[2:])
        return total.index_add_(1, heads, x * self.summed[:, None, None])


def _normalise(s: Tensor, lse: Tensor) -> Tensor:
    return torch.exp(s - lse.masked_fill(lse == -math.inf, 0.0))


def alibi_bias(places: Places, slopes: Tensor, cut: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Return ALiBi's bias; `cut` changes positions before they are compared."""
    q, k = (x.to(slopes.dtype) for x in (places.q, places.k))
    bias: Tensor = -slopes[:, None, None] * (q - k if cut is None else q - cut(k)).abs()[:, None]
    return bias
