"""The rounding noise that an ideal kernel makes, per element, worked out from the exact scores of a chunk.

The kernel keeps scores and sums in float32 and rounds P, dS and its results to the case's dtype (a FlashAttention-class
kernel), or rounds the scores too (eager). The formulas are first-order error propagation with independent roundings; a
round-to-nearest relative error has rms kappa = u·sqrt(1 / (8 ln 2)) for a log-uniform mantissa (probabilistic rounding
error analysis: Higham and Mary 2019, doi 10.1137/18M1226312). With element-wise products:

    var_out = kappa² [(P·P)(V·V) + O·O]
    var_D   = sum over head_dim of dO·dO·var_out,   D = rowsum(dO·O)
    var_dq  = kappa² [scale² (dS·dS)(K·K) + dQ·dQ] + scale² var_D (P K)²
    var_dk  = kappa² [scale² (dS·dS)ᵀ(Q·Q) + dK·dK] + scale² ((P·P) var_D)ᵀ(Q·Q)
    var_dv  = kappa² [(P·P)ᵀ(dO·dO) + dV·dV]

plus the float32 sums' own rounding, one more kappa²·dK² and kappa²·dV² for the group sum of grouped-query attention,
eta² = (2^-24)²/12 wherever float16 rounds, and, where scores or dP are themselves rounded (eager; float32; a bias in
the io dtype), the propagation of those variances. With a soft-cap on a GPU the scores carry the error of its
approximate tanh, and so does the derivative 1 - tanh².

Everything is worked out in float32: one per cent is enough for sigma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attncheck.core.cases import Case

Noise = Literal["fused", "eager"]

UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
RMS = math.sqrt(1.0 / (8.0 * math.log(2.0)))
KAPPA = {dtype: unit * RMS for dtype, unit in UNIT.items()}
KAPPA32 = KAPPA["float32"]
ETA = 2.0**-24 / math.sqrt(12.0)  # float16's subnormal rounding
TANH = 2.0**-11  # largest relative error of the GPU's tanh.approx.f32 (PTX ISA 8.5, section 9.7.3.25)
TILE = 32  # products that a kernel sums before it rounds to float32


@dataclass(frozen=True)
class Rounding:
    """What the kernel under judgement rounds, and how coarsely."""

    noise: Noise
    kappa: float  # rms relative error of a rounding to the case's dtype
    eta: float  # rms absolute error among its subnormals, 0 where they are out of reach
    half: bool  # float16 or bfloat16
    tanh: float  # rms relative error of tanh, 0 where it is exact to float32
    rounded_bias: bool  # ALiBi comes as a mask in the case's dtype


def rounding(case: Case, device: str, noise: Noise, rounded_bias: bool) -> Rounding:
    """Return what a kernel of class `noise` rounds in this case."""
    half = case.dtype != "float32"
    tanh = TANH / math.sqrt(3.0) if case.softcap and half and device != "cpu" else 0.0
    return Rounding(noise, KAPPA[case.dtype], ETA if case.dtype == "float16" else 0.0, half, tanh, rounded_bias)


@dataclass(frozen=True)
class Exact:
    """The exact tensors of a chunk: `(n, kv heads, group · rows, keys or head_dim)`; keys' as `(n, kv heads, …)`.

    `s` is 0 where a key is not seen, `ds` is with respect to the product before a soft-cap.
    """

    scale: float
    q: Tensor
    k: Tensor  # (n, kv heads, head_dim, keys)
    v: Tensor  # (n, kv heads, keys, v_head_dim)
    dout: Tensor
    s: Tensor
    p: Tensor
    dp: Tensor
    ds: Tensor
    out: Tensor
    dq: Tensor
    seen: Tensor  # bool (rows, keys)
    bias: Tensor | None = None  # as s
    tanh: Tensor | None = None  # of the product over the soft-cap
    ds_capped: Tensor | None = None  # dS before the soft-cap's derivative


class Variances:
    """The variances of one chunk; names as in the module's docstring."""

    def __init__(self, rounding: Rounding, exact: Exact) -> None:
        """Work out what all four tensors need."""
        self.rounding, self.scale = rounding, exact.scale
        self.k, self.v = exact.k.float(), exact.v.float()
        self.out, self.dq = exact.out.float(), exact.dq.float()
        self.q2, self.k2 = exact.q.float().square(), self.k.square().transpose(-1, -2)
        self.v2, self.dout2 = self.v.square(), exact.dout.float().square()
        self.p = exact.p.float()
        self.p2, self.ds2 = self.p.square(), exact.ds.float().square()
        self.seen = exact.seen.float()
        self.keys_summed = max(1.0, self.p.shape[-1] / TILE)
        self.logit = self._logit_noise(exact)
        self.dp = self._dp_noise(exact)
        self.steep = self._steep(exact)
        self.var_out = self._var_out()
        self.var_delta = (self.dout2 * self.var_out).sum(-1, keepdim=True)

    def _logit_noise(self, exact: Exact) -> Tensor | None:
        """Return the variance of the scores, None where a 16-bit kernel's float32 scores have none to speak of."""
        model, s2 = self.rounding, exact.s.float().square()
        parts: list[Tensor] = []
        if not model.half:
            products = torch.matmul(self.q2, self.k2.transpose(-1, -2)) * self.scale**2
            parts.append(KAPPA32**2 * (products * (self.q2.shape[-1] / 2) + s2 + 1.0))
        elif model.noise == "eager":
            # Rounded as a product, again when scaled (by no power of two), and by each step of a soft-cap.
            times = 1.0 + (not math.log2(self.scale).is_integer()) + 3.0 * (exact.tanh is not None)
            parts.append(times * model.kappa**2 * s2)
        if model.tanh:
            parts.append(model.tanh**2 * s2)
        if model.rounded_bias and exact.bias is not None:
            parts.append(model.kappa**2 * exact.bias.float().square())
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0] if parts else None

    def _dp_noise(self, exact: Exact) -> Tensor | None:
        """Return the variance of dP, None where a 16-bit kernel's float32 dP has none to speak of."""
        model = self.rounding
        if model.half:
            return model.kappa**2 * exact.dp.float().square() if model.noise == "eager" else None
        products = torch.matmul(self.dout2, self.v2.transpose(-1, -2))
        return KAPPA32**2 * (products * (self.v2.shape[-1] / 2) + exact.dp.float().square())

    def _steep(self, exact: Exact) -> Tensor | None:
        """Return what an approximate tanh does to its own derivative, as a variance of dS."""
        if not self.rounding.tanh or exact.tanh is None or exact.ds_capped is None:
            return None
        return (self.rounding.tanh * 2.0 * exact.tanh.float().square() * exact.ds_capped.float()).square()

    def _var_out(self) -> Tensor:
        model = self.rounding
        own = torch.matmul(self.p2, self.v2) + self.out.square()
        var = (model.kappa**2 + KAPPA32**2 * self.keys_summed) * own
        if model.eta:
            var = var + model.eta**2 * (self._seen_sum(self.v2) + 1.0)
        if self.logit is not None:
            moved = self.p2 * self.logit
            var = var + torch.matmul(moved, self.v2) + moved.sum(-1, keepdim=True) * self.out.square()
            var = (var - 2.0 * self.out * torch.matmul(moved, self.v)).clamp_min(0.0)
        return var

    def _seen_sum(self, x: Tensor) -> Tensor:
        """Sum x over the keys that each row sees: (n, kv, group * rows, d)."""
        rows = torch.matmul(self.seen, x)  # (n, kv, rows, d)
        group = self.p.shape[-2] // self.seen.shape[0]
        return rows.repeat(1, 1, group, 1)

    def _wobble(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the variances that noisy scores bring: of ln P's shift, of dS, and of rowsum(dS·noise)."""
        if self.logit is None:
            return None
        shift = (self.p2 * self.logit).sum(-1, keepdim=True)
        moved = self.ds2 * (self.logit + shift)
        return shift, moved, (self.ds2 * self.logit).sum(-1, keepdim=True)

    def _ds_noise(self) -> Tensor:
        """Return the variance of dS beyond that of D: rounding, noisy scores, noisy dP."""
        model = self.rounding
        noise = (model.kappa**2 + KAPPA32**2 * self.keys_summed) * self.ds2
        wobble = self._wobble()
        if wobble is not None:
            noise = noise + wobble[1]
        if self.dp is not None:
            noise = noise + self.p2 * self.dp
        if self.steep is not None:
            noise = noise + self.steep
        return noise

    def _delta_noise(self) -> Tensor:
        """Return the variance of what is subtracted from a whole row of dP."""
        var = self.var_delta
        wobble = self._wobble()
        if wobble is not None:
            var = var + wobble[2]
        if self.dp is not None:
            var = var + (self.p2 * self.dp).sum(-1, keepdim=True)
        return var

    def queries(self) -> tuple[Tensor, Tensor]:
        """Return the variances of out and dq."""
        model, scale2 = self.rounding, self.scale**2
        pk = torch.matmul(self.p, self.k.transpose(-1, -2)).square()
        var = scale2 * (torch.matmul(self._ds_noise(), self.k2) + self._delta_noise() * pk)
        var = var + model.kappa**2 * self.dq.square()
        if model.eta:
            var = var + model.eta**2 * (scale2 * self._seen_sum(self.k2) + 1.0)
        return self.var_out, var

    def sinks(self, share: Tensor, delta: Tensor) -> Tensor:
        """Return the variance that each row brings into its sink's gradient, `share` being the sink's weight.

        The gradient is -sum of share·D over rows; eager rounds the share as it rounds P.
        """
        var = share.float().square() * self._delta_noise()
        relative = torch.zeros_like(var)
        wobble = self._wobble()
        if wobble is not None:
            relative = relative + wobble[0]
        if self.rounding.noise == "eager":
            relative = relative + self.rounding.kappa**2
        return var + relative * (share * delta).float().square()

    def keys(self) -> tuple[Tensor, Tensor]:
        """Return the variances of dk and dv, without the rounding of the results themselves."""
        model, scale2 = self.rounding, self.scale**2
        ds = self._ds_noise() + self.p2 * self._delta_noise()
        var_dk = scale2 * torch.matmul(ds.transpose(-1, -2), self.q2)
        p = (model.kappa**2 + KAPPA32**2 * self.keys_summed) * self.p2
        wobble = self._wobble()
        if wobble is not None and self.logit is not None:
            p = p + self.p2 * (self.logit + wobble[0])
        var_dv = torch.matmul(p.transpose(-1, -2), self.dout2)
        if model.eta:
            group = self.p.shape[-2] // self.seen.shape[0]
            seen = self.seen.repeat(group, 1).transpose(-1, -2)
            var_dk = var_dk + model.eta**2 * scale2 * torch.matmul(seen, self.q2)
            var_dv = var_dv + model.eta**2 * torch.matmul(seen, self.dout2)
        return var_dk, var_dv
