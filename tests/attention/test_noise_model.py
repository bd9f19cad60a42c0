"""The predicted noise is the noise: sigma against float64 attention with gaussian noise at each modelled rounding.

The formulas of `rounding_noise` are first-order error propagation; here every rounding is drawn instead, so that a
wrong constant, a lost term or a term that is counted twice shows as a z_rms away from 1.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.backends import sdpa_math
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference import oracle
from attncheck.attention.reference.rounding_noise import (
    ETA,
    KAPPA,
    KAPPA32,
    SUMMED_TILE,
    TANH_ERROR,
    Noise,
    rounding_model,
)
from attncheck.attention.reference.score import TENSORS, score_outputs
from attncheck.core.cases import Case, with_name
from attncheck.core.verdicts import slope_budget

DRAWS = 8


class Drawn:
    """One run of a kernel whose every rounding is a gaussian of the modelled size."""

    def __init__(self, inputs: Inputs, noise: Noise, rounded_bias: bool, tanh: float) -> None:
        self.inputs, self.case, self.noise, self.rounded_bias, self.tanh = (
            inputs,
            inputs.case,
            noise,
            rounded_bias,
            tanh,
        )
        self.kappa = KAPPA[self.case.dtype]
        self.eta = ETA if self.case.dtype == "float16" else 0.0
        self.wide = self.case.dtype == "float32"
        self.summed = math.hypot(self.kappa, KAPPA32 * math.sqrt(max(1.0, self.case.seqlen_k / SUMMED_TILE)))

    def off(self, x: Tensor, relative: float, absolute: float = 0.0) -> Tensor:
        """Return x with a relative and an absolute error."""
        return x * (1.0 + relative * torch.randn_like(x)) + absolute * torch.randn_like(x)

    def run(self) -> Outputs:
        """Run forward and backward once."""
        case, group = self.case, self.case.num_heads // self.case.num_kv_heads
        q, k, v, dout = (
            x.double().transpose(1, 2) for x in (self.inputs.q, self.inputs.k, self.inputs.v, self.inputs.dout)
        )
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        mask = masks.build_mask(case, "cpu")
        s, slope = self.scores(q, k)
        s = s.masked_fill(~mask, -math.inf)
        lse = torch.logsumexp(s, -1, keepdim=True)
        if self.inputs.sinks is not None:
            lse = torch.logaddexp(lse, self.inputs.sinks.double()[None, :, None, None].expand_as(lse))
        p = torch.exp(s - lse)
        lse_error = math.sqrt(2.0) * KAPPA32 * lse if self.wide and self.noise == "fused" else torch.zeros_like(lse)
        out = torch.matmul(self.off(p, self.summed, self.eta) * mask, v)
        out = self.off(out, self.summed, self.eta) * (1.0 + lse_error * torch.randn_like(lse))
        delta = (dout * out).sum(-1, keepdim=True)
        p_again = p * (1.0 + lse_error * torch.randn_like(lse))
        ds = p_again * (self.products(dout, v) - delta)
        ds = self.off(ds if slope is None else ds * slope, self.summed, self.eta) * mask
        dq = self.off(torch.matmul(ds, k) * case.softmax_scale, self.kappa, self.eta)
        dk = torch.matmul(ds.transpose(2, 3), q) * case.softmax_scale
        dv = torch.matmul((self.off(p_again, self.summed, self.eta) * mask).transpose(2, 3), dout)
        dk, dv = (self.rounded_sum(x.view(x.shape[0], -1, group, *x.shape[2:]).sum(2), group) for x in (dk, dv))
        out, dq, dk, dv = (x.transpose(1, 2) for x in (out, dq, dk, dv))
        return Outputs(out, None, dq, dk, dv)

    def rounded_sum(self, x: Tensor, group: int) -> Tensor:
        """Return dk or dv rounded once, or twice where a group's sum is rounded after its parts."""
        for _ in range(2 if group > 1 else 1):
            x = self.off(x, self.kappa, self.eta)
        return x

    def scores(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return noisy scores, and the noisy derivative of a soft-cap."""
        case = self.case
        s = torch.matmul(q, k.transpose(2, 3)) * case.softmax_scale
        slope = None
        if case.softcap:
            tanh = torch.tanh(s / case.softcap)
            s = tanh * case.softcap
            slope = 1.0 - tanh.square() + 2.0 * tanh.square() * self.tanh * torch.randn_like(tanh)
        if self.inputs.slopes is not None:
            bias = masks.build_alibi_bias(case, self.inputs.slopes.double())[None]
            s = s + self.off(bias.expand_as(s), self.kappa if self.rounded_bias else 0.0)
        exact = s
        if self.wide:
            products = torch.matmul(q.square(), k.square().transpose(2, 3)) * case.softmax_scale**2
            s = s + KAPPA32 * (products * q.shape[-1] / 2 + exact.square() + 1.0).sqrt() * torch.randn_like(s)
        elif self.noise == "eager":
            times = 1.0 + (not math.log2(case.softmax_scale).is_integer()) + 3.0 * bool(case.softcap)
            s = s + math.sqrt(times) * self.kappa * exact * torch.randn_like(s)
        return s + self.tanh * exact * torch.randn_like(s), slope

    def products(self, dout: Tensor, v: Tensor) -> Tensor:
        """Return noisy dP."""
        dp = torch.matmul(dout, v.transpose(2, 3))
        if self.wide:
            products = torch.matmul(dout.square(), v.square().transpose(2, 3))
            return dp + KAPPA32 * (products * v.shape[-1] / 2 + dp.square()).sqrt() * torch.randn_like(dp)
        return self.off(dp, self.kappa) if self.noise == "eager" else dp


SHAPE = with_name(Case("noise", (40,), (40,), num_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=32))
FLOAT32 = replace(SHAPE, dtype="float32")
SOFT_CAP = replace(SHAPE, softcap=20.0, values="large")
ONE = (1.0, 1.0, 1.0, 1.0)
# Where scores are noisy, P's own error and the softmax's shift cancel in part; the model leaves their covariance out,
# and is the larger for it, most if one key has nearly all the weight: less than 1 is expected there.
MODELS: dict[str, tuple[Case, Noise, bool, tuple[float, float, float, float]]] = {  # z_rms of out, dq, dk, dv
    "fused bfloat16": (SHAPE, "fused", False, ONE),
    "fused float16": (replace(SHAPE, dtype="float16"), "fused", False, ONE),
    "fused float16, subnormal": (replace(SHAPE, dtype="float16", values="small"), "fused", False, ONE),
    "fused, no group": (replace(SHAPE, num_kv_heads=4), "fused", False, ONE),
    "fused, full": (replace(SHAPE, causal=False, values="large"), "fused", False, ONE),
    "fused, rounded bias": (replace(SHAPE, alibi=True), "fused", True, ONE),
    "float32": (FLOAT32, "fused", False, (1.0, 0.91, 0.94, 0.97)),
    "float32, ramp": (replace(FLOAT32, values="ramp"), "fused", False, (1.0, 0.94, 0.63, 0.34)),
    "float32, large": (replace(FLOAT32, values="large"), "fused", False, (1.0, 0.81, 0.76, 0.71)),
    "float32, many keys": (
        replace(FLOAT32, seqlens_q=(8,), seqlens_k=(700,), causal=False), "fused", False, (1.0, 0.96, 0.98, 0.98),
    ),
    "eager": (SHAPE, "eager", False, (1.0, 0.81, 0.83, 0.91)),
    "eager, scale 1/8": (replace(SHAPE, head_dim=64), "eager", False, (1.0, 0.85, 0.86, 0.91)),
    "eager, large": (replace(SHAPE, values="large"), "eager", False, (1.0, 0.68, 0.60, 0.55)),
    "eager, soft-cap": (SOFT_CAP, "eager", False, (1.0, 0.56, 0.55, 0.63)),
}  # fmt: skip


def measure(case: Case, noise: Noise, rounded_bias: bool, tanh: float = 0.0) -> dict[str, float]:
    """Return z_rms of each tensor over several draws."""
    inputs = make_inputs(case, "cpu")
    exact = oracle.compute_reference(inputs, noise, rounded_bias)
    torch.manual_seed(0)
    squares = dict.fromkeys(TENSORS, 0.0)
    for _ in range(DRAWS):
        for score in score_outputs(Drawn(inputs, noise, rounded_bias, tanh).run(), exact, judge_lse=False):
            squares[score.tensor] += score.z_rms**2 / DRAWS
    return {name: math.sqrt(value) for name, value in squares.items()}


@pytest.mark.parametrize("name", MODELS)
def test_sigma_is_what_drawn_roundings_make(name: str) -> None:
    case, noise, rounded_bias, expected = MODELS[name]
    z = measure(case, noise, rounded_bias)
    assert z == pytest.approx(dict(zip(TENSORS, expected)), abs=0.05), z


def test_an_approximate_tanh_is_charged_to_scores_and_to_the_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    error = TANH_ERROR / math.sqrt(3.0)
    uncharged = measure(SOFT_CAP, "fused", False, error)
    monkeypatch.setattr(oracle, "rounding_model", lambda case, device, *rest: rounding_model(case, "cuda", *rest))
    z = measure(SOFT_CAP, "fused", False, error)
    assert z == pytest.approx(dict(zip(TENSORS, (1.0, 0.64, 0.65, 0.73))), abs=0.05), z
    assert uncharged["out"] > 1.2 * z["out"]


def test_rounded_slopes_are_rounded_alike_in_every_row() -> None:
    rows = {"seqlens_q": (18,) * 33, "seqlens_k": (17,) * 33, "num_heads": 4, "causal": False, "window_size": (15, -1)}
    inputs = make_inputs(replace(SHAPE, **rows, scale=0.04, alibi=True), "cpu")  # type: ignore[arg-type]
    outputs = sdpa_math.BACKEND.run(inputs, False)
    rounded, exact = (score_outputs(outputs, oracle.compute_reference(inputs, "fused", r))[0] for r in (True, False))
    assert rounded.slope_sigma > 5 * exact.slope_sigma, "their errors do not average out"
    assert abs(rounded.slope - 1.0) < slope_budget("bfloat16", rounded.slope_sigma)
