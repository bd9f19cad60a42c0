"""The reference is exact, its noise is the noise that a kernel makes, and sampling looks at the same answer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.backends import eager, sdpa_flash, sdpa_math
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference import oracle
from attncheck.attention.reference.oracle import Reference, compute_reference
from attncheck.attention.reference.rounding_noise import Noise, rounding_model
from attncheck.attention.reference.score import score_outputs
from attncheck.core.cases import DTYPES, Case, Dtype, Values, iter_segments, sampled_rows, visible_bounds, with_name


def make_case(seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...] | None = None, **changes: object) -> Case:
    return with_name(replace(Case("oracle", seqlens_q, seqlens_k or seqlens_q), **changes))  # type: ignore[arg-type]


CASES = (
    make_case((70,), num_kv_heads=2),
    make_case((70, 70), causal=False),
    make_case((30,), (70,)),
    make_case((70,), (30,)),
    make_case((30,), (70,), alignment="top_left"),
    make_case((70,), window_size=(9, 0)),
    make_case((70,), window_size=(9, 4), causal=False),
    make_case((70,), softcap=5.0, values="large"),
    make_case((70,), sinks=True, num_kv_heads=1),
    make_case((70,), alibi=True),
    make_case((70, 20, 1), layout="right_padded"),
    make_case((70, 20, 1), layout="left_padded", causal=False),
    make_case((20, 0, 33, 1, 7), layout="packed", num_kv_heads=2),
    make_case((20, 33), (40, 10), layout="packed"),
    make_case((20, 5, 0), (40, 0, 9), layout="packed"),
    make_case((70,), head_dim=48, v_head_dim=32),
)
IDS = [case.name for case in CASES]


def brute_force(inputs: Inputs) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return out, LSE and gradients by one float64 autograd pass over the whole case."""
    case = inputs.case
    q, k, v = (x.detach().double().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    sinks = None if inputs.sinks is None else inputs.sinks.double().requires_grad_()
    group = case.num_heads // case.num_kv_heads
    key, value = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))
    s = q.transpose(1, 2) @ key.transpose(2, 3) * case.softmax_scale
    if case.softcap:
        s = case.softcap * torch.tanh(s / case.softcap)
    if inputs.slopes is not None:
        offset = case.seqlen_k - case.seqlen_q
        distance = torch.arange(case.seqlen_q)[:, None] + offset - torch.arange(case.seqlen_k)
        s = s - inputs.slopes.double()[:, None, None] * distance.abs()
    s = s.masked_fill(~masks.build_mask(case, "cpu"), -math.inf)
    if sinks is not None:
        s = torch.cat((s, sinks[None, :, None, None].expand(*s.shape[:3], 1)), -1)
    p = torch.softmax(s, -1).nan_to_num(0.0)
    p = p[..., :-1] if sinks is not None else p
    out = (p @ value).transpose(1, 2)
    leaves = (q, k, v) if sinks is None else (q, k, v, sinks)
    return out, torch.logsumexp(s, -1), torch.autograd.grad(out, leaves, inputs.dout.double())


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_chunked_reference_is_the_whole_one(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(oracle.CHUNK_SCORES, "cpu", 700)  # several chunks
    monkeypatch.setattr(oracle, "wide_dtype", lambda device, dtype: torch.float64)
    inputs = make_inputs(case, "cpu")
    chunked = compute_reference(inputs)
    out, lse, grads = brute_force(inputs)
    assert chunked.judged is not None
    sees_keys = masks.build_mask(case, "cpu").any(-1)[:, 0].expand(case.batch, -1)
    assert torch.equal(chunked.judged, sees_keys)
    for got, want in zip((chunked.out, chunked.dq, chunked.dk, chunked.dv), (out, *grads)):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    judged = sees_keys[:, None, :].expand_as(chunked.lse)
    torch.testing.assert_close(chunked.lse[judged], lse[judged], rtol=1e-10, atol=1e-10)
    if case.sinks:
        torch.testing.assert_close(chunked.dsinks, grads[3], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_mask_is_what_its_words_say(case: Case) -> None:
    mask = masks.build_mask(case, "cpu").expand(case.batch, -1, -1, -1)[:, 0]
    want = torch.zeros_like(mask)
    for s in iter_segments(case):
        low, high = visible_bounds(case, s.q_stop - s.q_start, s.k_stop - s.k_start)
        for i in range(s.q_stop - s.q_start):
            for j in range(s.k_stop - s.k_start):
                want[s.batch, s.q_start + i, s.k_start + j] = low <= j - i <= high
    assert torch.equal(mask, want)
    q_document, q_position, k_document, k_position = masks.document_positions(case, "cpu")
    low, high = visible_bounds(case, 0, 0)
    distance = k_position[:, None, :] - q_position[:, :, None]
    same = q_document[:, :, None] == k_document[:, None, :]
    assert torch.equal(mask, same & (distance >= low) & (distance <= high)), "as flex_attention builds it"


def z_rms_by_tensor(outputs: Outputs, exact: Reference) -> dict[str, float]:
    return {score.tensor: score.z_rms for score in score_outputs(outputs, exact) if score.tensor != "lse"}


@pytest.mark.parametrize("values", get_args(Values))
@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_implementations_make_the_noise_that_is_predicted(dtype: Dtype, values: str) -> None:
    case = make_case((300,), num_kv_heads=2, dtype=dtype, values=values)
    inputs = make_inputs(case, "cpu")
    for z in z_rms_by_tensor(eager.BACKEND.run(inputs, False), compute_reference(inputs, "eager")).values():
        assert 0.1 < z < (4.0 if dtype == "float32" else 1.5)
    exact = compute_reference(inputs)
    for z in z_rms_by_tensor(sdpa_math.BACKEND.run(inputs, False), exact).values():
        assert 0.005 < z < (4.0 if dtype == "float32" else 1.5)
    limit = {"bfloat16": 2.0, "float16": 3.0, "float32": 4.0}[dtype]
    for z in z_rms_by_tensor(sdpa_flash.BACKEND.run(inputs, False), exact).values():
        assert 0.1 < z < limit


@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)
def test_classes_of_noise_share_exact_chunks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(oracle.CHUNK_SCORES, "cpu", 2048)
    inputs, kept = make_inputs(case, "cpu"), oracle.ExactChunks()
    oracle.compute_unrounded_reference(inputs, "eager", kept=kept)
    monkeypatch.setattr(oracle._Chunk, "_compute_exact", None)  # everything that is exact must be found
    shared = oracle.compute_unrounded_reference(inputs, "fused", kept=kept)
    monkeypatch.undo()
    monkeypatch.setitem(oracle.CHUNK_SCORES, "cpu", 2048)
    alone = oracle.compute_unrounded_reference(inputs, "fused")
    for name in ("out", "lse", "dq", "dk", "dv", "judged"):
        assert torch.equal(getattr(shared, name), getattr(alone, name)), name
    for name, variance in alone.sigma.items():
        assert torch.equal(shared.sigma[name], variance), name


def test_noise_does_not_depend_on_length() -> None:
    z_rms = []
    for seqlen in (128, 512, 1500):
        inputs = make_inputs(make_case((seqlen,), num_heads=2, num_kv_heads=2), "cpu")
        z_rms.append(z_rms_by_tensor(sdpa_math.BACKEND.run(inputs, False), compute_reference(inputs))["out"])
    assert max(z_rms) / min(z_rms) < 1.1


def test_sampled_rows_have_the_same_answer() -> None:
    case = make_case((700,), num_kv_heads=2, every_row=False)
    inputs = make_inputs(case, "cpu")
    sampled = compute_reference(inputs)
    every_row = compute_reference(replace(inputs, case=replace(case, every_row=True)))
    assert sampled.rows is not None
    assert sampled.rows.tolist() == list(sampled_rows(case))
    assert {0, 1, 698, 699} <= set(sampled.rows.tolist())
    torch.testing.assert_close(sampled.out, every_row.out[:, sampled.rows])
    torch.testing.assert_close(sampled.dq, every_row.dq[:, sampled.rows])
    torch.testing.assert_close(sampled.dk, every_row.dk)
    torch.testing.assert_close(sampled.dv, every_row.dv)
    assert not bool(inputs.dout[:, [r for r in range(700) if r not in sampled.rows.tolist()]].any())


@pytest.mark.parametrize(
    "case",
    [
        make_case((700,), num_kv_heads=2, every_row=False, values="large", softcap=5.0),
        make_case((301, 0, 200, 90), (200, 50, 230, 0), layout="packed", every_row=False),
        make_case((250, 250), layout="packed", every_row=False),
        make_case((300, 300), every_row=False, window_size=(20, 3), causal=False),
        make_case((301, 200), layout="packed", every_row=False, window_size=(20, 3), causal=False),
    ],
    ids=["soft-cap", "packed", "equal documents", "window", "packed window"],
)
def test_a_sampled_row_is_that_row_in_every_number(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "rounding_model", lambda case, device, *rest: rounding_model(case, "cuda", *rest))
    inputs = make_inputs(case, "cpu")
    every_row = compute_reference(replace(inputs, case=replace(case, every_row=True)))
    for size in (1 << 20, 20_000, 1):  # one chunk, several, a row each
        monkeypatch.setitem(oracle.CHUNK_SCORES, "cpu", size)
        sampled = compute_reference(inputs)
        assert sampled.rows is not None and every_row.judged is not None
        pairs = [
            (getattr(sampled, name), getattr(every_row, name)[:, sampled.rows]) for name in ("out", "dq", "judged")
        ]
        for name in ("lse", "expected_logit", "lse_slack"):
            pairs.append((getattr(sampled, name), getattr(every_row, name)[..., sampled.rows]))
        pairs += [(getattr(sampled, name), getattr(every_row, name)) for name in ("dk", "dv")]
        for got, want in pairs:
            torch.testing.assert_close(got, want)


def test_how_the_lse_moves_is_the_mean_of_the_scores_and_what_may_move_it_the_mean_of_their_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = make_case((40,), num_kv_heads=2, softcap=3.0, alibi=True, values="large")
    inputs = make_inputs(case, "cpu")
    assert inputs.slopes is not None
    q, k = (x.double().transpose(1, 2) for x in (inputs.q, inputs.k.repeat_interleave(2, 2)))
    bias = masks.build_alibi_bias(case, inputs.slopes.double())
    s = 3.0 * torch.tanh(q @ k.mT * case.softmax_scale / 3.0) + bias
    p = torch.softmax(s.masked_fill(~masks.build_mask(case, "cpu"), -math.inf), -1)
    exact, rounded = compute_reference(inputs), compute_reference(inputs, rounded_bias=True)
    torch.testing.assert_close(exact.expected_logit.double(), (p * s).sum(-1), rtol=1e-5, atol=1e-5)
    assert not bool(exact.lse_slack.any())
    of_bias = (p * bias.abs()).sum(-1) / 256.0  # each bias off by bfloat16's largest rounding, all one way
    torch.testing.assert_close(rounded.lse_slack.double(), of_bias, rtol=0.03, atol=0.0)
    monkeypatch.setattr(oracle, "rounding_model", lambda case, device, *rest: rounding_model(case, "cuda", *rest))
    approximate = compute_reference(inputs, rounded_bias=True).lse_slack - rounded.lse_slack
    of_tanh = (p * s.abs()).sum(-1) / 2048.0
    torch.testing.assert_close(approximate.double(), of_tanh, rtol=1e-4, atol=1e-6)
    without = make_case((40,), softcap=3.0)
    assert bool(compute_reference(make_inputs(without, "cpu"), rounded_bias=True).lse_slack.any())


def test_float64_is_taken_where_it_is_fast_or_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, is_fast in (
        *(((6, 0), True), ((7, 0), True), ((8, 0), True), ((9, 0), True), ((10, 0), True)),
        *(((6, 1), False), ((7, 5), False), ((8, 6), False), ((8, 9), False), ((12, 0), False)),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        for dtype in DTYPES:
            wanted = torch.float64 if is_fast or dtype == "float32" else torch.float32
            assert oracle.wide_dtype("cuda", dtype) == wanted
            assert oracle.wide_dtype("cpu", dtype) == (torch.float64 if dtype == "float32" else torch.float32)


@pytest.mark.parametrize("values", get_args(Values))
@pytest.mark.parametrize("noise", get_args(Noise))
def test_a_narrow_reference_serves_sixteen_bits(noise: Noise, values: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    """If float64 is slow the reference is float32: its errors are lost among those of an ideal kernel."""
    for dtype in ("bfloat16", "float16"):
        inputs = make_inputs(make_case((300,), num_kv_heads=2, values=values, dtype=dtype), "cpu")
        monkeypatch.setattr(oracle, "wide_dtype", lambda device, dtype: torch.float32)
        narrow = compute_reference(inputs, noise)
        monkeypatch.setattr(oracle, "wide_dtype", lambda device, dtype: torch.float64)
        wide = compute_reference(inputs, noise)
        for name, sigma in wide.sigma.items():
            error = (getattr(narrow, name).double() - getattr(wide, name)).square().mean(-1).sqrt()
            assert float((error / sigma.square().mean(-1).sqrt()).max()) < 0.5, (dtype, name)
            assert float(((narrow.sigma[name] - sigma) / sigma).square().mean()) < 1e-4, (dtype, name)
        assert float((narrow.lse.double() - wide.lse).abs().max()) < 1e-4


def test_memory_grows_with_the_inputs_and_not_with_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = torch.matmul

    def spy(*args: Tensor, **kwargs: Tensor) -> Tensor:
        result = real(*args, **kwargs)
        sizes.append(result.numel())
        return result

    monkeypatch.setattr(torch, "matmul", spy)
    case = make_case((2048, 2048), num_heads=2, num_kv_heads=1)
    compute_reference(make_inputs(case, "cpu"))
    assert max(sizes) == oracle.CHUNK_SCORES["cpu"] == 1 << 17, "2048 keys, 2 heads: 32 queries"
    monkeypatch.setitem(oracle.CHUNK_SCORES, "cpu", 1)
    del sizes[:]
    compute_reference(make_inputs(make_case((128, 128), num_heads=2, num_kv_heads=1, head_dim=2, v_head_dim=2), "cpu"))
    assert max(sizes) == 128 * 2, "a query of one document at least"


def test_eagers_sinks_in_float16_have_the_rounding_of_subnormals() -> None:
    """Among large scores a sink's weight is below float16's smallest normal number, so its gradient has few digits."""
    shape = {"num_heads": 9, "num_kv_heads": 1, "head_dim": 96, "v_head_dim": 16}
    case = make_case((319,), (335,), causal=False, sinks=True, values="large", dtype="float16", **shape)
    inputs = make_inputs(case, "cpu")
    scores = score_outputs(eager.BACKEND.run(inputs, False), compute_reference(inputs, "eager"))
    sinks = next(score for score in scores if score.tensor == "dsinks")
    assert 0.05 < sinks.z_row < 6.0
