"""The generated cases: every pair and triple that is possible occurs, for any seed, in no more cases than before."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from attncheck.core.cases import Case
from attncheck.measure.case_features import group_by_shape
from attncheck.measure.covering import Coverage, make_rows
from attncheck.measure.generated_cases import (
    DIMENSIONS,
    INTERACTING,
    PLAIN,
    PLAIN_DIMENSIONS,
    Array,
    is_allowed,
    iter_generated_cases,
    make_coverage,
)
from attncheck.measure.suites import make_suite
from tests.conftest import Run

SMALL = {name: tuple(range(size)) for name, size in zip("abcdef", (4, 3, 3, 2, 2, 5))}


def missing_tuples(rows: list[dict[str, Any]], dimensions: Mapping[str, Sequence[Any]], size: int) -> list[Any]:
    missing = []
    for names in itertools.combinations(dimensions, size):
        held = {tuple(row[name] for name in names) for row in rows}
        missing += [(names, values) for values in itertools.product(*(dimensions[name] for name in names))
                    if values not in held]  # fmt: skip
    return missing


@pytest.mark.parametrize("seed", range(5))
def test_every_pair_and_every_triple_of_some_dimensions_occurs(seed: int) -> None:
    coverage = Coverage(SMALL, tuple("abcd"), lambda row: True)
    rows = make_rows(coverage, seed)
    assert not missing_tuples(rows, SMALL, 2)
    assert not missing_tuples(rows, {name: SMALL[name] for name in "abcd"}, 3)
    assert len(rows) < 60, "36 triples of three dimensions need 36 rows"
    assert coverage.count_left() == {2: 0, 3: 0}
    assert rows == make_rows(Coverage(SMALL, tuple("abcd"), lambda row: True), seed)


def test_what_is_excluded_is_missing_and_counted() -> None:
    def differs(row: Mapping[str, Any]) -> bool:
        return "a" not in row or row["a"] != row.get("b")

    coverage = Coverage(SMALL, (), differs)
    rows = make_rows(coverage, 0)
    assert missing_tuples(rows, SMALL, 2) == [(("a", "b"), (value, value)) for value in range(3)]
    assert coverage.excluded[2] == 3
    assert all(map(differs, rows))


def test_a_row_with_a_coarse_value_covers_only_tuples_that_contain_it() -> None:
    coverage = Coverage(SMALL, tuple("abcd"), lambda row: True, (), "d")
    rows = make_rows(coverage, 0)
    fine = [row for row in rows if row["d"] == 0]
    assert not missing_tuples(rows, SMALL, 2) and coverage.count_left() == {2: 0, 3: 0}
    assert not missing_tuples(fine, {name: SMALL[name] for name in "abcef"}, 2)
    assert not missing_tuples(fine, {name: SMALL[name] for name in "abc"}, 3)
    coarse = [row for row in rows if row["d"] == 1]
    assert 12 <= len(coarse) < 20 and not missing_tuples(coarse, {name: SMALL[name] for name in "abc"}, 2)


def test_a_tuple_that_no_row_can_hold_is_given_up() -> None:
    def is_possible(row: Mapping[str, Any]) -> bool:  # with a and b at 0, no value of c is left
        return not (row.get("a") == 0 and row.get("b") == 0 and "c" in row)

    coverage = Coverage(SMALL, (), is_possible)
    rows = make_rows(coverage, 0)
    assert (("a", "b"), (0, 0)) in missing_tuples(rows, SMALL, 2)
    assert coverage.count_left()[2] == 0 and coverage.excluded[2] >= 1


def possible_triples(rows: list[dict[str, Any]], dimensions: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    """Return the triples that are in no row, although each is allowed."""
    return [
        (names, values)
        for names, values in missing_tuples(rows, dimensions, 3)
        if is_allowed(dict(zip(names, values)))
        and all(is_allowed(dict(pair)) for pair in itertools.combinations(list(zip(names, values)), 2))
    ]


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_standard_arrays_hold_every_pair_that_makes_sense(seed: int) -> None:
    coverage, own = make_coverage("standard", seed)
    rows = [PLAIN | row for array in ("plain", "plain_full", "standard") for row in make_coverage(array, seed)[1]]
    missing = missing_tuples(rows, DIMENSIONS, 2)
    assert len(missing) <= coverage.excluded[2] < 0.05 * coverage.total[2]
    possible = possible_triples(rows, {name: DIMENSIONS[name] for name in INTERACTING})
    assert len(possible) <= 0.01 * coverage.total[3], possible[:5]
    assert all(map(is_allowed, own))


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("array", ["quick", "probes"])
def test_the_quick_array_and_the_probes_hold_every_pair_that_makes_sense(array: Array, seed: int) -> None:
    coverage, rows = make_coverage(array, seed)
    dimensions = {name: tuple(values) for name, values in coverage.dimensions.items()}
    missing = missing_tuples([PLAIN | row for row in rows], dimensions, 2)
    assert len(missing) <= coverage.excluded[2] < 0.05 * coverage.total[2] and coverage.count_left()[2] == 0


def test_suites_are_about_as_long_as_what_was_listed_by_hand() -> None:
    """Which was 344 cases."""
    for seed in (0, 1, 7):
        standard, quick = make_suite("standard", seed), make_suite("quick", seed)
        assert len(standard) <= 430 and len(quick) <= 70
        assert len(group_by_shape(standard)) < len(standard)
        assert sum(case.cells for case in quick) < 25e6 and sum(case.cells for case in standard) < 210e6
        names = [case.name for case in standard]
        assert len(names) == len(set(names))
    assert make_suite("standard", 3) == make_suite("standard", 3) != make_suite("standard", 4)


def holds(cases: tuple[Case, ...], **wanted: Any) -> bool:
    return any(all(getattr(case, name) == value for name, value in wanted.items()) for case in cases)


def test_what_once_was_never_together_now_is() -> None:
    cases = tuple(iter_generated_cases("standard", 0))
    assert holds(cases, sinks=True, backward=False) and holds(cases, softcap=20.0, backward=False)
    assert any(case.softcap and case.seqlen_k > case.seqlen_q for case in cases)
    assert any(case.attention_chunk and case.seqlen_k > case.seqlen_q for case in cases)
    assert any(case.layout == "packed" and len(case.seqlens_q) > 2 and len(set(case.seqlens_q)) == 1 for case in cases)
    assert any(case.v_head_dim > case.head_dim for case in cases)
    assert {1, 9, 17, 33, 65} <= {len(case.seqlens_q) for case in cases}
    assert {case.dout_exponent for case in cases} == {0, -10, -20, 12}
    dropped = [case for case in cases if case.dropout]
    assert all(case.probe == "dropout" for case in dropped)
    assert any(case.layout == "packed" and 1 < case.num_kv_heads < case.num_heads for case in dropped)
    assert any(case.padded for case in dropped) and any(case.sinks for case in dropped)
    assert {case.backward for case in dropped} == {True, False} == {case.windowed for case in dropped}
    for layout, alignment in itertools.product(("packed", "left_padded", "right_padded"), ("bottom_right", "top_left")):
        crossed = [case for case in cases if (case.layout, case.alignment) == (layout, alignment)]
        signs = [{(k > q) - (k < q) for q, k in zip(case.seqlens_q, case.seqlens_k)} for case in crossed]
        assert any(own >= {-1, 1} for own in signs), "more keys in one document, fewer in another"
    pairs = [zip(case.seqlens_q, case.seqlens_k) for case in cases]
    empty = [{(not q, not k) for q, k in own} for own in pairs]
    assert any((True, False) in own for own in empty) and any((False, True) in own for own in empty)
    assert any(sorted(case.seqlens_q) == sorted(case.seqlens_k) and case.needs_mask and case.seqlens_q != case.seqlens_k
               for case in cases)  # fmt: skip
    heads = {(case.head_dim, case.v_head_dim) for case in cases if case.head_dim != case.v_head_dim}
    assert len({v for _, v in heads}) > 6 and {case.scale for case in cases} == {0.0, 0.04, 1.0}
    letters = [case.strides for case in cases if len(case.strides) == 4]
    assert [{text[place] for text in letters} for place in range(4)] == [*[set("ctsr")] * 3, set("ctsre")]
    many = [case for case in cases if max(case.seqlens_k) > 256]
    assert len(many) > 50
    for name in ("layout", "causal", "softcap", "sinks", "alibi", "backward", "dtype", "mask", "values"):
        assert {getattr(case, name) for case in many} == {getattr(case, name) for case in cases}, name


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("array", ["plain", "plain_full"])
def test_calls_without_options_hold_every_pair_with_and_without_a_causal_mask(array: Array, seed: int) -> None:
    coverage, rows = make_coverage(array, seed)
    dimensions = {name: PLAIN_DIMENSIONS[name] for name in tuple(PLAIN_DIMENSIONS)[:6]}
    assert len(missing_tuples(list(rows), dimensions, 2)) <= coverage.excluded[2]
    plain = tuple(iter_generated_cases(array, seed))
    assert {case.causal for case in plain} == {array == "plain"} and {64, 128, 256} < {case.head_dim for case in plain}
    assert not any(case.windowed or case.mask or case.scale or case.softcap or case.attention_chunk for case in plain)
    few = [case for case in plain if max(case.seqlens_q) <= 8 < min(case.seqlens_k)]
    assert len({case.layout for case in few}) >= 2


def test_offsets_pass_what_16_bits_hold() -> None:
    offsets = [case for case in make_suite("standard") if case.family == "offsets"]
    assert {case.layout for case in offsets} == {"dense", "right_padded", "packed"}
    many, few = ([case for case in offsets if (len(case.seqlens_q) > 1) is is_many] for is_many in (True, False))
    elements = [len(case.seqlens_q) * max(case.seqlens_q) * case.num_heads for case in many]
    assert min(elements) > 1 << 16 and any(len(case.seqlens_q) * case.num_heads > 65_535 for case in many)
    assert {case.mask for case in few} == {"", "bool", "additive"} and min(case.seqlen_k for case in few) > 1 << 15
    wide = [case for case in make_suite("full") if case.family == "offsets" and case.head_dim > 16]
    assert all(sum(case.seqlens_q) * case.num_heads * case.head_dim > 1 << 31 for case in wide) and len(wide) == 2


def test_packed_calls_without_options_have_whole_tiles_and_large_heads() -> None:
    """A kernel may take its masks from the longest document, and has other tiles for large heads."""
    plain = [case for case in make_suite("standard") if case.layout == "packed" and not (case.causal or case.windowed)]
    lengths = [case.seqlens_k for case in plain if case.head_dim > 192 and not (case.mask or case.dropout)]
    assert any(max(own) % 128 == 0 and any(length % 128 for length in own) for own in lengths)


def test_features_meet_more_than_1024_keys() -> None:
    long = [case for case in make_suite("standard") if max(case.seqlens_k) > 1024 and case.family == "length"]
    forms = {(case.mask, case.per_head) for case in long}
    assert forms >= {("bool", False), ("bool", True), ("additive", False), ("additive", True)}
    assert any(case.layout == "packed" and len(set(case.seqlens_k)) > 1 for case in long)
    negative = [case for case in make_suite("standard") if case.values == "negative" and case.causal]
    assert any(case.seqlen_k > case.seqlen_q > 128 and case.head_dim > 128 for case in negative)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_packed_windows_meet_many_more_keys_than_queries(seed: int) -> None:
    """Beyond what one document's window needs, so that keys of an earlier document may be lost."""
    cases = [case for case in make_suite("standard", seed) if case.layout == "packed" and case.window_size[0] > 0]
    assert any(case.seqlen_k - case.seqlen_q - case.window_size[0] > 512 for case in cases if not case.probe)
    generated = [case for case in iter_generated_cases("standard", seed) if case.layout == "packed"]
    assert max(case.seqlen_k - case.seqlen_q for case in generated) > 400


def test_the_coverage_is_printed(attncheck: Run) -> None:
    done = attncheck("parity", "--suite", "quick", "--list", "--coverage", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "quick: " in done.stdout and "seed 3" in done.stdout and "pairs of values: " in done.stdout
    assert attncheck("parity", "--coverage").returncode == 2
