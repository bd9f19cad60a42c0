"""Prefix and poison: every token in turn changes by one bit, and is named exactly where it must not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference import structured_targets
from attncheck.attention.reference.structured import run_probe
from attncheck.attention.reference.structured_common import ProbeResult
from attncheck.attention.reference.structured_edits import find_state
from attncheck.core.cases import DTYPES, Case, Dtype, iter_segments, with_name
from tests.attention.float64_attention import Edit, add, attend, put, with_edits


def make_case(seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...] = (), **changes: object) -> Case:
    plain = Case("edits", seqlens_q, seqlens_k or seqlens_q, num_kv_heads=2, head_dim=16, v_head_dim=8)
    return with_name(replace(plain, **changes))  # type: ignore[arg-type]


def probe_later_calls(case: Case, probe: str, **edits: Edit) -> tuple[ProbeResult, list[Inputs]]:
    """Return the probe's result on a backend whose answers change by `edits` if the inputs do, else not; its inputs."""
    calls: list[Inputs] = []
    answer = attend(make_inputs(case, "cpu"))

    def run(inputs: Inputs) -> Outputs:
        calls.append(inputs)
        same = all(torch.equal(getattr(inputs, name), getattr(calls[0], name)) for name in ("q", "k", "v"))
        return answer if same else with_edits(answer, **edits)

    result = run_probe(replace(case, probe=probe), "cpu", run)  # type: ignore[arg-type]
    assert torch.equal(result.outputs.out, answer.out), "what is returned is the first call's"
    return result, calls


# --- prefix ---

PREFIX = (
    make_case((12,)),
    make_case((9, 9), (16, 16)),
    make_case((16,), (9,)),
    make_case((9,), (16,), alignment="top_left"),
    make_case((12,), causal=False, window_size=(3, 2)),
    make_case((4,), (15,), causal=False, window_size=(2, 2), alignment="top_left"),
)


@pytest.mark.parametrize("case", PREFIX, ids=[case.name for case in PREFIX])
def test_a_query_must_keep_its_bits_if_it_sees_none_of_the_second_half(case: Case) -> None:
    mask = masks.build_mask(case, "cpu")[0, 0]
    split = case.seqlen_k // 2 + 1
    must_keep = mask.any(-1) & ~mask[:, split:].any(-1)
    for query in range(case.seqlen_q):
        for name, index in (("out", (-1, query, 3, 5)), ("lse", (-1, 2, query))):
            want = f"{name} of query {query} changes with keys after {split - 1}, which must be hidden"
            result, _ = probe_later_calls(case, "prefix", **{name: add(index, 1.0)})
            assert (result.violations, result.warnings) == ((want,) * bool(must_keep[query]), ())
            result, _ = probe_later_calls(case, "prefix", **{name: add(index, 1e-12)})
            assert result.violations == ()
            assert result.warnings == (f"{want}, as much as rounding may change it",) * bool(must_keep[query])
    assert bool(must_keep.any())


def test_the_first_query_that_changes_is_named() -> None:
    result, _ = probe_later_calls(PREFIX[2], "prefix", out=lambda out: out + 1.0)
    assert result.violations == ("out of query 7 changes with keys after 4, which must be hidden",)
    result, _ = probe_later_calls(PREFIX[0], "prefix", out=put((0, [3, 5]), math.nan))
    assert result.violations == ("out of query 3 changes with keys after 6, which must be hidden",)


@pytest.mark.parametrize(("dtype", "times"), [("bfloat16", 1000.0), ("float16", 64.0), ("float32", 1000.0)])
def test_the_keys_of_the_second_half_are_multiplied(dtype: Dtype, times: float) -> None:
    case = make_case((12,), dtype=dtype)
    _, (before, after) = probe_later_calls(case, "prefix")
    for x, y in ((before.k, after.k), (before.v, after.v)):
        assert torch.equal(y[:, :7], x[:, :7])
        assert torch.equal(y[:, 7:], x[:, 7:] * times)
    assert torch.equal(after.q, before.q)


@pytest.mark.parametrize("probe", ["prefix", "poison"])
def test_what_a_backend_does_not_return_is_not_compared(probe: str) -> None:
    case = make_case((6, 5), layout="packed")
    answers = iter([Outputs(torch.zeros(1, 11, 4, 8)), *(3 * [attend(make_inputs(case, "cpu"))])])
    result = run_probe(replace(case, probe=probe), "cpu", lambda inputs: next(answers))  # type: ignore[arg-type]
    assert {violation.split()[0] for violation in result.violations} == {"out"}


@pytest.mark.parametrize("case", PREFIX, ids=[case.name for case in PREFIX])
def test_exact_attention_passes_prefix(case: Case) -> None:
    assert run_probe(replace(case, probe="prefix"), "cpu", attend).violations == ()


# --- poison ---

POISON = (
    make_case((3, 4, 2), (2, 5, 3), layout="packed", causal=False),
    make_case((3, 0, 4), (3, 2, 4), layout="packed"),
    make_case((5, 3), layout="right_padded"),
    make_case((3, 5), layout="left_padded", causal=False),
)


def attend_by_document(inputs: Inputs) -> Outputs:
    """Return exact attention that reads nothing outside a document; NaN elsewhere stays there."""
    case = inputs.case
    mask = masks.build_mask(case, "cpu").expand(case.batch, -1, -1, -1)[:, 0]
    answer = attend(make_inputs(replace(case, probe=""), "cpu"))
    touched_k = ~torch.isfinite(inputs.k).all(-1).all(-1) | (inputs.k.abs().amax((-1, -2)) > 30)
    touched_q = ~torch.isfinite(inputs.q).all(-1).all(-1) | (inputs.q.abs().amax((-1, -2)) > 30)
    spoilt_q = touched_q | (mask & touched_k[:, None, :]).any(-1)
    spoilt_k = touched_k | (mask & touched_q[:, :, None]).any(1)
    at_q = put((spoilt_q,), 7.0)
    return with_edits(
        answer,
        out=at_q,
        dq=at_q,
        lse=put((spoilt_q[:, None].expand_as(answer.lse),), 7.0),  # type: ignore[arg-type]
        dk=put((spoilt_k,), 7.0),
        dv=put((spoilt_k,), 7.0),
    )


@pytest.mark.parametrize("probe", ["poison", "nan_poison"])
@pytest.mark.parametrize("case", POISON, ids=[case.name for case in POISON])
def test_attention_that_reads_nothing_outside_a_document_passes(case: Case, probe: str) -> None:
    result = run_probe(replace(case, probe=probe), "cpu", attend_by_document)  # type: ignore[arg-type]
    assert (result.violations, result.warnings) == ((), ())


@pytest.mark.parametrize("probe", ["poison", "nan_poison"])
@pytest.mark.parametrize("case", POISON, ids=[case.name for case in POISON])
def test_a_token_must_keep_its_bits_in_its_own_document(case: Case, probe: str) -> None:
    documents = structured_targets.tested_documents(case)
    for name in ("out", "lse", "dq", "dk", "dv"):
        of_keys = name in ("dk", "dv")
        for batch in range(case.batch):
            for token in range(case.seqlen_k if of_keys else case.seqlen_q):
                index = (batch, 1, token) if name == "lse" else (batch, token, 1, 3)
                result, calls = probe_later_calls(case, probe, **{name: add(index, 50.0)})
                want = []
                for group in documents:
                    inside = [
                        (s.batch, position)
                        for s in sorted(group, key=lambda s: s.batch)
                        for position in (range(s.k_start, s.k_stop) if of_keys else range(s.q_start, s.q_stop))
                    ]
                    if (batch, token) in inside:
                        where = "" if case.padded else f" of document {group[0].index}"
                        edited = "the padding" if case.padded else "other documents"
                        position = inside.index((batch, token))
                        want.append(f"{name} of token {position}{where} changes with {edited}")
                assert result.violations == tuple(want)
                assert not result.warnings
                rounds = (
                    2 if want and probe == "nan_poison" else 1
                )  # each repeats the first call twice if something changed
                assert len(calls) == 1 + rounds * (len(documents) + 2 * bool(want))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_what_lies_outside_the_tested_documents_is_multiplied(dtype: Dtype) -> None:
    times_kv, times_q = (64.0, 1.0) if dtype == "float16" else (1000.0, 1000.0)
    for plain in POISON:
        case = replace(plain, dtype=dtype)
        _, (before, *later) = probe_later_calls(case, "poison")
        for group, after in zip(structured_targets.tested_documents(case), later):
            inside_q = torch.zeros(case.batch, case.seqlen_q, dtype=torch.bool)
            inside_k = torch.zeros(case.batch, case.seqlen_k, dtype=torch.bool)
            for s in group:
                inside_q[s.batch, s.q_start : s.q_stop] = True
                inside_k[s.batch, s.k_start : s.k_stop] = True
            for x, y, inside, times in (
                (before.q, after.q, inside_q, times_q),
                (before.k, after.k, inside_k, times_kv),
                (before.v, after.v, inside_k, times_kv),
            ):
                assert torch.equal(y[inside], x[inside])
                assert torch.equal(y[~inside], x[~inside] * times)


def test_nan_that_gets_across_alone_is_a_warning() -> None:
    case = POISON[0]
    answer = attend(make_inputs(case, "cpu"))

    def run(inputs: Inputs) -> Outputs:
        spoilt = bool(inputs.k[0, 0].isnan().any())  # document 0 is outside
        return with_edits(answer, out=put((0, 3), math.nan)) if spoilt else answer

    result = run_probe(replace(case, probe="nan_poison"), "cpu", run)
    assert result.violations == ()
    assert result.warnings == (
        "out of token 0 of document 1 changes with other documents by NaN, but not by finite values",
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_a_gradient_may_move_by_a_unit_of_its_largest_and_a_result_by_nothing(name: str, dtype: Dtype) -> None:
    case = replace(POISON[0], dtype=dtype)
    unit = {"bfloat16": 2.0**-6, "float16": 2.0**-9, "float32": 2.0**-16}[dtype]
    index = (0, 3, 1, 2)  # in document 1, the longest

    def judge(edit: Callable[[Tensor], Tensor]) -> tuple[str, ...]:
        answer = with_edits(attend(make_inputs(case, "cpu")), **{name: lambda x: x.fill_(0.5).index_fill_(2, X0, -2.0)})
        answers = iter([answer, *(with_edits(answer, **{name: edit}) for _ in range(9))])
        return run_probe(replace(case, probe="poison"), "cpu", lambda inputs: next(answers)).violations

    X0 = torch.tensor([0])  # noqa: N806
    for sign in (1.0, -1.0):
        assert judge(put(index, 0.5 + sign * 2.0 * unit)) == ()
        (found,) = judge(put(index, 0.5 + sign * 2.0 * unit * (1.0 + 2.0**-6)))
        assert found.startswith(f"{name} of token ")
    for value in (math.nan, math.inf):
        (found,) = judge(put(index, value))
        assert found.startswith(f"{name} of token ")
    infinite = with_edits(attend(make_inputs(case, "cpu")), **{name: put(index, math.inf)})
    answers = iter([infinite, *(with_edits(infinite, **{name: put((0, 4, 1, 2), math.inf)}) for _ in range(9))])
    assert run_probe(replace(case, probe="poison"), "cpu", lambda inputs: next(answers)).violations != ()


def test_a_gradient_of_the_sinks_that_changes_is_state() -> None:
    inputs = make_inputs(make_case((8,)), "cpu")
    before = replace(attend(inputs), dsinks=torch.ones(4))
    assert not find_state(inputs, before, lambda _: before)
    assert find_state(inputs, before, lambda _: replace(before, dsinks=2.0 * torch.ones(4))) == (
        "dsinks changes when the same call is made again: it keeps state or reads unwritten memory",
    )


def test_sinks_without_a_finite_gradient_are_wrong_but_not_state() -> None:
    inputs = make_inputs(make_case((9,), sinks=True), "cpu")
    before = replace(attend(inputs), dsinks=torch.tensor([math.nan, math.inf, 1.0, 2.0]))
    assert not find_state(inputs, before, lambda _: before)
    assert find_state(inputs, before, lambda _: replace(before, dsinks=torch.tensor([math.nan, math.inf, 1.0, 3.0])))


def test_the_longest_the_middle_and_the_last_document_are_tested() -> None:
    case = Case("x", (5, 7, 2, 4, 0), (5, 7, 2, 4, 0), layout="packed")
    tested = structured_targets.tested_documents(case)
    assert [[segment.k_stop - segment.k_start for segment in group] for group in tested] == [[7], [2], [4]]


def test_a_query_is_sent_to_keys_of_its_document_and_the_next_ones() -> None:
    case = make_case((40, 30, 50), layout="packed")
    targets = structured_targets.retrieval_targets(case)
    for segment in iter_segments(case):
        keys = targets[segment.batch][segment.q_start : segment.q_stop]
        assert max(0, segment.k_start - 1) <= min(keys) and max(keys) == min(segment.k_stop, case.seqlen_k - 1)
