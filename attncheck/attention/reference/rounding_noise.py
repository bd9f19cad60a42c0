"""The rounding noise that an ideal kernel makes, per element, computed from the exact scores of a chunk.

The kernel keeps scores and sums in float32 and rounds P, dS and its results to the case's dtype (a FlashAttention-class
kernel), or rounds the scores too (eager). The formulas are first-order error propagation with independent roundings; a
round-to-nearest relative error has rms kappa = u·sqrt(1 / (8 ln 2)) for a log-uniform mantissa (probabilistic rounding
error analysis: Higham and Mary 2019, doi 10.1137/18M1226312). With element-wise products:

var_out = kappa² [(P·P)(V·V) + O·O]
var_D   = kappa² [(P·P)(dP·dP) + (dO·dO)(O·O)],   D = rowsum(dO·O): P's errors add up over head_dim
var_dq  = kappa² [scale² (dS·dS)(K·K) + dQ·dQ] + scale² var_D (P K)²
var_dk  = kappa² [scale² (dS·dS)ᵀ(Q·Q) + dK·dK] + scale² ((P·P) var_D)ᵀ(Q·Q)
var_dv  = kappa² [(P·P)ᵀ(dO·dO) + dV·dV]

plus the float32 sums' own rounding, one more kappa²·dK² and kappa²·dV² for the group sum of grouped-query attention,
and eta² = (2^-24)²/12 for each float16 rounding. If scores or dP are themselves rounded (eager; float32; a bias in the
io dtype), those variances are propagated. With a soft-cap on a GPU the scores carry the error of its approximate tanh,
and so does the derivative 1 - tanh².

Kernels that merge blocks weight them by exp(lse_block - lse), and every backward computes P = exp(S - lse). The float32
rounding of an LSE of 160 is a relative error of 1e-5, shared by the whole row. If results are float32 too, it counts
twice, for the block and for the row: w = 2·kappa32²·lse² on out, P, dS, dq and D.

Everything is computed in float32, because sigma needs a precision of only one per cent.
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attncheck.core.cases import Case

Noise = Literal["fused", "eager"]

UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
RELATIVE_RMS = math.sqrt(1.0 / (8.0 * math.log(2.0)))
KAPPA = {dtype: unit * RELATIVE_RMS for dtype, unit in UNIT_ROUNDOFF.items()}
KAPPA32 = KAPPA["float32"]
ETA = 2.0**-24 / math.sqrt(12.0)  # float16's subnormal rounding
TANH_ERROR = 2.0**-11  # largest relative error of the GPU's tanh.approx.f32 (PTX ISA 8.5, section 9.7.3.25)
SUMMED_TILE = 32  # products that a kernel sums before it rounds to float32


@dataclass(frozen=True)
class RoundingModel:
    """The results that the judged kernel rounds, and the precision of the rounding."""

    noise: Noise
    kappa: float  # rms relative error of a rounding to the case's dtype
    eta: float  # rms absolute error of its subnormals, 0 if they cannot occur
    is_16_bit: bool  # whether it is float16 or bfloat16
    tanh: float  # rms relative error of tanh, 0 if it is exact to float32
    rounded_bias: bool  # whether ALiBi is a mask in the case's dtype


def rounding_model(case: Case, device: str, noise: Noise, rounded_bias: bool) -> RoundingModel:
    """Return the rounding model of a kernel of class `noise` for this case."""
    is_16_bit = case.dtype != "float32"
    tanh = TANH_ERROR / math.sqrt(3.0) if case.softcap and is_16_bit and device != "cpu" else 0.0
    return RoundingModel(
        noise, KAPPA[case.dtype], ETA if case.dtype == "float16" else 0.0, is_16_bit, tanh, rounded_bias
    )


@dataclass(frozen=True)
class ExactChunk:
    """The exact tensors of a chunk: `(n, kv heads, group · rows, keys or head_dim)`; keys' as `(n, kv heads, …)`.

    `s` is 0 if a key is hidden; `ds` is the gradient of the product before a soft-cap.
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
    lse: Tensor  # (n, kv heads, group · rows, 1), -inf without visible keys
    visible: Tensor  # bool (rows, keys)
    bias: Tensor | None = None  # in the shape of s
    tanh: Tensor | None = None  # tanh of the product over the soft-cap
    ds_capped: Tensor | None = None  # dS before the soft-cap's derivative

    @functools.cached_property
    def squares(self) -> tuple[Tensor, ...]:
        """The squares of q, k (keys first), v, dout, P and dS in float32, which every class of noise needs."""
        return tuple(x.float().square() for x in (self.q, self.k.mT, self.v, self.dout, self.p, self.ds))


class Variances:
    """The variances of one chunk's rounding errors; names as in the module's docstring."""

    def __init__(self, model: RoundingModel, exact: ExactChunk) -> None:
        """Compute the terms that all four tensors need."""
        self.model, self.scale = model, exact.scale
        self.k, self.v = exact.k.float(), exact.v.float()
        self.out, self.dq = exact.out.float(), exact.dq.float()
        self.q2, self.k2, self.v2, self.dout2, self.p2, self.ds2 = exact.squares
        self.p = exact.p.float()
        self.visible = exact.visible.float()
        self.tile_count = max(1.0, self.p.shape[-1] / SUMMED_TILE)
        self.logit_variance = self._logit_variance(exact)
        self.dp_variance = self._dp_variance(exact)
        self.tanh_slope_variance = self._tanh_slope_variance(exact)
        self.lse_variance = self._lse_variance(exact)
        delta = (exact.dout.float() * self.out).sum(-1, keepdim=True)
        self.var_out, self.var_delta = self._out_variances(exact.dp.float(), delta)
        if self.lse_variance is not None:
            self.var_delta = self.var_delta + self.lse_variance * delta.square()
            self.var_out = self.var_out + self.lse_variance * self.out.square()

    def _logit_variance(self, exact: ExactChunk) -> Tensor | None:
        """Return the variance of the scores, None if it is negligible in a 16-bit kernel's float32 scores."""
        model, s2 = self.model, exact.s.float().square()
        terms: list[Tensor] = []
        if not model.is_16_bit:
            products = torch.matmul(self.q2, self.k2.mT) * self.scale**2
            terms.append(KAPPA32**2 * (products * (self.q2.shape[-1] / 2) + s2 + 1.0))
        elif model.noise == "eager":
            # The product is rounded, again after scaling (unless by a power of two), and at each step of a soft-cap.
            times = 1.0 + (not math.log2(self.scale).is_integer()) + 3.0 * (exact.tanh is not None)
            terms.append(times * model.kappa**2 * s2)
        if model.tanh:
            terms.append(model.tanh**2 * s2)
        if model.rounded_bias and exact.bias is not None:
            terms.append(model.kappa**2 * exact.bias.float().square())
        return functools.reduce(torch.add, terms) if terms else None

    def _dp_variance(self, exact: ExactChunk) -> Tensor | None:
        """Return the variance of dP, None if it is negligible in a 16-bit kernel's float32 dP."""
        model = self.model
        if model.is_16_bit:
            return model.kappa**2 * exact.dp.float().square() if model.noise == "eager" else None
        products = torch.matmul(self.dout2, self.v2.mT)
        return KAPPA32**2 * (products * (self.v2.shape[-1] / 2) + exact.dp.float().square())

    def _lse_variance(self, exact: ExactChunk) -> Tensor | None:
        """Return the relative variance that LSE's own rounding gives a whole row, None if it is negligible."""
        if self.model.is_16_bit or self.model.noise == "eager":
            return None
        return 2.0 * KAPPA32**2 * exact.lse.float().masked_fill(exact.lse == -math.inf, 0.0).square()

    def _tanh_slope_variance(self, exact: ExactChunk) -> Tensor | None:
        """Return the variance of dS from the derivative of an approximate tanh, None if tanh is exact."""
        if not self.model.tanh or exact.tanh is None or exact.ds_capped is None:
            return None
        return (self.model.tanh * 2.0 * exact.tanh.float().square() * exact.ds_capped.float()).square()

    def _out_variances(self, dp: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the variances of out and of D, without LSE's rounding."""
        model, out2 = self.model, self.out.square()
        rounding = model.kappa**2 + KAPPA32**2 * self.tile_count
        var = rounding * (torch.matmul(self.p2, self.v2) + out2)
        var_delta = rounding * (
            (self.p2 * dp.square()).sum(-1, keepdim=True) + (self.dout2 * out2).sum(-1, keepdim=True)
        )
        if model.eta:
            subnormal = model.eta**2 * (self._sum_visible(self.v2) + 1.0)
            var, var_delta = var + subnormal, var_delta + (self.dout2 * subnormal).sum(-1, keepdim=True)
        if self.logit_variance is not None:
            p_variance = self.p2 * self.logit_variance
            var = var + torch.matmul(p_variance, self.v2) + p_variance.sum(-1, keepdim=True) * self.out.square()
            var = (var - 2.0 * self.out * torch.matmul(p_variance, self.v)).clamp_min(0.0)
            var_delta = var_delta + (p_variance * (dp - delta).square()).sum(-1, keepdim=True)
        return var, var_delta

    def _sum_visible(self, x: Tensor) -> Tensor:
        """Return the sum of x over each row's visible keys: (n, kv, group * rows, d)."""
        rows = torch.matmul(self.visible, x)  # (n, kv, rows, d)
        group = self.p.shape[2] // self.visible.shape[0]
        return rows.repeat(1, 1, group, 1)

    @functools.cached_property
    def _score_noise_terms(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the variances that noisy scores cause: of LSE, of ln P, and of rowsum(dS·noise)."""
        if self.logit_variance is None:
            return None
        shift = (self.p2 * self.logit_variance).sum(-1, keepdim=True)
        return shift, self.logit_variance + shift, (self.ds2 * self.logit_variance).sum(-1, keepdim=True)

    @functools.cached_property
    def _ds_variance(self) -> Tensor:
        """Return the variance of dS beyond that of D: rounding, noisy scores, noisy dP."""
        model = self.model
        variance = (model.kappa**2 + KAPPA32**2 * self.tile_count) * self.ds2
        score_noise = self._score_noise_terms
        if score_noise is not None:
            variance = variance + self.ds2 * score_noise[1]
        if self.dp_variance is not None:
            variance = variance + self.p2 * self.dp_variance
        if self.tanh_slope_variance is not None:
            variance = variance + self.tanh_slope_variance
        return variance

    @functools.cached_property
    def _delta_variance(self) -> Tensor:
        """Return the variance of the term subtracted from a whole row of dP: D's, and that of noisy scores and dP."""
        var = self.var_delta
        score_noise = self._score_noise_terms
        if score_noise is not None:
            var = var + score_noise[2]
        if self.dp_variance is not None:
            var = var + (self.p2 * self.dp_variance).sum(-1, keepdim=True)
        return var

    def query_variances(self) -> tuple[Tensor, Tensor]:
        """Return the variances of out and dq."""
        model, scale2 = self.model, self.scale**2
        pk = torch.matmul(self.p, self.k.mT).square()
        var = scale2 * (torch.matmul(self._ds_variance, self.k2) + self._delta_variance * pk)
        var = var + model.kappa**2 * self.dq.square()
        if self.lse_variance is not None:
            var = var + self.lse_variance * self.dq.square()
        if model.eta:
            var = var + model.eta**2 * (scale2 * self._sum_visible(self.k2) + 1.0)
        return self.var_out, var

    def sink_variance(self, sink_weight: Tensor, delta: Tensor) -> Tensor:
        """Return each row's contribution to the variance of its sink's gradient.

        The gradient is -sum of sink_weight·D over rows; eager rounds the weight as it rounds P, and each product.
        """
        var = sink_weight.float().square() * self._delta_variance
        relative = torch.zeros_like(var)
        score_noise = self._score_noise_terms
        if score_noise is not None:
            relative = relative + score_noise[0]
        if self.model.noise == "eager":
            relative = relative + self.model.kappa**2
            var = var + self.model.eta**2 * (delta.float().square() + 1.0)
        return var + relative * (sink_weight * delta).float().square()

    def key_variances(self) -> tuple[Tensor, Tensor]:
        """Return the variances of dk and dv, without the rounding of the results themselves."""
        model, scale2 = self.model, self.scale**2
        ds_variance = self._ds_variance + self.p2 * self._delta_variance
        p_variance = (model.kappa**2 + KAPPA32**2 * self.tile_count) * self.p2
        if self.lse_variance is not None:
            ds_variance = ds_variance + self.lse_variance * self.ds2
            p_variance = p_variance + self.lse_variance * self.p2
        var_dk = scale2 * torch.matmul(ds_variance.mT, self.q2)
        score_noise = self._score_noise_terms
        if score_noise is not None:
            p_variance = p_variance + self.p2 * score_noise[1]
        var_dv = torch.matmul(p_variance.mT, self.dout2)
        if model.eta:
            group = self.p.shape[2] // self.visible.shape[0]
            visible = self.visible.repeat(group, 1).mT
            var_dk = var_dk + model.eta**2 * scale2 * torch.matmul(visible, self.q2)
            var_dv = var_dv + model.eta**2 * torch.matmul(visible, self.dout2)
        return var_dk, var_dv
