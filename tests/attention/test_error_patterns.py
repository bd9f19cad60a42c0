"""What the errors of a wrong result are called, on either side of each limit: edited exact results, no kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import make_inputs
from attncheck.attention.reference import error_patterns
from attncheck.attention.reference.error_patterns import describe_patterns
from attncheck.attention.reference.oracle import Reference, compute_reference
from attncheck.attention.reference.score import row_errors
from attncheck.core.cases import Case
from attncheck.core.sharding import Sharding
from attncheck.core.verdicts import LSE_BUDGET, Budget
from tests.attention.float64_attention import add, put

Edit = Callable[[Tensor], Tensor]


def make_case(*seqlens: int, **changes: object) -> Case:
    plain: dict[str, object] = {"num_heads": 8, "num_kv_heads": 8, "head_dim": 32, "v_head_dim": 32, "scale": 0.1}
    return Case("patterns", seqlens, seqlens, **{**plain, **changes})  # type: ignore[arg-type]


PLAIN = make_case(96)
GROUPED = make_case(96, num_kv_heads=2)
PACKED = make_case(40, 30, 26, layout="packed")


@cache
def compute(case: Case) -> Reference:
    return compute_reference(make_inputs(case, "cpu"))


def describe(case: Case, **edits: Edit) -> list[str]:
    """Return what is said of the exact results of a case with these edits."""
    exact = compute(case)
    results = {name: getattr(exact, name).clone() for name in ("out", "dq", "dk", "dv")}
    results |= {name: edit(results[name]) for name, edit in edits.items() if name != "lse"}
    lse = exact.lse.clone()
    outputs = Outputs(results["out"], edits["lse"](lse) if "lse" in edits else lse, *list(results.values())[1:])
    return list(describe_patterns(outputs, exact, tuple(edits)))


def with_rest(factor: float, share: float) -> Edit:
    """Return an edit to `factor` times a result, and a rest of this share of its norm that is no multiple of it."""

    def edit(x: Tensor) -> Tensor:
        rest = torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=x.dtype)
        rest -= (rest * x).sum() / x.square().sum() * x
        return factor * x + share * float(x.norm() / rest.norm()) * rest

    return edit


def tokens(*positions: int) -> Edit:
    """Return an edit that loses the results of some tokens."""
    return put((slice(None), list(positions)), 0.0)


def heads(*numbers: int) -> Edit:
    """Return an edit that loses the results of some heads of some tokens."""
    return lambda x: put((slice(None), slice(1, None, 2), list(numbers)), 0.0)(put((0, 0, list(numbers)), 0.0)(x))


@pytest.mark.parametrize(("most", "is_shift"), [(0.0312, True), (0.03125, False), (0.0313, False)])
def test_a_shift_of_lse_is_nearly_the_same_everywhere(most: float, is_shift: bool) -> None:
    sign = 1.0 - 2.0 * (torch.arange(96) % 2)
    for some in (slice(None), slice(0, 2)):  # as far in all rows, or in two
        deviation = torch.zeros(96)
        deviation[some] = most * sign[some]
        lines = describe_lse(PLAIN, lambda x, d=deviation: x + 0.5 * (1.0 + d))  # type: ignore[misc]
        assert any("lse is shifted by 0.5 everywhere" in line for line in lines) == is_shift, lines


@pytest.mark.parametrize(
    ("factor", "share", "is_factor"),
    [
        *((1.0029, 0.0, False), (1.0031, 0.0, True), (0.9971, 0.0, False), (0.9969, 0.0, True)),
        *((1.1, 0.028, True), (1.1, 0.032, False), (8.0, 0.39, True), (8.0, 0.41, False)),
    ],
)
def test_a_factor_explains_nearly_all_of_an_error(factor: float, share: float, is_factor: bool) -> None:
    lines = describe(PLAIN, dk=with_rest(factor, share))
    assert any(f"{factor:.4g} times what it should be" in line for line in lines) == is_factor, lines


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        *((32**-0.5, "by 1/sqrt(head_dim)"), (10 * 32**-0.5, "1/sqrt(head_dim) for the scale")),
        *((0.1, "by the softmax scale"), (0.6931, "ln(2)"), (1.4427, "log2(e)"), (1.4427 * 1.0039, "log2(e)")),
    ],
)
def test_a_factor_that_has_a_name_is_named(factor: float, words: str) -> None:
    (line,) = describe(PLAIN, dk=lambda x: x * factor)
    assert line.endswith(words) or words in line.partition(", as ")[2], line


@pytest.mark.parametrize("factor", [1.4427 * 1.0045, 0.25, 3.0])
def test_other_factors_have_no_name(factor: float) -> None:
    (line,) = describe(PLAIN, dk=lambda x: x * factor)
    assert line == f"dk: {factor:.4g} times what it should be"


@pytest.mark.parametrize(
    ("case", "numbers", "name"),
    [
        (PLAIN, (1, 2, 5), "heads 1, 2, 5 of 8"),
        (PLAIN, (0, 2, 4, 6), "heads 0, 2, 4, 6 of 8"),
        (PLAIN, (0, 1, 3, 6), ""),
        (GROUPED, (0, 1, 3, 4, 5, 7), "heads 0, 1, 3, 4, 5, 7 of 8"),
        (GROUPED, (0, 1, 3, 4, 6, 7), ""),
    ],
)
def test_heads_are_named_if_they_are_few_or_regular(case: Case, numbers: tuple[int, ...], name: str) -> None:
    lines = [line for line in describe(case, out=heads(*numbers)) if "errors only in head" in line]
    assert (bool(lines), all(name in line for line in lines)) == (bool(name), True), lines


@pytest.mark.parametrize(
    ("case", "wrong", "place"),
    [
        (PLAIN, range(3, 96, 8), "in every 8th query, from 3 on"),
        (PLAIN, range(64, 96), "in the queries from 64 on (after the last whole tile of 64)"),
        (PLAIN, range(70, 96), "in the queries from 70 on"),
        (PLAIN, range(30), "in the first 30 queries"),
        (PLAIN, (17,), "in query 17"),
        (PLAIN, (17, 30, 31), ""),
        (PACKED, (0, 1, 40, 41, 70, 71), "in the first 2 queries of each document"),
        (PACKED, (38, 39, 68, 69, 94, 95), "in the last 2 queries of each document"),
        (PACKED, (1, 38, 41, 69, 70, 94), "on document boundaries"),
        (PACKED, (1, 37, 41, 69, 70, 94), ""),
        (PACKED, range(40, 70), "in document 1 of 3"),
    ],
)
def test_places_along_the_sequence_are_named(case: Case, wrong: range | tuple[int, ...], place: str) -> None:
    lines = describe(case, out=tokens(*wrong))
    assert any(f"errors only {place}" in line for line in lines) == bool(place), lines


@pytest.mark.parametrize(("z", "is_named"), [(19.0, False), (21.0, True)])
def test_a_place_is_named_if_a_rows_error_is_clear(z: float, is_named: bool) -> None:
    sigma = float(compute(PLAIN).sigma["out"][0, 17].square().mean(-1).sqrt().min())
    shift = torch.zeros(96, 8, 32)
    shift[17, int(compute(PLAIN).sigma["out"][0, 17].square().mean(-1).argmin())] = z * sigma
    lines = describe(PLAIN, out=lambda x: x + shift)
    assert any("in query 17" in line for line in lines) == is_named, lines


def test_errors_that_fade_have_no_edge() -> None:
    sigma = compute(PLAIN).sigma["out"]
    fading = 400.0 / torch.arange(1, 97)[None, :, None, None]
    assert not describe(PLAIN, out=lambda x: x + fading * sigma)
    (line,) = describe(PLAIN, out=lambda x: x + 100.0 * (fading > 8.0) * sigma)
    assert "errors only in the first 49 queries" in line, line


def test_elements_of_head_dim_are_named_unless_the_inputs_have_their_size_in_one() -> None:
    edit = put((..., slice(8, 16)), 0.0)
    assert "in head_dim elements 8 to 15" in describe(PLAIN, out=edit)[0]
    assert not any("elements" in line for line in describe(make_case(96, values="negative"), dq=put((..., 0), 0.0)))


def test_heads_and_rows_that_hold_the_result_of_another() -> None:
    assert describe(PLAIN, out=lambda x: x.roll(1, 2))[0].startswith(
        "out: head 0 holds head 7's result; head 1 holds head 0"
    )
    assert describe(make_case(64, 64), dq=lambda x: x.flip(0))[0] == "dq: batch row 0 holds batch row 1's result; " + (
        "batch row 1 holds batch row 0's result"
    )


def test_a_result_that_is_merely_like_another_heads_is_not_called_its_own() -> None:
    def lean(x: Tensor) -> Tensor:
        return torch.cat([0.95 * x[:, :, 7:] + 0.1 * x[:, :, :1], x[:, :, 1:]], 2)

    assert not any("holds" in line for line in describe(PLAIN, out=lean))


@pytest.mark.parametrize(
    ("sharding", "wrong", "ranks"),
    [
        ("contiguous", range(16, 20), "rank 1 of 4"),
        ("zigzag", (3, 60, 8), "ranks 0, 1 of 4"),
        ("contiguous", range(64), ""),
    ],
)
def test_the_ranks_that_are_wrong_are_named(sharding: Sharding, wrong: Sequence[int], ranks: str) -> None:
    exact = compute(make_case(64, context_parallel_size=4))
    outputs = Outputs(exact.out, exact.lse, exact.dq, tokens(*wrong)(exact.dk.clone()), exact.dv)
    lines = describe_patterns(outputs, exact, ("dk",), sharding)
    assert [line for line in lines if "rank" in line] == ([f"dk: errors only on {ranks}"] if ranks else [])


# --- which results are described ---


def test_only_the_tensors_over_budget_are_described_and_at_most_six_lines_are_shown() -> None:
    exact = compute(PLAIN)
    outputs = Outputs(exact.out.roll(1, 2), exact.lse + 0.5, exact.dq.roll(1, 2), exact.dk.roll(1, 2), exact.dv * 0.0)
    shift = "lse is shifted by 0.5 everywhere"
    assert describe_patterns(outputs, exact, ()) == (shift,)
    lines = describe_patterns(outputs, exact, ("dk",))
    assert lines[0] == shift and len(lines) > 1 and all(line.startswith("dk: ") for line in lines[1:])
    assert describe_patterns(outputs, exact, ("dv",)) == (shift, "dv: zero everywhere")
    assert describe_patterns(replace(outputs, dv=None), exact, ("dv",)) == (shift,)
    assert describe_patterns(replace(outputs, dv=put((0, 3), math.nan)(exact.dv.clone())), exact, ("dv",)) == (shift,)
    assert len(describe_patterns(outputs, exact, ("out", "dq", "dk", "dv"))) == 5
    scaled = {name: torch.cat((x[:, :, :4].roll(1, 2), 3.0 * x[:, :, 4:5], x[:, :, 5:]), 2) for name, x in (
        ("out", exact.out), ("dq", exact.dq), ("dk", exact.dk), ("dv", exact.dv))}  # fmt: skip
    everything = replace(outputs, **scaled)  # type: ignore[arg-type]
    named = [describe_patterns(everything, exact, (name,))[1:] for name in scaled]
    assert sum(map(len, named)) > 5
    assert describe_patterns(everything, exact, tuple(scaled)) == (shift, *itertools.chain(*named))[:6]


def test_the_gradient_of_the_sinks_is_described() -> None:
    exact = compute(make_case(64, sinks=True))
    assert exact.dsinks is not None
    outputs = Outputs(exact.out, exact.lse, exact.dq, exact.dk, exact.dv, 2.0 * exact.dsinks)
    assert describe_patterns(outputs, exact, ("dsinks",)) == ("dsinks: 2 times what it should be",)
    assert describe_patterns(outputs, exact, ("dq",)) == ()
    assert describe_patterns(replace(outputs, dsinks=None), exact, ("dsinks",)) == ()
    plain = compute(PLAIN)
    assert describe_patterns(Outputs(plain.out, dsinks=torch.ones(8)), plain, ("dsinks",)) == ()


# --- LSE ---


def orthogonal(x: Tensor, *others: Tensor) -> Tensor:
    """Return noise of norm 1 that has no part along x or others."""
    basis = torch.linalg.qr(torch.stack([y.double().flatten() for y in (x, *others)], 1))[0]
    noise = torch.randn(x.numel(), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise -= basis @ (basis.T @ noise)
    return torch.nn.functional.normalize(noise, dim=0).view(x.shape)


def describe_lse(case: Case, edit: Edit) -> list[str]:
    exact = compute(case)
    outputs = Outputs(exact.out, edit(exact.lse.double()))
    return list(describe_patterns(outputs, replace(exact, lse=exact.lse.double()), ()))


@pytest.mark.parametrize(("shift", "is_named"), [(0.9e-3, False), (1.1e-3, True)])
def test_a_shift_of_lse_is_named_if_it_is_not_rounding(shift: float, is_named: bool) -> None:
    expected = [f"lse is shifted by {shift:.4g} everywhere"] if is_named else []
    for case in (PLAIN, CROSSED):
        assert describe_lse(case, lambda x: x + shift) == expected


def test_an_lse_that_is_nowhere_finite_has_no_pattern() -> None:
    assert describe_lse(PLAIN, lambda x: x * math.nan) == []
    assert describe_lse(PLAIN, lambda x: put((0, 3, 5), math.inf)(x + 0.5)) == ["lse is shifted by 0.5 everywhere"]
    assert describe_lse(PLAIN, put((0, 3, 5), 7.0)) == [], "its error is not the same everywhere"


@pytest.mark.parametrize(("share", "is_base"), [(0.0099, True), (0.0101, False)])
def test_an_lse_in_base_2_may_have_noise(share: float, is_base: bool) -> None:
    def edit(lse: Tensor) -> Tensor:
        size = (1.0 / math.log(2.0) - 1.0) * float(lse.norm())
        return lse / math.log(2.0) + share * size * orthogonal(lse)

    assert ("lse is in base 2" in describe_lse(PLAIN, edit)) == is_base


@pytest.mark.parametrize(
    ("slope", "share", "is_scale"),
    [
        *((0.1, 0.0, True), (0.1, 0.149, True), (0.1, 0.151, False), (-0.1, 0.149, True), (-0.1, 0.151, False)),
        *((0.3, 0.349, True), (0.3, 0.351, False), (0.49, 0.0, True), (0.51, 0.0, False), (-0.51, 0.0, False)),
    ],
)
def test_a_scale_explains_nearly_all_of_an_lses_error(slope: float, share: float, is_scale: bool) -> None:
    logit = compute(PLAIN).expected_logit.double()
    rest = abs(slope) * float(logit.norm()) * share / math.sqrt(1.0 - share**2)
    lines = describe_lse(PLAIN, lambda x: x + slope * logit + rest * orthogonal(logit))
    assert lines == ([f"the softmax scale is off by about {100 * slope:+.2g} %"] if is_scale else [])


@pytest.mark.parametrize("changes", [{"alibi": True}, {"mask": "additive"}])
def test_a_scale_does_not_multiply_a_bias(changes: dict[str, object]) -> None:
    case = make_case(64, **changes)
    assert describe_lse(case, lambda x: x + 0.1 * compute(case).expected_logit) == []


CROSSED = Case("patterns", (96,), (60,), num_heads=8, num_kv_heads=8, head_dim=32, v_head_dim=32, scale=0.1)


@pytest.mark.parametrize(
    ("edit", "places"),
    [
        (put((0, 2, slice(1, None, 3)), 9.0), "in head 2 of 8, in every 3th query, from 37 on"),
        (add((0, 2, 57), 0.0039), ""),
        (add((0, 2, 57), -0.0041), "in head 2 of 8, in query 57"),
        (put((0, 2, 57), math.nan), "in head 2 of 8, in query 57"),
        (
            lambda x: add((0, 3, 90), -0.00061)(add((0, 2, 57), 0.0079)(x)),
            "in head 2 of 8, in every 33th query, from 57 on",
        ),
        (lambda x: add((0, 3, 90), -0.00059)(add((0, 2, 57), 0.0079)(x)), "in head 2 of 8, in query 57"),
        (put((0, 2, 5), 9.0), ""),  # a row without keys
        (put((0, slice(None), [41, 57, 58, 90]), 9.0), ""),
    ],
)
def test_places_where_only_an_lse_is_wrong(edit: Edit, places: str) -> None:
    lines = [line for line in describe(CROSSED, lse=edit) if "errors" in line]
    assert lines == ([f"lse: errors only {places}"] if places else [])
    exact = compute(CROSSED)
    outputs = Outputs(exact.out, edit(exact.lse.clone()), exact.dq * 2.0)
    assert not any("errors" in line for line in describe_patterns(outputs, exact, ("lse", "dq"))), "dq says more"


# --- limits at which nothing may change ---


def test_limits_are_not_passed_by_what_equals_them(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = compute(PLAIN)
    lost = tokens(17)(exact.out.clone())
    largest = float(row_errors("out", lost, exact)[0].max())
    shifted = exact.lse.clone()
    shifted[0, 2, 17] += 0.5
    for name, outputs, value in (
        ("out", Outputs(lost), largest),
        ("lse", Outputs(exact.out, shifted), float((shifted - exact.lse).abs().max() / LSE_BUDGET)),
    ):
        for limit, is_named in ((value, False), (value * (1.0 - 1e-6), True)):
            monkeypatch.setattr(error_patterns, "WRONG_ROW_Z", limit)
            lines = describe_patterns(outputs, exact, (name,))
            assert any("in query 17" in line for line in lines) == is_named
    monkeypatch.setattr(error_patterns, "WRONG_ROW_Z", 20.0)
    rows = row_errors("out", tokens(17, 30, 31)(exact.out.clone()), exact)[0]
    second = float(rows[0, 30:32].max())  # of rows of which only 17 is above
    edited = tokens(17)(tokens(30)(exact.out.clone()))
    edited[0, 30, 1:] = exact.out[0, 30, 1:]
    rows = row_errors("out", edited, exact)[0]
    second = float(rows[0, 30].max())
    assert second != float(rows[0, 17].max())
    for factor in (2.0, 1.0):  # half of the budget makes a row wrong, the whole one clearly wrong
        for limit, is_named in ((second, True), (second * (1.0 - 1e-6), False)):
            budget = Budget(2.0, factor * limit)
            monkeypatch.setattr(error_patterns, "BUDGETS", {"bfloat16": budget})
            lines = describe_patterns(Outputs(edited), exact, ("out",))
            assert any("in query 17" in line for line in lines) == (is_named and factor == 2.0), (factor, limit)


@pytest.mark.parametrize(("z", "is_named"), [(5.9, True), (6.1, False), (11.9, False), (12.1, False)])
def test_rows_of_half_the_budget_are_wrong_too(z: float, is_named: bool) -> None:
    sigma = compute(PLAIN).sigma["out"]
    weight = torch.zeros(96)
    weight[17], weight[40] = 60.0, z
    lines = describe(PLAIN, out=lambda x: x + weight[None, :, None, None] * sigma)
    assert any("in query 17" in line for line in lines) == is_named, lines


def test_an_error_that_no_row_has_twice_the_budget_of_has_a_place() -> None:
    case = make_case(96, dtype="float32")
    for z in (25.0, 31.0):
        weight = torch.zeros(96)
        weight[17] = z
        shift = weight[None, :, None, None] * compute(case).sigma["out"]
        lines = describe(case, out=partial(torch.add, other=shift))
        assert any("in query 17" in line for line in lines), z


@pytest.mark.parametrize(
    ("z", "wrong"),
    [
        ([20.0, 0.0], []),
        ([20.5, 0.0], [0]),
        ([25.0, 5.0, 0.0], [0]),
        ([25.0, 5.1, 0.0], []),
        ([100.0, 25.0, 5.1], []),
        ([1.0, 100.0, 25.0], [1, 2]),
        ([100.0, 25.0], []),
        ([1.0, 2.0], []),
    ],
)
def test_what_is_clearly_wrong(z: list[float], wrong: list[int]) -> None:
    assert error_patterns._clearly_wrong(torch.tensor(z)) == wrong


@pytest.mark.parametrize(
    ("places", "group", "is_regular"),
    [
        ([0, 1, 3], 1, True),
        ([0, 1, 3, 6], 1, False),
        ([0, 2, 4, 6], 1, True),
        ([0, 2, 4, 8], 1, False),
        ([0, 2, 4, 8], 2, True),
        ([5, 7, 9, 13], 2, True),
        ([0, 3, 4, 7], 2, False),
        ([1, 2, 5, 6], 4, True),
    ],
)
def test_what_is_regular(places: list[int], group: int, is_regular: bool) -> None:
    assert error_patterns._is_regular(places, group) == is_regular
    assert group > 1 or error_patterns._is_regular(places) == is_regular


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([4], " 4"),
        ([4, 5, 6], "s 4, 5, 6"),
        ([4, 5, 6, 7], "s 4 to 7"),
        ([4, 5, 6, 8], "s 4, 5, 6, 8"),
        ([0, 2, 4, 6, 8, 11], "s 0, 2, 4, 6, 8, 11"),
        ([0, 2, 4, 6, 8, 11, 12], "s 0, 2, 4, 6, 8, 11 … (7 in all)"),
    ],
)
def test_numbers_in_a_sentence(numbers: list[int], text: str) -> None:
    assert error_patterns._format_numbers(numbers) == text


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ((0.0, 0.0), ["zero"]),
        ((1.0 + 3.0 / 1024.0, 0.0), []),
        ((1.0 + 3.1 / 1024.0, 0.0), ["1.003 times what it should be"]),
        ((1.0 - 3.0 / 1024.0, 0.0), []),
        ((2.0, 0.05 * 2.0), []),  # of 2 times the right result's norm
        ((2.0, 0.0999), ["2 times what it should be"]),
        ((-2.0, 0.0999), ["-2 times what it should be"]),
        ((1.25, 0.0625), []),
        ((1.25, 0.0624), ["1.25 times what it should be"]),
        ((1.125, 0.0390), ["1.125 times what it should be"]),  # and of 0.3 times its error
        ((1.125, 0.0395), []),
    ],
)
def test_a_multiple_at_its_limits(got: tuple[float, float], words: list[str]) -> None:
    x, want = torch.tensor([got], dtype=torch.float64), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for size in (1.0, 1024.0):
        assert list(error_patterns._describe_content(size * x, size * want, PLAIN)) == words


def test_a_factors_name_at_its_limits() -> None:
    case = make_case(64, scale=0.75)
    for factor, names in (
        (0.75 * (1.0 + 2.0**-8), []),
        (0.75 * (1.0 - 2.0**-8), []),
        (0.75 * 1.0039, [", as by the softmax scale"]),
    ):
        assert list(error_patterns._name_factor(factor, case)) == names
    assert list(error_patterns._name_factor(0.25, make_case(64, head_dim=16))) == [], "a power of two"


# --- heads, batch rows, elements ---


def test_up_to_128_heads_or_batch_rows_are_compared_and_three_are_named() -> None:
    want = torch.randn(128, 3, 1, 8, generator=torch.Generator().manual_seed(2))
    for axis, noun in ((0, "batch row"), (2, "head")):
        x = want.transpose(0, axis)
        (line,) = error_patterns._swapped_results(x.roll(1, axis), x, axis, noun)
        assert line.split("; ") == [f"{noun} {i} holds {noun} {(i - 1) % 128}'s result" for i in range(3)]
        more = torch.cat((x, x.narrow(axis, 0, 1) + 1.0), axis)
        assert list(error_patterns._swapped_results(more.roll(1, axis), more, axis, noun)) == []
    single = want[:1]
    assert list(error_patterns._swapped_results(single, single, 0, "batch row")) == []


@pytest.mark.parametrize(
    ("own", "angle", "is_swapped"),
    [
        *((0.874, 0.0, True), (0.875, 0.0, False), (0.876, 0.0, False)),
        *((0.0, 0.9991, True), (0.0, 1.0 - 2.0**-10, False), (0.0, 0.9989, False)),
    ],
)
def test_a_swapped_result_is_like_the_other_and_unlike_its_own(own: float, angle: float, is_swapped: bool) -> None:
    want = torch.tensor([[1.0, 0.0, 0.0], [own, math.sqrt(1.0 - own**2), 0.0]])
    cosine = angle or 1.0
    got = torch.stack((cosine * want[1] + math.sqrt(1.0 - cosine**2) * torch.tensor([0.0, 0.0, 1.0]), want[1]))
    pair = (got.view(2, 1, 1, 3), want.view(2, 1, 1, 3))
    assert bool(list(error_patterns._swapped_results(*pair, 0, "batch row"))) == is_swapped
    for factor in (0.87, 1.13, 1e6):  # a multiple of the other's result is not that result
        assert not list(error_patterns._swapped_results(pair[0] * factor, pair[1], 0, "batch row"))


def test_results_that_should_be_zero_hold_no_other_heads() -> None:
    """With one key, dq is 0 up to rounding, and an error of it is a multiple of k in each head."""
    case = make_case(1, num_heads=40, num_kv_heads=1)
    k = make_inputs(case, "cpu").k.double()
    lines = describe(case, dq=lambda x: x + k * torch.linspace(0.5, 1.0, 40, dtype=torch.float64)[:, None])
    assert not any("holds" in line for line in lines), lines


@pytest.mark.parametrize(
    ("case", "wrong", "name"),
    [
        (make_case(64, sinks=True), range(4, 8), "heads 4 to 7 of 8"),
        (make_case(64, sinks=True), range(5, 8), ""),
        (make_case(64, sinks=True), range(3, 8), ""),
        (make_case(64, sinks=True), range(4), ""),
        (make_case(64, sinks=True), (2,), ""),
        (make_case(64, sinks=True, num_heads=10, num_kv_heads=10), range(6, 10), "heads 6 to 9 of 10"),
        (make_case(64, sinks=True, num_heads=10, num_kv_heads=10), range(4, 10), "heads 4 to 9 of 10"),
        (make_case(64, sinks=True, num_heads=10, num_kv_heads=10), range(3, 9), ""),
        (make_case(64, alibi=True), range(4, 8), ""),
        (make_case(64, num_heads=20, num_kv_heads=10), (0, 2, 4, 8), ""),  # of 10 kv heads, which are not grouped
        (make_case(64, num_heads=10, num_kv_heads=5), (0, 2, 4, 8), "heads 0, 2, 4, 8 of 10"),
        (PLAIN, (), ""),
    ],
)
def test_wrong_heads_are_named_unless_their_sinks_or_slopes_explain_them(
    case: Case, wrong: Sequence[int], name: str
) -> None:
    rows = torch.zeros(2, 3, 10 if case.num_heads == 20 else case.num_heads)
    rows[1, 2, list(wrong)] = 100.0
    assert list(error_patterns._wrong_heads(rows, case)) == ([f"in {name}"] if name else [])


def test_heads_that_are_zero_are_named_if_their_place_is_not() -> None:
    exact = compute(PLAIN)

    def lose(*numbers: int) -> Edit:
        return put((slice(None), slice(None), list(numbers)), 0.0)

    assert describe(PLAIN, dq=lose(2)) == ["dq: errors only in head 2 of 8: there it is zero"]
    assert describe(PLAIN, dq=lose(0, 1, 3, 6)) == ["dq: zero in heads 0, 1, 3, 6 of 8"]
    noise = torch.randn(exact.dq[:, :, 5].shape, generator=torch.Generator().manual_seed(3)) * float(exact.dq.std())
    lines = describe(PLAIN, dq=lambda x: put((slice(None), slice(None), 5), noise)(lose(2)(x)))
    assert lines == ["dq: errors only in heads 2, 5 of 8", "dq: zero in head 2 of 8"]
    one = make_case(1, 1)  # whose dq is zero in every head
    assert not any("zero" in line for line in describe(one, dq=put((0, 0, 3), 1.0)))


def test_elements_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*sizes: float) -> range:
        error = torch.tensor([sizes, [99.0] * len(sizes)]).view(1, 2, 1, -1)
        return error_patterns._wrong_columns(error, torch.tensor([[[True], [False]]]))

    assert find(0.0, 1.1, 10.0, 2.0, 1.0) == range(1, 4)
    assert find(0.0, 1.1, 1.0, 2.0, 10.0) == range(5), "not dense"
    assert find(0.0, 10.0, 0.0) == range(1, 2)
    assert find(math.inf, 1.0) == range(2)
    case = make_case(96, values="negative")
    lines = describe(case, dv=put((0, 40, slice(None), range(1, 9)), 1e9))
    assert lines and not any("elements" in line for line in lines)
    assert "in head_dim elements 1 to 8" in describe(PLAIN, dv=put((..., range(1, 9)), 0.0))[0]
    first = describe(case, dq=put((slice(None), 40, slice(None), 0), 9.0))
    assert first == ["dq: errors only in query 40"]


# --- positions ---


@pytest.mark.parametrize(("tile", "seqlen"), [(128, 200), (64, 100), (32, 104), (16, 120), (8, 108)])
def test_the_last_whole_tile_is_named(tile: int, seqlen: int) -> None:
    first = seqlen // tile * tile
    case = make_case(seqlen, num_heads=2, num_kv_heads=2)
    (line,) = describe(case, dk=tokens(*range(first, seqlen)))
    assert line.startswith(f"dk: errors only in the keys from {first} on (after the last whole tile of {tile})")


LONG = make_case(40, 70, 50, layout="packed")


@pytest.mark.parametrize(
    ("case", "wrong", "place"),
    [
        (PLAIN, range(3, 96, 2), "in every 2th query, from 3 on"),
        (PLAIN, (35, 43, 51, 59, 67, 75, 83, 91), "in every 8th query, from 35 on"),
        (PLAIN, range(2, 96), "in the queries from 2 on"),
        (PLAIN, range(1, 96), ""),  # query 0 has one key, whose v it returns
        (PLAIN, (0, 1, 2, 4), ""),  # four of five
        (PLAIN, (0, 1, 2, 3, 5), "in the first 6 queries"),
        (LONG, (*range(32, 40), *range(104, 110), *range(142, 160)),
         "in the queries after the last whole tile of 32 of each document"),
        (LONG, (*range(32, 40), *range(72, 110), *range(142, 160)), "in the queries of each document from 32 on"),
        (LONG, (0, 1, 38, 39, 40, 41, 109), "on document boundaries"),
        (LONG, (0, 2, 38, 41, 108, 111, 158), ""),
        (LONG, (39,), "in query 39"),
        (make_case(64, 64), (1, 62, 63), ""),
        (make_case(64, 64), (0, 1, 2), "in the first 3 queries"),
        (make_case(300), range(299), ""),  # one row says little
        (make_case(300), range(298), "in the first 298 queries"),
    ],
)  # fmt: skip
def test_more_places_along_the_sequence(case: Case, wrong: Sequence[int], place: str) -> None:
    lines = [line for line in describe(case, out=tokens(*wrong)) if "errors only" in line]
    assert [line.partition(":")[2].partition(":")[0] for line in lines] == ([f" errors only {place}"] if place else [])


def test_a_query_with_one_key_says_nothing_and_one_with_two_does() -> None:
    case = make_case(96, window_size=(1, 0))
    assert describe(case, out=tokens(*range(2, 96)))[0].startswith("out: errors only in the queries from 2 on")
    assert not any("errors only" in line for line in describe(case, dq=tokens(*range(1, 96))))
    rest = [token for token in range(160) if token not in (0, 40, 110)]
    assert not any("errors only" in line for line in describe(LONG, dq=tokens(*rest)))
    keys = describe(case, dk=tokens(*range(1, 96)))
    assert keys[0].startswith("dk: errors only in the keys from 1 on"), "a key of one query does"


def test_the_length_of_keys_is_not_that_of_queries() -> None:
    case = replace(PLAIN, seqlens_q=(40,), seqlens_k=(90,))
    assert describe(case, dk=tokens(*range(80, 90)))[0].startswith("dk: errors only in the keys from 80 on")
    assert (
        "tile of 8)" in describe(case, dq=tokens(*range(32, 40)))[0]
        or "tile of 32)" in (describe(case, dq=tokens(*range(32, 40)))[0])
    )
    packed = replace(case, seqlens_q=(30, 10), seqlens_k=(50, 40), layout="packed")
    assert describe(packed, dv=tokens(*range(50, 90)))[0].startswith("dv: errors only in the keys from 50 on")
    assert describe(packed, dv=tokens(*range(43, 50), *range(83, 90)))[0].startswith(
        "dv: errors only in the last 7 keys of each document"
    )


@pytest.mark.parametrize(("spared", "is_named"), [(4, False), (5, True)])
def test_a_short_document_may_be_spared_by_chance(spared: int, is_named: bool) -> None:
    case = make_case(30, spared, 30, layout="packed")
    wrong = (0, 7, 12, 13, 22, 30 + spared, 41 + spared, 42 + spared, 50 + spared, 59 + spared)
    lines = describe(case, dk=tokens(*wrong))
    assert any("in documents 0, 2 of 3" in line for line in lines) == is_named, lines
    pair = make_case(spared, 30, layout="packed")
    boundaries = describe(pair, dk=tokens(1, spared - 2, spared, spared + 28))
    assert any("on document boundaries" in line for line in boundaries) == is_named, boundaries
    unequal = replace(pair, seqlens_k=(30, 30))
    boundaries = describe(unequal, dk=tokens(1, 28, 30, 58))
    assert any("on document boundaries" in line for line in boundaries) == is_named, "fewer queries than that"
    assert not any("boundaries" in line for line in describe(pair, dk=tokens(spared + 29)))


def test_a_place_within_the_document_or_row_that_is_wrong() -> None:
    lines = describe(PACKED, dk=tokens(43, 51, 59, 67))
    assert lines[0].startswith("dk: errors only in document 1 of 3, in every 8th key, from 43 on") or (
        lines[0].startswith("dk: errors only in every 8th key")
    ), lines
    rows = describe(make_case(64, 64, 64), dk=put((1, [7, 31, 40, 41]), 0.0))
    assert rows[0].startswith("dk: errors only in batch row 1 of 3"), rows
    rows = describe(make_case(64, 64, 64), dk=put((1, [7, 31, 40, 41], 3), 0.0))
    assert "in batch row 1 of 3" in rows[0], rows


def test_errors_in_padding_have_no_place_in_a_sequence() -> None:
    case = make_case(64, 40, layout="right_padded")
    lines = describe(case, dk=put((1, slice(40, None)), 9.0))
    assert lines and not any("of each sequence" in line for line in lines), lines
    lines = describe(case, dk=lambda x: put((slice(None), 0), 9.0)(put((1, slice(40, None)), 9.0)(x)))
    assert not any("of each sequence" in line for line in lines), lines
    inside = describe(case, dk=put(([0, 0, 1, 1], [62, 63, 38, 39]), 0.0))
    assert inside[0].startswith("dk: errors only in the last 2 keys of each sequence"), inside
    left = make_case(64, 40, layout="left_padded")
    inside = describe(left, dk=put(([0, 0, 1, 1], [0, 1, 24, 25]), 0.0))
    assert inside[0].startswith("dk: errors only in the first 2 keys of each sequence"), inside


def test_a_ramp_says_nothing_of_where_errors_end() -> None:
    case = make_case(96, values="ramp")
    assert not any("first" in line for line in describe(case, dv=tokens(*range(30))))
    assert describe(case, dv=tokens(17))[0].startswith("dv: errors only in key 17")


def test_ranks_of_one_wrong_head_and_of_sampled_rows() -> None:
    case = make_case(64, 64, context_parallel_size=4)
    exact = compute(case)
    dk = put((1, 17, 3), 0.0)(exact.dk.clone())
    lines = describe_patterns(Outputs(exact.out, dk=dk), exact, ("dk",), "contiguous")
    assert lines[0] == "dk: errors only on rank 1 of 4"
    every = put((0, slice(0, None, 16)), 0.0)(exact.dk.clone())
    assert not any(
        "rank" in line for line in describe_patterns(Outputs(exact.out, dk=every), exact, ("dk",), "contiguous")
    )
    far = make_case(
        5000, num_heads=1, num_kv_heads=1, every_row=False, context_parallel_size=4, head_dim=8, v_head_dim=8
    )
    sampled = compute(far)
    assert sampled.rows is not None
    row = next(index for index, token in enumerate(sampled.rows.tolist()) if token >= 4000)
    out = torch.zeros(1, 5000, 1, 8)
    out[:, sampled.rows] = sampled.out.float()
    out[:, int(sampled.rows[row])] = 0.0
    dv = put((0, 4000), 0.0)(sampled.dv.clone())
    for name, outputs in (("out", Outputs(out)), ("dv", Outputs(out, dv=dv))):
        lines = describe_patterns(outputs, sampled, (name,), "contiguous")
        assert lines[0] == f"{name}: errors only on rank 3 of 4", lines
        token = 4000 if name == "dv" else int(sampled.rows[row])
        assert any(f"{token}" in line for line in lines[1:]), lines
