"""Every number of a score, by loops over a reference made by hand; every dimension has its own length."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.reference.oracle import Reference
from attncheck.attention.reference.score import TENSORS, row_errors, score_outputs
from attncheck.core.cases import Case
from attncheck.core.verdicts import HUGE, Score
from tests.attention.float64_attention import add, put, with_edits

BATCH, ROWS, HEADS, KV_HEADS, KEYS, DIM, V_DIM = 2, 3, 4, 2, 5, 6, 7
CASE = replace(
    Case("score", (ROWS,) * BATCH, (KEYS,) * BATCH, num_heads=HEADS, num_kv_heads=KV_HEADS),
    head_dim=DIM,
    v_head_dim=V_DIM,
)
SHAPES = {"out": (BATCH, ROWS, HEADS, V_DIM), "dq": (BATCH, ROWS, HEADS, DIM)}
SHAPES |= {"dk": (BATCH, KEYS, KV_HEADS, DIM), "dv": (BATCH, KEYS, KV_HEADS, V_DIM)}
UNJUDGED = (1, 0)  # a row of the batch, and of it


def make_reference(case: Case = CASE, rows: list[int] | None = None) -> Reference:
    """Return exact results of size 1 to 2 with sigmas of 0.01 to 0.03; nothing is asked of one row."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return signs * (1.0 + torch.rand(*shape, generator=generator, dtype=torch.float64))

    judged = torch.ones(BATCH, ROWS, dtype=torch.bool)
    judged[UNJUDGED] = False
    sigma = {name: 0.01 + 0.02 * torch.rand(*shape, generator=generator) for name, shape in SHAPES.items()}
    exact = {name: draw(*shape) for name, shape in SHAPES.items()}
    for name in ("out", "dq"):
        exact[name][UNJUDGED] = 0.0
    return Reference(
        case,
        exact["out"],
        draw(BATCH, HEADS, ROWS) * 100.0,
        torch.zeros(BATCH, HEADS, ROWS),
        torch.zeros(BATCH, HEADS, ROWS),
        exact["dq"],
        exact["dk"],
        exact["dv"],
        False,
        {**sigma, "dsinks": torch.tensor([0.1, 0.2, 0.3, 0.4])},
        torch.tensor([1.0, -2.0, 3.0, -4.0], dtype=torch.float64),
        None if rows is None else torch.tensor(rows),
        judged,
    )


def exact_outputs(reference: Reference, noise: float = 0.0, seed: int = 1) -> Outputs:
    """Return the exact results, each off by `noise` sigmas times a normal number; wild if nothing is judged."""
    generator = torch.Generator().manual_seed(seed)
    noisy = {}
    for name in TENSORS:
        want = getattr(reference, name)
        x = want + noise * reference.sigma[name] * torch.randn(want.shape, generator=generator)
        if name in ("out", "dq"):
            x[UNJUDGED] = 1e3
        noisy[name] = x
    assert reference.dsinks is not None
    dsinks = reference.dsinks + noise * reference.sigma["dsinks"]
    return Outputs(noisy["out"], reference.lse.clone(), noisy["dq"], noisy["dk"], noisy["dv"], dsinks)


def score_of(name: str, outputs: Outputs, reference: Reference, eager: Outputs | None = None) -> Score:
    return {score.tensor: score for score in score_outputs(outputs, reference, eager)}[name]


@pytest.mark.parametrize("name", TENSORS)
def test_every_number_is_what_loops_make_it(name: str) -> None:
    reference = make_reference()
    outputs, eager = exact_outputs(reference, 1.5), exact_outputs(reference, 3.0, seed=2)
    want, got, sigma = (
        x[name].tolist() if isinstance(x, dict) else getattr(x, name).tolist()
        for x in (reference, outputs, reference.sigma)
    )
    yardstick = getattr(eager, name).tolist()
    batch, rows, heads, dims = SHAPES[name]
    count, squares, errors, size, got_size, product, largest, eager_largest = (0, *(7 * [0.0]))
    z_row, slopes = {}, {}
    for h in range(heads):
        along, of_want, spread, shrunk = 0.0, 0.0, 0.0, 0.0
        for b in range(batch):
            for r in range(rows):
                if name in ("out", "dq") and (b, r) == UNJUDGED:
                    continue
                row_error, row_sigma, row_spread = 0.0, 0.0, 0.0
                for d in range(dims):
                    w, g, s = want[b][r][h][d], got[b][r][h][d], sigma[b][r][h][d]
                    count, squares, errors = count + 1, squares + ((g - w) / s) ** 2, errors + (g - w) ** 2
                    size, got_size, product = size + w * w, got_size + g * g, product + g * w
                    row_error, row_sigma, row_spread = (
                        row_error + (g - w) ** 2,
                        row_sigma + s * s,
                        row_spread + s * abs(w),
                    )
                    along, of_want = along + (g - w) * w, of_want + w * w
                    largest = max(largest, abs(g - w))
                    eager_largest = max(eager_largest, abs(yardstick[b][r][h][d] - w))
                z_row[b, r, h] = math.sqrt(row_error / row_sigma)
                spread, shrunk = spread + row_spread**2, shrunk + row_sigma
        slopes[h] = (along / of_want, (math.sqrt(spread) + shrunk) / of_want)
    score = score_of(name, outputs, reference, eager)
    assert score.z_rms == pytest.approx(math.sqrt(squares / count), rel=1e-5)
    worst = max(z_row, key=lambda place: z_row[place])
    assert (score.batch, score.token, score.head) == worst
    assert score.z_row == pytest.approx(z_row[worst], rel=1e-5)
    assert score.relative_error == pytest.approx(math.sqrt(errors / size), rel=1e-5)
    assert score.cosine == pytest.approx(product / math.sqrt(size * got_size), rel=1e-9)
    assert score.max_abs == pytest.approx(largest, rel=1e-5)
    assert score.eager_ratio == pytest.approx(largest / eager_largest, rel=1e-5)
    budgets = {h: max(3e-4, 4.0 * slope_sigma) for h, (_, slope_sigma) in slopes.items()}
    worst_head = max(slopes, key=lambda h: abs(slopes[h][0]) / budgets[h])
    assert (score.slope_head, score.nonfinite, score.document) == (worst_head, 0, score.batch)
    assert score.slope - 1.0 == pytest.approx(slopes[worst_head][0], rel=1e-4)
    assert score.slope_sigma == pytest.approx(slopes[worst_head][1], rel=1e-5)
    rows_of_z, error = row_errors(name, getattr(outputs, name), reference)
    assert tuple(error.shape) == SHAPES[name]
    for place, z in z_row.items():
        assert float(rows_of_z[place]) == pytest.approx(z, rel=1e-5)


@pytest.mark.parametrize("name", TENSORS)
def test_the_worst_place_is_told_wherever_it_is(name: str) -> None:
    reference = make_reference()
    outputs = exact_outputs(reference, 0.1)
    batch, rows, heads, _ = SHAPES[name]
    for b in range(batch):
        for r in range(rows):
            for h in range(heads):
                score = score_of(name, with_edits(outputs, **{name: add((b, r, h), 5.0)}), reference)
                place = (score.batch, score.token, score.head)
                assert (place == (b, r, h)) != (name in ("out", "dq") and (b, r) == UNJUDGED)


def test_the_worst_lse_is_told_wherever_it_is() -> None:
    reference = make_reference()
    for b in range(BATCH):
        for h in range(HEADS):
            for r in range(ROWS):
                score = score_of("lse", with_edits(exact_outputs(reference), lse=add((b, h, r), 5.0)), reference)
                if (b, r) == UNJUDGED:
                    assert (score.z_row, score.max_abs, score.relative_error) == (0.0, 0.0, 0.0)
                    continue
                assert (score.batch, score.head, score.token, score.document) == (b, h, r, b)
                size = abs(float(reference.lse[b, h, r]))
                assert score.z_row == pytest.approx(5.0 - 1e-5 * size, rel=1e-7)
                assert score.max_abs == pytest.approx(5.0)
                judged = reference.lse.square().sum() - reference.lse[UNJUDGED[0], :, UNJUDGED[1]].square().sum()
                assert score.relative_error == pytest.approx(5.0 / math.sqrt(judged))
                assert (score.z_rms, score.nonfinite, score.cosine, score.slope) == (0.0, 0, 1.0, 1.0)


def test_an_lse_may_be_off_by_its_slack_and_is_nothing_where_no_key_is_seen() -> None:
    reference = make_reference()
    reference.lse_slack[0, 1, 2] = 2.0
    reference.lse[1, 3, 1] = -math.inf
    outputs = with_edits(exact_outputs(reference), lse=add((0, 1, 2), -2.5))
    outputs = with_edits(outputs, lse=put((1, 3, 1), 7.0))
    score = score_of("lse", outputs, reference)
    assert score.z_row == pytest.approx(0.5 - 1e-5 * abs(float(reference.lse[0, 1, 2])))
    assert score.nonfinite == 0
    outputs = with_edits(outputs, lse=put((0, 1, 2), reference.lse[0, 1, 2] + 1.9))
    assert score_of("lse", outputs, reference).z_row == 0.0
    for value in (math.nan, math.inf, -math.inf):
        spoilt = with_edits(outputs, lse=put((0, [0, 1], 0), value))
        assert score_of("lse", spoilt, reference).nonfinite == 2
        assert math.isfinite(score_of("lse", spoilt, reference).max_abs)
        assert score_of("lse", with_edits(outputs, lse=put((1, 2, 0), value)), reference).nonfinite == 0


def test_sinks_are_judged_head_by_head() -> None:
    reference = make_reference()
    outputs = with_edits(exact_outputs(reference), dsinks=add(([1, 2],), torch.tensor([0.6, -0.6]).double()))
    score = score_of("dsinks", outputs, reference)
    assert (score.batch, score.head, score.token, score.document, score.nonfinite) == (0, 1, 0, -1, 0)
    assert score.z_row == pytest.approx(3.0)
    assert score.z_rms == pytest.approx(math.sqrt((9.0 + 4.0) / 4))
    assert score.max_abs == pytest.approx(0.6)
    assert score.relative_error == pytest.approx(math.sqrt(0.72 / 30.0))
    assert (score.cosine, score.slope, score.eager_ratio) == (1.0, 1.0, 0.0)
    score = score_of("dsinks", with_edits(outputs, dsinks=put(([0, 3],), math.nan)), reference)
    assert score.nonfinite == 2 and score.z_row == pytest.approx(10.0)
    one = replace(reference, dsinks=torch.ones(1), sigma=reference.sigma | {"dsinks": torch.ones(1)})
    assert score_of("dsinks", replace(outputs, dsinks=torch.tensor([2.5])), one).z_rms == 1.5


def test_only_what_is_returned_and_has_a_reference_is_scored() -> None:
    reference = make_reference()
    outputs = exact_outputs(reference)
    assert [score.tensor for score in score_outputs(outputs, reference)] == [*TENSORS, "lse", "dsinks"]
    assert [score.tensor for score in score_outputs(outputs, reference, judge_lse=False)] == [*TENSORS, "dsinks"]
    assert [score.tensor for score in score_outputs(Outputs(outputs.out), reference)] == ["out"]
    assert [score.tensor for score in score_outputs(outputs, replace(reference, dsinks=None))] == [*TENSORS, "lse"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_counted_and_spoil_no_other_number(value: float) -> None:
    reference = make_reference()
    outputs = exact_outputs(reference, 0.1)
    for name, nowhere in (("out", True), ("dq", False)):
        assert score_of(name, with_edits(outputs, **{name: put(UNJUDGED, value)}), reference).nonfinite == (
            0 if nowhere else HEADS * DIM
        )
    for name in TENSORS:
        score = score_of(name, with_edits(outputs, **{name: put((0, 1, 1, [2, 4]), value)}), reference)
        assert score.nonfinite == 2
        assert score.max_abs == pytest.approx(float(getattr(reference, name)[0, 1, 1, [2, 4]].abs().max()), rel=1e-5)
        assert 0.9 < score.cosine < 1.0
        eager = with_edits(outputs, **{name: put((0, 0, 0, 0), value)})
        assert 0.0 < score_of(name, outputs, reference, eager).eager_ratio < 1.0


@pytest.mark.parametrize(("layout", "inside"), [("right_padded", slice(0, 2)), ("left_padded", slice(1, 3))])
def test_what_lies_in_padding_is_not_counted(layout: str, inside: slice) -> None:
    case = replace(CASE, seqlens_q=(3, 2), seqlens_k=(5, 4), layout=layout)  # type: ignore[arg-type]
    reference = make_reference(case, rows=[0, 1, 2])
    reference.judged = torch.ones(BATCH, ROWS, dtype=torch.bool)
    outputs = exact_outputs(reference)
    for row in range(ROWS):
        spoilt = with_edits(outputs, out=put((1, row), math.nan))
        assert score_of("out", spoilt, reference).nonfinite == (HEADS * V_DIM if row in range(3)[inside] else 0)
        assert score_of("out", with_edits(outputs, out=put((0, row), math.nan)), reference).nonfinite == HEADS * V_DIM


def test_sampled_rows_are_picked_and_told_as_tokens() -> None:
    case = replace(CASE, seqlens_q=(4, 6), seqlens_k=(2, 3), layout="packed", every_row=False)
    rows = [1, 4, 8]
    reference = make_reference(case, rows)
    all_rows = {name: torch.full((BATCH, 10, HEADS, SHAPES[name][-1]), 77.0).double() for name in ("out", "dq")}
    exact = exact_outputs(reference)
    for name, x in all_rows.items():
        x[:, rows] = getattr(exact, name)
    lse = torch.full((BATCH, HEADS, 10), 77.0).double()
    lse[..., rows] = reference.lse
    outputs = replace(exact, out=all_rows["out"], dq=all_rows["dq"], lse=lse)
    assert all(score.max_abs == 0.0 for score in score_outputs(outputs, reference))
    for row, document in zip(rows, (0, 1, 1)):
        for name, index in (("out", (0, row, 2)), ("dq", (0, row, 2)), ("lse", (0, 2, row))):
            score = score_of(name, with_edits(outputs, **{name: add(index, 5.0)}), reference)
            assert (score.batch, score.token, score.head, score.document) == (0, row, 2, document)
    for key, document in enumerate((0, 0, 1, 1, 1)):
        for name in ("dk", "dv"):
            score = score_of(name, with_edits(outputs, **{name: add((0, key, 1), 5.0)}), reference)
            assert (score.token, score.head, score.document) == (key, 1, document)
    score = score_of("dk", with_edits(outputs, dk=add((1, 0, 0), 5.0)), reference)
    assert (score.batch, score.document) == (1, -1), "no document lies there"
    spoilt = with_edits(outputs, out=put((0, 5), math.nan))
    assert score_of("out", spoilt, reference).nonfinite == HEADS * V_DIM, "in a row that is not sampled"


def test_a_slope_is_told_of_the_head_where_it_says_most() -> None:
    reference = make_reference()
    reference.sigma["dk"][:, :, 0] = 0.5
    outputs = with_edits(exact_outputs(reference), dk=lambda x: x * torch.tensor([1.01, 1.005])[:, None])
    score = score_of("dk", outputs, reference)
    assert score.slope_head == 1 and score.slope == pytest.approx(1.005)
    reference.sigma["dk"][:] = 1e-6
    score = score_of("dk", outputs, reference)
    assert score.slope_head == 0 and score.slope == pytest.approx(1.01)
    reference.dk[:, :, 0] = 0.0
    outputs = with_edits(exact_outputs(reference), dk=add((0, 0, 0), 9.0))
    score = score_of("dk", outputs, reference)
    assert (score.slope, score.slope_sigma) == (1.0, 0.0)


def test_infinity_is_told_as_the_number_that_stands_for_it() -> None:
    reference = make_reference()
    very_large = math.copysign(1e300, float(reference.dv[0, 1, 1, 2]))
    score = score_of("dv", with_edits(exact_outputs(reference), dv=put((0, 1, 1, 2), very_large)), reference)
    assert (score.z_rms, score.z_row, score.max_abs, score.relative_error) == (HUGE, HUGE, HUGE, HUGE)
    assert (score.slope, score.slope_head) == (1.0 + HUGE, 1)
    # As large as finite results go: the product of norms overflows.
    score = score_of("dv", with_edits(exact_outputs(reference), dv=lambda x: x * 1e200), reference)
    assert score.cosine == 1.0
    assert score_of("dv", with_edits(exact_outputs(reference), dv=lambda x: x * 1e3), reference).z_row < HUGE


def test_nothing_divided_by_nothing_is_no_error() -> None:
    reference = make_reference()
    for name in TENSORS:
        getattr(reference, name).zero_()
    assert reference.judged is not None
    reference.judged[:] = False
    outputs = exact_outputs(reference)
    score = score_of("out", outputs, reference, outputs)
    assert (score.z_rms, score.z_row, score.relative_error, score.cosine, score.eager_ratio) == (
        0.0,
        0.0,
        0.0,
        1.0,
        0.0,
    )
    assert (score.slope, score.slope_sigma, score.nonfinite) == (1.0, 0.0, 0)
    assert score_of("dk", outputs, reference).eager_ratio == 0.0
