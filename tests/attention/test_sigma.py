"""Sigma, element by element, is what the formulas say: written once more, dense, in float64, head by head.

That the formulas are the noise is `test_noise_model`'s to show; here no term of them can be lost, doubled or put to the
wrong row, in any class of kernel.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference import oracle
from attncheck.attention.reference.rounding_noise import Noise, rounding_model
from attncheck.core.cases import DTYPES, Case, Dtype, with_name

UNIT: dict[Dtype, float] = {"bfloat16": 1 / 256, "float16": 1 / 2048, "float32": 1 / 16777216}
KAPPA = {dtype: unit * 0.4246609 for dtype, unit in UNIT.items()}  # sqrt(1 / (8 ln 2))
KAPPA32 = KAPPA["float32"]
ETA = 1 / 16777216 / 3.4641016
TANH = 1 / 2048 / 1.7320508  # the PTX ISA's largest error, taken as uniform

SHAPE = with_name(Case("sigma", (40, 40), (72, 72), num_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=16))
HALF = replace(SHAPE, dtype="float16")
SINGLE = replace(SHAPE, dtype="float32")
SOFT_CAP = replace(SHAPE, softcap=5.0, values="large")
CASES: dict[str, tuple[Case, Noise, bool]] = {
    "bfloat16": (SHAPE, "fused", False),
    "bfloat16, large, full": (replace(SHAPE, values="large", causal=False), "fused", False),
    "bfloat16, a head each": (replace(SHAPE, num_kv_heads=4), "fused", False),
    "bfloat16, sinks": (replace(SHAPE, sinks=True), "fused", False),
    "bfloat16, ALiBi": (replace(SHAPE, alibi=True), "fused", False),
    "bfloat16, ALiBi as a mask": (replace(SHAPE, alibi=True), "fused", True),
    "bfloat16, soft-cap": (SOFT_CAP, "fused", False),
    "bfloat16, a silent row": (replace(SHAPE, seqlens_q=(80, 80)), "fused", False),
    "float16": (HALF, "fused", False),
    "float16, small": (replace(HALF, values="small"), "fused", False),
    "float16, small, a head each": (replace(HALF, values="small", num_kv_heads=4), "fused", False),
    "float16, soft-cap, ALiBi": (replace(HALF, softcap=5.0, values="large", alibi=True), "fused", True),
    "float32": (SINGLE, "fused", False),
    "float32, few keys": (replace(SINGLE, seqlens_q=(20, 20), seqlens_k=(20, 20)), "fused", False),
    "float32, sinks, large": (replace(SINGLE, sinks=True, values="large"), "fused", False),
    "float32, rows without keys": (replace(SINGLE, seqlens_q=(80, 80)), "fused", False),
    "float32, ramp, ALiBi": (replace(SINGLE, values="ramp", alibi=True), "fused", True),
    "float32, soft-cap": (replace(SOFT_CAP, dtype="float32"), "fused", False),
    "float32, eager": (SINGLE, "eager", False),
    "eager": (SHAPE, "eager", False),
    "eager, scale 1/8": (replace(SHAPE, head_dim=64), "eager", False),
    "eager, soft-cap, sinks": (replace(SOFT_CAP, sinks=True), "eager", False),
    "eager, float16, ALiBi as a mask": (replace(HALF, alibi=True), "eager", True),
}


def variances_by_hand(
    inputs: Inputs, noise: Noise, rounded_bias: bool, roundings: tuple[float, float], tanh_error: float
) -> dict[str, Tensor]:
    """Return the variances of out, dq `(batch, heads, seqlen_q, d)`, dk, dv `(batch, kv heads, …)` and the sinks'."""
    case, group = inputs.case, inputs.case.num_heads // inputs.case.num_kv_heads
    kappa, eta = KAPPA[case.dtype], ETA if case.dtype == "float16" else 0.0
    is_wide, scale = case.dtype == "float32", case.softmax_scale
    summed = kappa**2 + KAPPA32**2 * max(1.0, case.seqlen_k / 32)
    visible = masks.build_mask(case, inputs.device)[0, 0].double()
    parts: dict[tuple[str, int, int], Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
    exact: dict[tuple[str, int, int], Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
    for batch in range(case.batch):
        for head in range(case.num_heads):
            kv = head // group
            q, dout = inputs.q[batch, :, head].double(), inputs.dout[batch, :, head].double()
            k, v = inputs.k[batch, :, kv].double(), inputs.v[batch, :, kv].double()
            s, slope, tanh = scale * q @ k.T, torch.ones(()), None
            if case.softcap:
                tanh = torch.tanh(s / case.softcap)
                s, slope = case.softcap * tanh, 1 - tanh**2
            bias = torch.zeros_like(s)
            if inputs.slopes is not None:
                bias = masks.build_alibi_bias(case, inputs.slopes.double())[head]
            s = s + bias
            e = s.exp() * visible
            sink = inputs.sinks[head].double().exp() if inputs.sinks is not None else torch.zeros(())
            total = e.sum(1, keepdim=True) + sink
            p = torch.where(total > 0, e / total, 0.0)
            lse = torch.where(total > 0, total.log(), 0.0)
            out, dp = p @ v, dout @ v.T
            d = (dout * out).sum(1, keepdim=True)
            ds_capped = p * (dp - d)
            ds = ds_capped * slope
            dq, dk, dv = scale * ds @ k, scale * ds.T @ q, p.T @ dout

            var_s = torch.zeros_like(s)
            var_dp = torch.zeros_like(s)
            w = torch.zeros_like(d)  # relative, of a whole row
            if is_wide:
                var_s = KAPPA32**2 * (case.head_dim / 2 * scale**2 * q**2 @ (k**2).T + s**2 + 1)
                var_dp = KAPPA32**2 * (case.v_head_dim / 2 * dout**2 @ (v**2).T + dp**2)
                w = 2 * KAPPA32**2 * lse**2 if noise == "fused" else w
            elif noise == "eager":
                times = 1 + (scale not in (1 / 4, 1 / 8)) + (3 if case.softcap else 0)
                var_s, var_dp = times * kappa**2 * s**2, kappa**2 * dp**2
            var_s = var_s + tanh_error**2 * s**2 + (kappa**2 * bias**2 if rounded_bias else 0)
            var_slope = (2 * tanh_error * tanh**2 * ds_capped) ** 2 if tanh is not None else 0

            var_out = summed * (p**2 @ v**2 + out**2) + eta**2 * (visible @ v**2 + 1)
            var_out = var_out + torch.einsum("ij,ij,ijd->id", p**2, var_s, (v[None] - out[:, None]) ** 2)
            var_d = summed * (p**2 * dp**2).sum(1, keepdim=True)  # P's errors add up over head_dim
            var_d = var_d + (dout**2 * (summed * out**2 + eta**2 * (visible @ v**2 + 1))).sum(1, keepdim=True)
            var_d = var_d + (p**2 * var_s * (dp - d) ** 2).sum(1, keepdim=True) + w * d**2
            shift = (p**2 * var_s).sum(1, keepdim=True)
            var_ds = ds**2 * (summed + var_s + shift) + p**2 * var_dp + var_slope
            var_row = var_d + (ds**2 * var_s).sum(1, keepdim=True) + (p**2 * var_dp).sum(1, keepdim=True)
            var_dq = scale**2 * (var_ds @ k**2 + var_row * (p @ k) ** 2 + eta**2 * (visible @ k**2)) + eta**2
            parts["out", batch, head] = var_out + w * out**2
            parts["dq", batch, head] = var_dq + kappa**2 * dq**2 + w * dq**2
            parts["dk", batch, kv] = parts["dk", batch, kv] + scale**2 * (
                (var_ds + p**2 * var_row + w * ds**2).T @ q**2 + eta**2 * (visible.T @ q**2)
            )
            parts["dv", batch, kv] = (
                parts["dv", batch, kv]
                + (p**2 * (summed + w + var_s + shift)).T @ dout**2
                + eta**2 * (visible.T @ dout**2)
            )
            weight = sink / total
            relative = shift + (kappa**2 if noise == "eager" else 0)
            parts["dsinks", 0, head] = (
                parts["dsinks", 0, head] + (weight**2 * var_row + relative * (weight * d) ** 2).sum()
            )
            exact["dsinks", 0, head] = exact["dsinks", 0, head] - (weight * d).sum()
            exact["dq", batch, head] = dq
            exact["dk", batch, kv] = exact["dk", batch, kv] + dk
            exact["dv", batch, kv] = exact["dv", batch, kv] + dv
    for (name, batch, head), x in exact.items():
        if name == "dsinks":
            parts[name, batch, head] = parts[name, batch, head] + 2 * kappa**2 * x**2
            continue
        walks = roundings[0] if name == "dq" else roundings[1]
        walk = (x**2 + (x**2).mean(1, True)) / 3
        parts[name, batch, head] = parts[name, batch, head] + walks * (kappa**2 * walk + eta**2)
        if name != "dq":
            parts[name, batch, head] = parts[name, batch, head] + (2 if group > 1 else 1) * (kappa**2 * x**2 + eta**2)
    heads = {"out": case.num_heads, "dq": case.num_heads, "dk": case.num_kv_heads, "dv": case.num_kv_heads}
    stacked = {
        name: torch.stack([torch.stack([parts[name, b, h] for h in range(count)]) for b in range(case.batch)])
        for name, count in heads.items()
    }
    if case.sinks:
        stacked["dsinks"] = torch.stack([parts["dsinks", 0, h] for h in range(case.num_heads)])
    return stacked


def assert_same_sigma(
    case: Case, noise: Noise, rounded_bias: bool, roundings: tuple[float, float] = (0.0, 0.0), tanh_error: float = 0.0
) -> None:
    inputs = make_inputs(case, "cpu")
    dout = inputs.dout.clone()
    dout[0, -1] = 0.0  # a row whose gradients have no noise of their own: the floor's
    times = 2.0**-9 if case.values == "small" else 1.0  # down to where float16's subnormals are out's noise too
    assert_same_sigma_of(replace(inputs, dout=dout, v=inputs.v * times), noise, rounded_bias, roundings, tanh_error)


def assert_same_sigma_of(
    inputs: Inputs,
    noise: Noise,
    rounded_bias: bool,
    roundings: tuple[float, float] = (0.0, 0.0),
    tanh_error: float = 0.0,
) -> None:
    sigma = oracle.compute_reference(inputs, noise, rounded_bias, roundings).sigma
    by_hand = variances_by_hand(inputs, noise, rounded_bias, roundings, tanh_error)
    assert set(sigma) == set(by_hand)
    for name, variance in by_hand.items():
        want = variance.sqrt().clamp_min(1e-3 * float(variance.mean().sqrt()))
        got = sigma[name].double() if name == "dsinks" else sigma[name].double().transpose(1, 2)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("name", CASES)
def test_every_element_of_sigma_is_the_formulas(name: str) -> None:
    assert_same_sigma(*CASES[name])


def test_a_weight_below_float16s_numbers_is_charged_with_the_size_of_what_it_weighs() -> None:
    """One key has a large v, or k, and a weight of e^-70: what its rounding to a subnormal may add is all the noise."""
    inputs = make_inputs(HALF, "cpu")
    q, k, v = inputs.q.clone(), inputs.k.clone(), torch.zeros_like(inputs.v)
    q[..., 0], k[..., 0] = 20.0, 0.0
    k[:, 5, :, 0], v[:, 5] = -20.0, 100.0
    assert_same_sigma_of(replace(inputs, q=q, k=k, v=v), "fused", False)


@pytest.mark.parametrize("case", [SHAPE, replace(HALF, num_kv_heads=4), SINGLE], ids=lambda case: case.dtype)
def test_further_roundings_of_sums_are_charged_by_how_often(case: Case) -> None:
    assert_same_sigma(case, "fused", False, (3.0, 5.0))
    assert_same_sigma(case, "fused", False, (0.0, 5.0))


@pytest.mark.parametrize("noise", ["fused", "eager"])
@pytest.mark.parametrize("case", [SOFT_CAP, replace(SOFT_CAP, dtype="float16", alibi=True)], ids=lambda c: c.dtype)
def test_a_gpus_tanh_is_charged(case: Case, noise: Noise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "rounding_model", lambda case, device, *rest: rounding_model(case, "cuda", *rest))
    assert_same_sigma(case, noise, case.alibi, tanh_error=TANH)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_roundings_size_is_that_of_torchs_roundings(dtype: Dtype) -> None:
    model = rounding_model(replace(SHAPE, dtype=dtype), "cpu", "fused", False)
    x = torch.logspace(0.0, 1.0, 200_001, base=2.0, dtype=torch.float64)
    relative = (x.to(getattr(torch, dtype)).double() - x) / x
    assert model.kappa == pytest.approx(float(relative.square().mean().sqrt()), rel=2e-3)
    subnormal = torch.linspace(0.0, 2.0**-15, 200_001, dtype=torch.float64)
    absolute = subnormal.half().double() - subnormal
    assert model.eta == pytest.approx(float(absolute.square().mean().sqrt()) * (dtype == "float16"), rel=2e-3)


def test_only_a_gpus_soft_cap_of_sixteen_bits_is_approximate() -> None:
    for dtype, softcap, device, want in (
        ("bfloat16", 30.0, "cuda", TANH),
        ("float16", 30.0, "cuda", TANH),
        ("float32", 30.0, "cuda", 0.0),
        ("bfloat16", 30.0, "cpu", 0.0),
        ("bfloat16", 0.0, "cuda", 0.0),
    ):
        case = replace(SHAPE, dtype=dtype, softcap=softcap)  # type: ignore[arg-type]
        assert rounding_model(case, device, "fused", False).tanh == pytest.approx(want)
