"""What the errors of a wrong result are called, on either side of each limit: edited exact results, no kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import make_inputs
from attncheck.attention.reference.error_patterns import describe_patterns
from attncheck.attention.reference.oracle import Reference, compute_reference
from attncheck.core.cases import Case
from attncheck.core.sharding import Sharding
from tests.attention.float64_attention import put

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


@pytest.mark.parametrize(("most", "is_shift"), [(0.029, True), (0.031, False)])
def test_a_shift_of_lse_is_nearly_the_same_everywhere(most: float, is_shift: bool) -> None:
    sign = 1.0 - 2.0 * (torch.arange(96) % 2)
    lines = describe(PLAIN, lse=lambda x: x + 0.5 * (1.0 + most * sign))
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
