"""Dropout's probe on masks drawn for it: each statistic, and each output, on either side of what it may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.attention.reference import structured_dropout
from attncheck.attention.reference.structured import run_probe
from attncheck.attention.reference.structured_common import ProbeResult, cast_to_case, make_normal_inputs
from attncheck.core.cases import DTYPES, Case, Dtype, with_name
from tests.attention.float64_attention import Edit, attend, put, with_edits

Mask = Callable[[Case, torch.Generator], Tensor]  # bool (batch, num_heads, seqlen_q, seqlen_k), True if it is kept


def make_case(seqlen: int = 64, batch: int = 2, **changes: object) -> Case:
    plain = Case("dropout", (seqlen,) * batch, (seqlen,) * batch, num_kv_heads=2, head_dim=16, v_head_dim=24)
    plain = replace(plain, dtype="float32", causal=False, dropout=0.25, probe="dropout", seed=7)
    return with_name(replace(plain, **changes))  # type: ignore[arg-type]


FULL = make_case()
CAUSAL = make_case(causal=True)


def shape_of(case: Case) -> tuple[int, int, int, int]:
    return case.batch, case.num_heads, case.seqlen_q, case.seqlen_k


def independent(case: Case, generator: torch.Generator) -> Tensor:
    return torch.rand(shape_of(case), generator=generator) >= case.dropout


def exactly(share_kept: float) -> Mask:
    """Return a mask that keeps so many of the visible weights, wherever they lie."""

    def draw(case: Case, generator: torch.Generator) -> Tensor:
        places = masks.build_mask(case, "cpu").expand(shape_of(case)).flatten().nonzero()[:, 0]
        chosen = torch.randperm(len(places), generator=generator)[: round(share_kept * len(places))]
        kept = torch.zeros(math.prod(shape_of(case)), dtype=torch.bool)
        kept[places[chosen]] = True
        return kept.view(shape_of(case))

    return draw


def shared(dim: int, among: int) -> Mask:
    """Return a mask whose draws so many neighbours along a dimension share."""

    def draw(case: Case, generator: torch.Generator) -> Tensor:
        shape = list(shape_of(case))
        shape[dim] = -(-shape[dim] // among)
        drawn = torch.rand(shape, generator=generator) >= case.dropout
        return drawn.repeat_interleave(among, dim).narrow(dim, 0, shape_of(case)[dim])

    return draw


def probe(
    case: Case,
    mask: Mask = independent,
    read: Callable[[Outputs, Inputs], Outputs] = lambda outputs, inputs: outputs,
    edits: Mapping[str, Edit] = MappingProxyType({}),
) -> ProbeResult:
    """Return what the probe says of exact attention under `mask`.

    `read` changes the answers whose weights are read, where q is 0; `edits` the answer on random inputs.
    """

    def run(inputs: Inputs) -> Outputs:
        if not inputs.case.dropout:  # the same call without dropout is right
            return attend(inputs, torch.ones(shape_of(inputs.case), dtype=torch.bool))
        outputs = attend(inputs, mask(inputs.case, torch.Generator().manual_seed(torch.initial_seed())))
        return with_edits(outputs, **edits) if bool(inputs.q.any()) else read(outputs, inputs)

    return run_probe(case, "cpu", run)


def found(result: ProbeResult) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return result.violations, result.warnings


CLEAN = ((), ())


@pytest.mark.parametrize(
    "case",
    [
        *(FULL, CAUSAL, make_case(50, 1), make_case(64, num_heads=8, num_kv_heads=1, dropout=0.1)),
        *(make_case(16, dropout=0.5), make_case(24), make_case(32, causal=True), make_case(dtype="bfloat16")),
        make_case(causal=True, window_size=(40, 0)),
        replace(make_case(1, dropout=0.5), seqlens_q=(70, 70), seqlens_k=(90, 90)),
    ],
    ids=lambda case: case.name,
)
def test_independent_draws_are_clean(case: Case) -> None:
    assert found(probe(case)) == CLEAN


@pytest.mark.parametrize(("dim", "noun"), [(3, "key"), (2, "query")])
def test_few_keys_or_queries_that_are_never_dropped_are_found(dim: int, noun: str) -> None:
    def spare_the_last(case: Case, generator: torch.Generator) -> Tensor:
        kept = independent(case, generator)
        kept.narrow(dim, 61, 3).fill_(True)
        return kept

    result = probe(FULL, spare_the_last)
    assert result.violations[0].startswith(f"dropout keeps 1 of the weights of {noun} 6"), result
    assert result.warnings == ()


@pytest.mark.parametrize(
    ("queries", "share", "usual", "count", "is_found"),
    [
        *((144, 0.5, 72, 72 + 42, False), (144, 0.5, 72, 72 + 43, True), (144, 0.5, 72, 72 - 43, True)),  # 7 sigmas
        *((144, 0.5, 66, 72 + 62, False), (144, 0.5, 66, 72 + 63, True)),  # of keys that share some draws
        *((48, 0.75, 36, 15, False), (48, 0.75, 36, 14, True), (47, 0.75, 36, 0, False)),  # a variance of 9
    ],
)
def test_a_key_or_query_that_is_kept_too_often_by_seven_sigmas(
    queries: int, share: float, usual: int, count: int, is_found: bool
) -> None:
    order = torch.arange(queries)
    kept = (order < usual)[:, None].repeat(1, 5)
    kept[:, 3] = order < count
    visible = torch.ones(queries, 6, dtype=torch.bool)
    visible[:, 5] = False  # a key that no query sees
    kept = torch.cat((kept, torch.zeros(queries, 1, dtype=torch.bool)), 1)
    words = f"dropout keeps {count / queries:.3g} of the weights of"
    for noun, x, seen in (("key", kept, visible), ("query", kept.mT, visible.mT)):
        found = list(structured_dropout._list_outliers(x[None, None], seen, share))
        assert found == ([f"{words} {noun} 3, not {share:g}"] if is_found else [])


# --- seeds ---


def test_two_seeds_must_differ_and_one_seed_must_not() -> None:
    same = probe(FULL, lambda case, generator: independent(case, torch.Generator().manual_seed(3)))
    assert same.violations == ("two seeds drop the same keys",)
    calls = iter(range(99))

    def stateful(case: Case, generator: torch.Generator) -> Tensor:
        return independent(case, generator.manual_seed(generator.initial_seed() + 100 * (next(calls) == 5)))

    state = probe(FULL, stateful)
    assert state.violations == (
        "the same seed drops different keys when called again, as activation checkpointing does",
    )


def test_another_seed_is_tried_and_the_first_again() -> None:
    seeds: list[tuple[int, bool]] = []

    def run(inputs: Inputs) -> Outputs:
        seeds.append((torch.initial_seed(), bool(inputs.q.any())))
        return attend(inputs, independent(inputs.case, torch.Generator().manual_seed(torch.initial_seed())))

    run_probe(FULL, "cpu", run)
    assert seeds[:3] == [(7, False)] * 3, "64 keys in pieces of 24"
    assert seeds[3:5] == [(8, False), (7, True)], "another seed, so that a stale one shows; then random inputs"
    assert seeds[5:] == [(7, False)]


# --- what is kept ---


@pytest.mark.parametrize("case", [FULL, CAUSAL], ids=["full", "causal"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_share_kept_may_be_off_by_chance_and_a_256th(case: Case, sign: int) -> None:
    total = 2 * 4 * (64 * 64 if case is FULL else 64 * 65 // 2)
    allowed = 6.0 * math.sqrt(0.25 * 0.75 / total) + 1.0 / 256.0
    assert found(probe(case, exactly(0.75 + sign * (allowed - 1.0 / total)))) == CLEAN
    share = 0.75 + sign * (allowed + 1.0 / total)
    assert found(probe(case, exactly(share))) == ((f"dropout 0.25 keeps {share:.4g} of the weights, not 0.75",), ())


def read_one_weight(batch: int, head: int, query: int, key: int, times: float) -> Callable[[Outputs, Inputs], Outputs]:
    """Return the change of an answer by which one weight is `times` what a kept one is."""

    def read(outputs: Outputs, inputs: Inputs) -> Outputs:
        case = inputs.case
        count = int(masks.build_mask(case, "cpu")[0, 0, query].sum())
        element = inputs.v[batch, key, head // 2].nonzero()  # v is a unit vector, of the keys that this call reads
        if not len(element):
            return outputs
        index = (batch, query, head, int(element[0]))
        return with_edits(outputs, out=put(index, times / (1.0 - case.dropout) / count))

    return read


def test_a_weight_of_half_a_kept_one_is_a_key_that_is_seen() -> None:
    assert found(probe(CAUSAL, read=read_one_weight(1, 3, 20, 60, 0.4999))) == CLEAN
    seen = probe(CAUSAL, read=read_one_weight(1, 3, 20, 60, 0.5001))
    assert found(seen) == (("with dropout, a query attends to a key that must be hidden",), ())


def test_half_a_kept_weight_is_none() -> None:
    case = make_case(dropout=0.5, causal=True)
    kept = independent(case, torch.Generator().manual_seed(7))
    dropped = int((~kept[1, 3, 31, :32]).nonzero()[-1])
    for key in (dropped, 60):  # of query 31, which weighs 32 keys alike: half a kept one's weight is 1 bit for bit
        assert found(probe(case, read=read_one_weight(1, 3, 31, key, 0.5))) == CLEAN


def test_a_kept_weight_is_known_by_half_its_size() -> None:
    kept = independent(FULL, torch.Generator().manual_seed(7))
    key = int(kept[1, 3, 20].nonzero()[-1])
    assert found(probe(FULL, read=read_one_weight(1, 3, 20, key, 0.5001))) == CLEAN
    violations = probe(FULL, read=read_one_weight(1, 3, 20, key, 0.4999)).violations
    assert [violation.split(" is wrong")[0] for violation in violations] == [
        *("out of batch 1, head 3", "dq of batch 1, head 3", "dk of batch 1, head 1", "dv of batch 1, head 1")
    ]
    dropped = int((~kept[1, 3, 20]).nonzero()[-1])
    assert found(probe(FULL, read=read_one_weight(1, 3, 20, dropped, 0.4999))) == CLEAN
    assert probe(FULL, read=read_one_weight(1, 3, 20, dropped, 0.5001)).violations != ()


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_kept_may_be_a_hundredth_too_large(sign: int) -> None:
    def times(factor: float) -> Callable[[Outputs, Inputs], Outputs]:
        return lambda outputs, inputs: replace(outputs, out=outputs.out * factor)

    assert found(probe(FULL, read=times(1.0 + sign * 0.00999))) == CLEAN
    want = f"the weights that dropout 0.25 keeps are multiplied by {(1.0 + sign * 0.01001) / 0.75:.4g}, not 1.333"
    assert found(probe(FULL, read=times(1.0 + sign * 0.01001))) == ((want,), ())


# --- independence ---


def test_draws_that_heads_batch_rows_or_most_of_a_row_share_are_wrong() -> None:
    (of_heads,) = probe(FULL, shared(1, 4)).violations
    assert of_heads.startswith("dropout's spread over heads is ") and of_heads.endswith(
        " times that of independent keys: heads 0 and 1 drop the same keys"
    )
    assert float(of_heads.split()[5]) == pytest.approx(4.0, abs=0.2)
    (of_two_heads,) = probe(make_case(num_heads=2), shared(1, 2)).violations
    assert float(of_two_heads.split("heads is ")[1].split()[0]) == pytest.approx(2.0, abs=0.2)
    (of_batch,) = probe(FULL, shared(0, 2)).violations
    assert of_batch.endswith(": batch rows 0 and 1 drop the same keys")
    assert float(of_batch.split("batch rows is ")[1].split()[0]) == pytest.approx(2.0, abs=0.2)
    assert probe(make_case(batch=1), shared(0, 2)).violations == ()


LONG = make_case(60, num_heads=64, num_kv_heads=2)


@pytest.mark.parametrize(("dim", "name", "who"), [(3, "rows", "keys of a query"), (2, "columns", "queries")])
def test_a_few_that_share_a_draw_are_a_warning_and_a_quarter_of_them_all_is_wrong(
    dim: int, name: str, who: str
) -> None:
    for among in (2, 12):  # of 60
        violations, (warning,) = found(probe(LONG, shared(dim, among)))
        assert violations == ()
        start, end = warning.split(" times that of independent keys: about ")
        ratio = float(start.removeprefix(f"dropout's spread over {name} is "))
        assert ratio == pytest.approx(among, rel=0.1)
        assert end == f"{float(end.split()[0]):.1f} {who} share each draw"
        assert float(end.split()[0]) == pytest.approx(ratio, abs=0.06)
    (violation,), warnings = found(probe(LONG, shared(dim, 20)))
    assert violation.startswith(f"dropout's spread over {name} is ") and warnings == ()
    assert violation.endswith(" times that of independent keys"), "only heads and batch rows are compared in pairs"


def test_a_spread_that_is_too_even_is_wrong() -> None:
    def even(case: Case, generator: torch.Generator) -> Tensor:
        ranks = torch.rand(shape_of(case), generator=generator).argsort(-1)
        return ranks < 48

    assert found(probe(FULL, even)) == (("dropout's spread over rows is 0 times that of independent keys",), ())


def whole_rows(case: Case, generator: torch.Generator) -> Tensor:
    """Keep three quarters of the rows."""
    rows = case.batch * case.num_heads * case.seqlen_q
    kept = torch.randperm(rows, generator=generator) < 0.75 * rows
    return kept.view(*shape_of(case)[:3], 1).expand(shape_of(case))


def test_rows_of_32_keys_are_judged_and_shorter_ones_are_not() -> None:
    (violation,) = probe(make_case(32), whole_rows).violations
    assert violation == "dropout's spread over rows is 32 times that of independent keys"
    assert not any("over rows" in violation for violation in probe(make_case(31), whole_rows).violations)
    causal = make_case(causal=True, num_heads=8)
    (violation,) = probe(causal, shared(3, 64)).violations
    assert violation.startswith("dropout's spread over rows is "), "of the rows of which some are long enough"
    assert (
        probe(make_case(32, num_heads=64), shared(2, 32)).violations[0].startswith("dropout's spread over columns is")
    )
    of_columns = probe(make_case(31, num_heads=64), shared(2, 31)).violations
    assert not any("over columns" in violation for violation in of_columns)


def kept_heads(counts: list[int]) -> Mask:
    """Return a mask in which so many of the four heads keep a key, place after place in random order."""

    def draw(case: Case, generator: torch.Generator) -> Tensor:
        places = case.batch * case.seqlen_q * case.seqlen_k
        numbers = torch.tensor(counts)[torch.randperm(places, generator=generator)]
        ranks = torch.rand(places, 4, generator=generator).argsort(1).argsort(1)
        kept = ranks < numbers[:, None]
        return kept.view(case.batch, case.seqlen_q, case.seqlen_k, 4).permute(0, 3, 1, 2)

    return draw


@pytest.mark.parametrize("sign", [1, -1])
def test_the_spread_may_be_off_by_chance(sign: int) -> None:
    """Of four heads 2 ± 1 are kept on average; here (kept - 2)² is chosen place by place, with a mean to the digit."""
    case = make_case(dropout=0.5)
    places = 2 * 64 * 64
    allowed = 8.0 * math.sqrt(2.0 / places) + 10.0 / 256.0
    for over, is_wrong in ((-4, False), (4, True)):
        wanted = round(places * (1.0 + sign * allowed)) + sign * over  # the sum of (kept - 2)²
        extreme = places // 8 // 2 * 2  # of 0 or 4 heads, each worth 4
        single = (wanted - 4 * extreme) // 2 * 2
        counts = [0, 4] * (extreme // 2) + [1, 3] * (single // 2)
        result = probe(case, kept_heads(counts + [2] * (places - len(counts))))
        ratio = sum((count - 2) ** 2 for count in counts) / places
        spread = f"dropout's spread over heads is {ratio:.3g} times that of independent keys"
        assert found(result) == (((spread,), ()) if is_wrong else CLEAN)


# --- outputs ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv"])
def test_an_output_may_be_off_by_its_dtypes_rounding(dtype: Dtype, name: str) -> None:
    case = make_case(dtype=dtype, causal=True)
    head = 3 if name in ("out", "dq") else 1
    allowed = {"bfloat16": 3e-2, "float16": 4e-3, "float32": 1e-5}[dtype]

    def judge(edit: Edit) -> tuple[str, ...]:
        return probe(case, edits={name: edit}).violations

    def times(factor: float) -> Edit:
        return put((1, slice(None), head), getattr(exact, name)[1, :, head] * factor)

    exact = probe(case).outputs
    for sign in (1, -1):
        assert judge(times(1.0 + sign * allowed * 0.999)) == ()
        assert judge(times(1.0 + sign * allowed * 1.001)) == (
            f"{name} of batch 1, head {head} is wrong for the keys that the forward pass drops under the same seed: "
            f"relative error {allowed * 1.001:.2g}",
        )
    (violation,) = judge(put((1, 5, head, 2), math.nan))
    assert violation.startswith(f"{name} of batch 1, head {head} is wrong for the keys") and violation.endswith(
        "error nan"
    )


def test_only_the_gradients_that_are_asked_for_and_returned_are_judged() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2.0

    assert probe(replace(FULL, backward=False), edits={"dq": double}).violations == ()
    assert len(probe(FULL, edits={"dq": double}).violations) == 1

    def run(inputs: Inputs) -> Outputs:
        outputs = attend(inputs, independent(inputs.case, torch.Generator().manual_seed(torch.initial_seed())))
        return replace(outputs, dk=None)

    assert run_probe(FULL, "cpu", run).violations == ()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_scores_of_a_query_with_two_keys_may_be_rounded(dtype: Dtype) -> None:
    """A kept weight of 0.05 is off by 3 % if its score of -2 and the other key's of 1 are rounded to bfloat16."""
    seqlens = (1,) * 400
    case = make_case(dtype=dtype, dropout=0.5, mask="additive", per_head=True, num_heads=20, num_kv_heads=20, scale=0.5)
    case = with_name(replace(case, seqlens_q=seqlens, seqlens_k=(2,) * 400))

    def run(inputs: Inputs, spoilt: bool = False) -> Outputs:
        generator = torch.Generator().manual_seed(torch.initial_seed())
        kept = independent(inputs.case, generator)
        outputs = _run_rounded(inputs, kept)
        swapped = torch.where(torch.arange(400)[:, None, None, None] == 7, ~kept, kept)
        return replace(outputs, dv=_run_rounded(inputs, swapped).dv) if spoilt and inputs.case.dropout else outputs

    assert found(run_probe(case, "cpu", run)) == CLEAN
    violations = run_probe(case, "cpu", lambda inputs: run(inputs, spoilt=True)).violations
    assert violations and all(line.startswith("dv of batch 7,") for line in violations)


def _run_rounded(inputs: Inputs, kept: Tensor) -> Outputs:
    """Return attention whose scores are rounded to the case's dtype after each step, like eager's."""
    case = inputs.case
    q, k, v = (x.detach().clone().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    s = torch.matmul(q.transpose(1, 2), k.permute(0, 2, 3, 1)) * case.softmax_scale
    s = s + masks.build_mask_tensor(case, "cpu", q.dtype)
    p = (torch.softmax(s.float(), -1).to(q.dtype) * kept / (1.0 - case.dropout)).to(q.dtype)
    out = torch.matmul(p, v.transpose(1, 2)).transpose(1, 2)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), inputs.dout)
    return Outputs(out=out.detach(), dq=dq, dk=dk, dv=dv)


def test_the_seed_of_the_call_before_shows_in_the_backward() -> None:
    """A backward that reads the previous call's seed is right if both calls were seeded alike."""
    seeds: list[int] = []

    def run(inputs: Inputs) -> Outputs:
        seeds.append(torch.initial_seed())
        own, stale = (
            independent(inputs.case, torch.Generator().manual_seed(seed)) for seed in (seeds[-1], seeds[-2:][0])
        )
        wrong = attend(inputs, stale)
        return replace(wrong, out=attend(inputs, own).out)

    violations = run_probe(FULL, "cpu", run).violations
    assert {line.split()[0] for line in violations} == {"dq", "dk", "dv"}, violations


@pytest.mark.parametrize("what", ["weights", "dv"])
def test_dropout_is_not_blamed_for_what_is_wrong_without_it(what: str) -> None:
    def run(inputs: Inputs) -> Outputs:
        outputs = attend(inputs, independent(inputs.case, torch.Generator().manual_seed(torch.initial_seed())))
        if what == "dv":
            return with_edits(outputs, dv=lambda dv: dv * 1.1)
        return replace(outputs, out=outputs.out * (torch.arange(64) % 9 > 0)[:, None, None])

    (violation,) = run_probe(FULL, "cpu", run).violations
    named = {"weights": "without dropout too, weights up to 0.016 are", "dv": "without dropout too, dv of batch"}
    assert violation.startswith(named[what])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_head_with_keys_whose_mask_cannot_be_read_is_not_judged(dtype: Dtype) -> None:
    """In float16, a steep ALiBi slope beside a sink leaves far keys a weight of 1e-6; with q and k, it may be 1e-5."""
    case = make_case(dtype=dtype)
    inputs = cast_to_case(make_normal_inputs(replace(case, dropout=0.0), "cpu"), case)
    kept = independent(case, torch.Generator().manual_seed(1))
    outputs, misread = attend(inputs, kept), kept.clone()
    misread[1, 0, :, 9] = ~kept[1, 0, :, 9]

    def judge(is_read: Tensor, answer: Outputs = outputs) -> list[str]:
        return list(structured_dropout._output_violations(inputs, answer, misread, is_read))

    every = torch.ones_like(kept)
    assert [line.split(" is wrong")[0] for line in judge(every)][:1] == ["out of batch 1, head 0"]
    unread = every & (torch.arange(case.seqlen_k) != 9)
    unread[0] = unread[:, 1:] = True
    assert judge(unread) == []
    other = with_edits(outputs, out=put((1, 5, 1), 3.0))
    assert [line.split(" is wrong")[0] for line in judge(unread, other)] == ["out of batch 1, head 1"]
