"""Code, heads and retrieve: silent on exact results, and with an error planted on either side of what they allow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference.structured import run_probe
from attncheck.attention.reference.structured_targets import retrieval_targets
from attncheck.core.cases import DTYPES, UNBOUNDED, Case, Dtype, iter_segments, with_name
from tests.attention.float64_attention import Edit, add, attend, put, with_edits

Change = Callable[[Inputs, Outputs], Outputs]


def make_case(seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...] = (), **changes: object) -> Case:
    plain = Case("keys", seqlens_q, seqlens_k or seqlens_q, num_kv_heads=2, head_dim=64, v_head_dim=16)
    return with_name(replace(plain, **changes))  # type: ignore[arg-type]


def violations(case: Case, probe: str, change: Change = lambda inputs, outputs: outputs) -> tuple[str, ...]:
    """Return what the probe finds in the exact results of its inputs, changed."""
    probed = replace(case, probe=probe)  # type: ignore[arg-type]
    return run_probe(probed, "cpu", lambda inputs: change(inputs, attend(inputs))).violations


def edited(case: Case, probe: str, **edits: Edit) -> tuple[str, ...]:
    return violations(case, probe, lambda inputs, outputs: with_edits(outputs, **edits))


def probe_inputs(case: Case, probe: str) -> Inputs:
    """Return the inputs that a probe calls a backend on."""
    seen: list[Inputs] = []

    def run(inputs: Inputs) -> Outputs:
        seen.append(inputs)
        return attend(inputs)

    run_probe(replace(case, probe=probe), "cpu", run)  # type: ignore[arg-type]
    (inputs,) = seen
    return inputs


TARGETS = {
    "chunk": (make_case((1, 40), layout="packed", attention_chunk=16), 36, {0, 1, 32, 33, 35, 36, 37, 40}),
    "window": (make_case((40,), window_size=(9, 3), causal=False), 20, {20, 21, 19, 11, 23, 10, 24, 0, 39}),
    "longer k": (make_case((30,), (50,)), 5, {5, 6, 4, 0, 25, 26, 49}),
}


@pytest.mark.parametrize("name", TARGETS)
def test_keys_to_find_are_those_at_every_edge_and_any_other(name: str) -> None:
    case, token, expected = TARGETS[name]
    found = Counter(retrieval_targets(replace(case, seed=seed))[0][token] for seed in range(600))
    assert {key for key, count in found.items() if count > 20} == expected, found
    assert len(found) > len(expected), "any key may be the one"


CLEAN = (
    make_case((40,)),
    make_case((65, 65), causal=False),
    make_case((64,), num_heads=2),
    make_case((1,)),
    make_case((60,), (40,)),
    make_case((30,), (70,)),
    make_case((30,), (70,), alignment="top_left"),
    make_case((40,), window_size=(9, 4), causal=False),
    make_case((40,), attention_chunk=16),
    make_case((20, 0, 33, 1), (7, 5, 40, 0), layout="packed"),
    make_case((40, 13, 1), layout="right_padded"),
    make_case((40, 13, 1), layout="left_padded", causal=False),
    make_case((9,), num_heads=68, num_kv_heads=34, v_head_dim=5),
    make_case((2,), v_head_dim=1, num_heads=8),
)


@pytest.mark.parametrize("unseen", [9.0, math.nan])
@pytest.mark.parametrize("probe", ["code", "heads", "retrieve"])
@pytest.mark.parametrize("case", CLEAN, ids=[case.name for case in CLEAN])
def test_exact_results_are_clean_whatever_lies_in_rows_that_see_nothing(case: Case, probe: str, unseen: float) -> None:
    rows = ~masks.build_mask(case, "cpu").any(-1)[:, 0].expand(case.batch, -1)

    def spoil(inputs: Inputs, outputs: Outputs) -> Outputs:
        in_lse = rows[:, None].expand(-1, case.num_heads, -1)
        return with_edits(outputs, out=put((rows,), unseen), lse=put((in_lse,), unseen))

    assert violations(case, probe, spoil) == ()


@pytest.mark.parametrize("probe", ["code", "heads", "retrieve"])
def test_what_a_backend_does_not_return_is_not_judged(probe: str) -> None:
    assert violations(make_case((40,)), probe, lambda inputs, outputs: Outputs(outputs.out)) == ()


# --- code ---

PACKED = make_case((20, 80), (20, 90), layout="packed")  # the second document's query 69 sees keys 0 to 79 of it


@pytest.mark.parametrize("off", [0.2579, -0.2579])  # a quarter, and 1e-4 of the 80 for the CPU's exp and log
def test_a_count_may_be_a_quarter_off(off: float) -> None:
    assert edited(PACKED, "code", lse=put((0, 2, 89), math.log(80 + off))) == ()
    off += math.copysign(2e-4, off)
    (found,) = edited(PACKED, "code", lse=put((0, 2, 89), math.log(80 + off)))
    assert found == f"query 89 (document 1), head 2 attends to {80 + off:.6g} keys, not 80"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_lse_that_is_no_number_counts_nothing(value: float) -> None:
    case = make_case((40, 40))
    assert edited(case, "code", lse=put((1, 3, 39), value)) == (
        f"query 39 (batch 1), head 3 attends to {value} keys, not 40",
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_code_sum_may_be_three_quarters_off_and_its_own_rounding(dtype: Dtype, sign: int) -> None:
    case = replace(PACKED, dtype=dtype)
    unit = {"bfloat16": 1 / 256, "float16": 1 / 2048, "float32": 1 / 1048576}[dtype]
    codes = probe_inputs(case, "code").v[0, 20:100, 1].double()
    column = int(codes.sum(0).abs().argmax())
    assert column != 3
    allowed = 0.75 + 2 * unit * float(codes[:, column].sum().abs()) + 80e-6
    index = (0, 89, 3, column)
    assert edited(case, "code", out=add(index, sign * (allowed - 1e-5) / 80)) == ()
    assert edited(case, "code", out=add(index, sign * (allowed + 1e-5) / 80)) == (
        "query 89 (document 1), head 3 does not sum its 80 visible keys 20 to 99",
    )
    assert edited(case, "code", out=put(index, math.nan)) != ()


def test_code_has_equal_scores_and_signs_for_v() -> None:
    inputs = probe_inputs(make_case((40,)), "code")
    assert not bool(inputs.q.any()) and not bool(inputs.k.any())
    assert torch.equal(inputs.v.abs(), torch.ones_like(inputs.v))
    assert torch.equal(inputs.v, make_inputs(inputs.case, "cpu").v.sign())


def test_no_more_than_a_few_places_are_named() -> None:
    found = violations(make_case((40,)), "code", lambda inputs, outputs: replace(outputs, out=outputs.out + 9.0))
    assert len(found) == 5 and found[0].startswith("query 0, head 0") and found[-1] == "… and more"


# --- heads ---

MANY_HEADS = make_case((9, 9), num_heads=68, num_kv_heads=34, v_head_dim=5)


def test_heads_have_the_number_of_their_kv_head_and_weights_of_their_own() -> None:
    case = make_case((5, 7), (9, 6), layout="packed", num_heads=68, num_kv_heads=34, v_head_dim=5, causal=False)
    later = probe_inputs(replace(case, window_size=(2, UNBOUNDED)), "heads")
    assert later.dout[0].ne(0).any(-1).any(-1).nonzero()[:, 0].tolist() == [4, 11]
    inputs = probe_inputs(replace(case, window_size=(UNBOUNDED, 1)), "heads")
    assert not bool(inputs.q.any()) and not bool(inputs.k.any())
    for head in (0, 15, 16, 33):
        want = [1.0 + head % 16, 1.0 + head // 16] * 3
        assert inputs.v[:, :, head].unique(dim=1).tolist() == [[want[:5]]]
    seen = inputs.dout[0].ne(0).any(-1).any(-1).nonzero()[:, 0].tolist()
    assert seen == [0, 5], "the query of each document that sees the fewest keys"
    assert inputs.dout[0, 5].unique(dim=1).flatten().tolist() == [4.0, 5.0, 6.0, 7.0] * 17


@pytest.mark.parametrize(("head", "other"), [(40, 3), (41, 33), (1, 16), (67, 0)])
def test_the_kv_head_whose_v_is_returned_is_named(head: int, other: int) -> None:
    def swap(inputs: Inputs, outputs: Outputs) -> Outputs:
        v = inputs.v[1, 0, other].double()
        return with_edits(outputs, out=put((1, 6, head), v))

    assert violations(MANY_HEADS, "heads", swap) == (
        f"head {head} returns the v of kv head {other}, not of {head // 2}",
    )


def test_one_number_is_enough_where_v_has_one() -> None:
    case = make_case((4,), v_head_dim=1, num_heads=8, num_kv_heads=4)
    assert edited(case, "heads", out=put((0, 2, 5), 4.0)) == ("head 5 returns the v of kv head 3, not of 2",)


def test_the_number_has_two_digits_where_v_has_room_for_them() -> None:
    case = replace(MANY_HEADS, v_head_dim=2)
    assert edited(case, "heads", out=put((1, 6, 40), torch.tensor([2.0, 3.0]).double())) == (
        "head 40 returns the v of kv head 33, not of 20",
    )


def test_a_group_sum_is_read_where_the_first_queries_see_nothing() -> None:
    case = make_case((9, 5), (4, 0), layout="packed")
    assert edited(case, "heads", dv=lambda dv: dv * 2.0)[0] == (
        "dv of kv head 0, key 0 gathers 18 from its group of query heads, not 9"
    )


@pytest.mark.parametrize("element", [0, 1, 4])
def test_a_heads_number_may_be_a_quarter_off(element: int) -> None:
    for sign in (1, -1):
        assert edited(MANY_HEADS, "heads", out=add((0, 3, 7, element), sign * 0.25)) == ()
        (found,) = edited(MANY_HEADS, "heads", out=add((0, 3, 7, element), sign * 0.2501))
        assert found.startswith("head 7 returns the v of kv head")
    assert edited(MANY_HEADS, "heads", out=put((0, 3, 7, element), math.nan)) != ()


def test_a_group_sum_may_be_a_quarter_and_a_64th_off() -> None:
    case = make_case((6, 9), (6, 8), layout="packed", num_kv_heads=2, alignment="top_left", causal=False)
    # Heads weigh 4, 5, 6, 7: kv head 1 gathers 13 in each of the 8 keys that a query of the second document weighs.
    allowed = 0.25 + 13 / 64
    index = (0, 9, 1)
    for sign in (1, -1):
        assert edited(case, "heads", dv=put(index, (13 + sign * allowed) / 8)) == ()
        (found,) = edited(case, "heads", dv=put(index, (13 + sign * allowed * 1.001) / 8))
        want = f"{13 + sign * allowed * 1.001:.4g}"
        assert found == f"dv of kv head 1, key 9 gathers {want} from its group of query heads, not 13"
    assert edited(case, "heads", dv=put(index, math.nan)) != ()
    assert edited(case, "heads", dv=lambda dv: dv.flip(2)) == tuple(
        f"dv of kv head {head}, key {key} gathers {wrong} from its group of query heads, not {right}"
        for key in (0, 6)
        for head, wrong, right in ((0, 13, 9), (1, 9, 13))
    )


# --- retrieve ---

WINDOW = make_case((40, 40), window_size=(9, 4), causal=False)
CROSSED = make_case((50,), (33,))
DOCUMENTS = make_case((20, 0, 15), (20, 5, 22), layout="packed")


def target_keys(case: Case, inputs: Inputs) -> Tensor:
    """Return the key `(batch, seqlen_q)` whose code each query has."""
    same = inputs.q[:, :, 0].double() @ inputs.k[:, :, 0].double().mT
    assert bool((same.max(-1).values == 4.0 * case.head_dim).all())
    return same.argmax(-1)


def spell(key: int, case: Case) -> Tensor:
    """Return the digits of a key's number, -1 and 1, the lowest first."""
    digits = max(1, (case.seqlen_k - 1).bit_length())
    return torch.tensor([1.0 if key >> digit & 1 else -1.0 for digit in range(digits)], dtype=torch.float64)


def test_each_query_has_a_keys_code_and_v_spells_the_key() -> None:
    for case in (WINDOW, make_case((65,)), make_case((64,)), make_case((2,))):
        inputs = probe_inputs(case, "retrieve")
        assert torch.equal(inputs.q.abs(), torch.full_like(inputs.q, 2.0))
        assert torch.equal(inputs.k.abs(), torch.full_like(inputs.k, 2.0))
        for key in range(case.seqlen_k):
            digits = spell(key, case)
            assert torch.equal(inputs.v[0, key, 1, : len(digits)].double(), digits)
        rest = inputs.v[..., len(spell(0, case)) :].double()
        assert torch.equal(rest.abs(), torch.ones_like(rest))
        assert case.seqlen_k < 40 or bool((rest.mean((0, 1, 2)).abs() < 0.9).all())


@pytest.mark.parametrize("case", [WINDOW, CROSSED, DOCUMENTS], ids=["window", "crossed", "packed"])
def test_a_target_is_missed_where_it_is_seen_and_leaked_where_it_is_not(case: Case) -> None:
    mask = masks.build_mask(case, "cpu").expand(case.batch, -1, -1, -1)[:, 0]
    targets = target_keys(case, probe_inputs(case, "retrieve"))
    kinds = set()
    for segment in iter_segments(case):
        place = f" (document {segment.index})" if case.layout == "packed" else ""
        place = f" (batch {segment.batch})" if case.batch > 1 else place
        for query in range(segment.q_start, segment.q_stop):
            key = int(targets[segment.batch, query])
            sees, sees_any = bool(mask[segment.batch, query, key]), bool(mask[segment.batch, query].any())
            kinds.add((sees, sees_any))
            digits = spell(key, case)
            index = (segment.batch, query, 3, slice(0, len(digits)))
            where = f"query {query}{place}, head 3"
            found = edited(case, "retrieve", out=put(index, digits))
            leak = f"{where} finds key {key}, which must be hidden"
            assert found == ((leak,) if sees_any and not sees else ())
            missed = f"{where} does not find key {key}, which is visible (it finds {key ^ 1})"
            digits[0] *= -1.0
            assert edited(case, "retrieve", out=put(index, digits)) == ((missed,) if sees else ())
    assert kinds >= ({(True, True), (False, True)} if case is not CROSSED else {(True, True), (False, False)})


@pytest.mark.parametrize("digit", [0, 2, 5])
def test_a_digit_is_read_from_a_half_on_and_a_leak_from_nine_tenths(digit: int) -> None:
    mask, targets = masks.build_mask(WINDOW, "cpu")[0, 0], target_keys(WINDOW, probe_inputs(WINDOW, "retrieve"))[1]
    sees = [bool(mask[query, targets[query]]) for query in range(40)]
    for query, allowed, is_found in ((sees.index(True), 0.5, True), (sees.index(False), 0.9, False)):
        digits = spell(int(targets[query]), WINDOW)
        index = (1, query, 2, slice(0, 6))
        digits[digit] *= allowed
        at_limit = edited(WINDOW, "retrieve", out=put(index, digits))
        digits[digit] *= 1.001
        beyond = edited(WINDOW, "retrieve", out=put(index, digits))
        assert (len(at_limit), len(beyond)) == ((1, 0) if is_found else (0, 1))


def test_what_is_found_instead_is_told() -> None:
    targets = target_keys(WINDOW, probe_inputs(WINDOW, "retrieve"))[0]
    query = next(query for query in range(40) if targets[query] == query > 0)
    digits = spell(37, WINDOW)
    for value, instead in ((digits, "it finds 37"), (-digits, "it finds 26"), (digits * 0.0, "no key is out")):
        assert edited(WINDOW, "retrieve", out=put((0, query, 1, slice(0, 6)), value)) == (
            f"query {query} (batch 0), head 1 does not find key {query}, which is visible ({instead})",
        )


def test_a_key_that_is_found_with_too_little_weight_is_named_as_that() -> None:
    case = make_case((40,))
    assert "which is visible, with a weight of 0.25, not 1" in edited(case, "retrieve", out=lambda x: x * 0.25)[0]
