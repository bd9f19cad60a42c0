"""Patterns are named truly, structured probes name the place, dropout is judged, impostors are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Backend, Device, Installed, Outputs
from attncheck.attention.backends import eager, sdpa_flash, sdpa_math
from attncheck.attention.device import prepare_device
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference.error_patterns import describe_patterns
from attncheck.attention.reference.oracle import compute_reference
from attncheck.core.cases import Case, Probe, with_name
from attncheck.core.verdicts import Run, judge_run
from attncheck.measure.case_features import EXPLAINED, NEEDED, STALE, STALE_CONTENTS, STALE_PARAMETERS, UNREPEATED
from attncheck.measure.case_features import PLAIN as PLAIN_CASE
from attncheck.measure.suites import make_suite
from attncheck.measure.worker.guarded_calls import bit_patterns, digest_bits, has_same_bits
from attncheck.measure.worker.judging import SharedResults
from attncheck.measure.worker.repeats import Repeater
from attncheck.measure.worker.session import ParitySession, has_same_outputs

CPU = prepare_device("cpu")
Call = Callable[[Inputs], Outputs]


def make_case(seqlens: tuple[int, ...], **changes: object) -> Case:
    return with_name(replace(Case("measure", seqlens, seqlens), **changes))  # type: ignore[arg-type]


def make_backend(run: Call, **changes: object) -> Backend:
    plain = Backend("planted", "", "", Installed, lambda case, device: "", lambda x, strict: run(x), lambda case: ())
    return replace(plain, **changes)  # type: ignore[arg-type]


def measure_parity(run: Call, case: Case, **changes: object) -> Run:
    return ParitySession(make_backend(run, **changes), CPU).measure(case)


def run_correct(inputs: Inputs) -> Outputs:
    return sdpa_flash.BACKEND.run(inputs, False)


def with_edits(**changes: Callable[[Tensor], Tensor]) -> Call:
    """Return a backend's run whose named results are changed."""

    def run(inputs: Inputs) -> Outputs:
        answer = run_correct(inputs)
        results = {name: getattr(answer, name) for name in ("out", "lse", "dq", "dk", "dv")}
        for name, change in changes.items():
            results[name] = change(results[name].clone())
        return Outputs(**results)

    return run


def set_at(index: tuple[object, ...], value: float) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        x[index] = value  # type: ignore[index]
        return x

    return change


PLAIN = make_case((300, 300), num_kv_heads=2)
PACKED = make_case((100, 60, 90), layout="packed", num_kv_heads=2)
PATTERNS: dict[str, tuple[Call, Case, str]] = {
    "a factor": (with_edits(dq=lambda x: x * 8.0), PLAIN, "dq: 8 times what it should be"),
    "another base": (with_edits(lse=lambda x: x * 1.4427), PLAIN, "lse is in base 2"),
    "a shift": (with_edits(lse=lambda x: x + 0.5), PLAIN, "lse is shifted by 0.5 everywhere"),
    "the scale": (lambda i: run_correct(replace(i, q=i.q * 1.03)), PLAIN, "the softmax scale is off by about +3"),
    "one head's LSE": (with_edits(lse=set_at((0, 2), 9.0)), PLAIN, "lse: errors only in head 2 of 4"),
    "swapped heads": (with_edits(dk=lambda x: x.flip(2)), PLAIN, "dk: head 0 holds head 1's result"),
    "one head": (with_edits(out=set_at((..., 2, slice(None)), 0.0)), PLAIN, "out: errors only in head 2 of 4"),
    "one batch row": (with_edits(out=set_at((1,), 0.0)), PLAIN, "out: errors only in batch row 1 of 2"),
    "one query": (with_edits(out=set_at((slice(None), 211), 0.0)), PLAIN, "out: errors only in query 211"),
    "from a row on": (
        with_edits(dq=set_at((slice(None), slice(128, None)), 0.0)),
        PLAIN,
        "dq: errors only in the queries from 128 on: there it is zero",
    ),
    "every 64th row": (
        with_edits(out=set_at((slice(None), slice(3, None, 64)), 0.0)),
        PLAIN,
        "out: errors only in every 64th query, from 3 on",
    ),
    "the first rows": (
        with_edits(dv=set_at((slice(None), slice(0, 64)), 0.0)),
        PLAIN,
        "dv: errors only in the first 64 keys: there it is zero",
    ),
    "some columns": (
        with_edits(out=set_at((..., slice(48, None)), 0.0)),
        PLAIN,
        "out: errors only in head_dim elements 48 to 63",
    ),
    "heads and columns": (
        with_edits(out=set_at((..., slice(1, None, 2), slice(48, None)), 0.0)),
        PLAIN,
        "out: errors only in heads 1, 3 of 4, in head_dim elements 48 to 63: there it is zero",
    ),
    "a factor in a batch row": (
        with_edits(dk=lambda x: torch.cat((x[:1], x[1:] * 3.0))),
        PLAIN,
        "dk: errors only in batch row 1 of 2: there it is 3 times what it should be",
    ),
    "a whole tile is missed": (
        with_edits(dq=set_at((slice(None), slice(288, None)), 0.0)),
        PLAIN,
        "dq: errors only in the queries from 288 on (after the last whole tile of 32): there it is zero",
    ),
    "the tail of each document": (
        with_edits(
            out=lambda x: (
                x
                * (
                    torch.arange(250) % 250 - torch.tensor([0, 100, 160]).repeat_interleave(torch.tensor([100, 60, 90]))
                    < torch.tensor([96, 48, 80]).repeat_interleave(torch.tensor([100, 60, 90]))
                )[None, :, None, None]
            )
        ),
        PACKED,
        "out: errors only in the queries after the last whole tile of 16 of each document: there it is zero",
    ),
    "heads that went elsewhere": (
        with_edits(dv=lambda x: torch.stack((x[:, :, 0] + x[:, :, 1], 0 * x[:, :, 1]), 2)),
        PLAIN,
        "dv: zero in head 1 of 2",
    ),
    "rows swapped": (with_edits(dv=lambda x: x.flip(0)), PLAIN, "dv: batch row 0 holds batch row 1's result"),
    "a scale in a factor": (
        with_edits(dk=lambda x: x * 48**-0.5),
        make_case((70,), head_dim=48, v_head_dim=48),
        "dk: 0.1443 times what it should be, as by the softmax scale",
    ),
    "a document": (with_edits(out=set_at((0, slice(100, 160)), 0.0)), PACKED, "out: errors only in document 1 of 3"),
    "boundaries": (
        with_edits(out=set_at((0, [100, 160]), 0.0)),
        PACKED,
        "out: errors only in query 0 of each document",
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_telling_pattern_is_named(name: str) -> None:
    run, case, expected = PATTERNS[name]
    failing = measure_parity(run, case)
    assert judge_run(failing).answer == "fail"
    assert any(line.startswith(expected) for line in failing.pattern), failing.pattern


def test_the_mode_that_is_wrong_is_simplified() -> None:
    def run(inputs: Inputs, strict: bool) -> Outputs:
        usual = replace(inputs.case, scale=0.0) if strict else inputs.case
        return eager.BACKEND.run(replace(inputs, case=usual), False)

    backend = replace(make_backend(run_correct), run=run, noise="eager", deterministic_switch="argument")
    case = make_case((70, 70), scale=0.04, causal=False, window_size=(16, 3), values="large")
    failing = ParitySession(backend, CPU).measure(case)
    assert failing.pattern[0] == f"{EXPLAINED}the softmax scale was 1/sqrt(head_dim)"
    assert failing.pattern[1] == f"{NEEDED}only a custom softmax scale; right without it"
    assert {score.mode for score in failing.scores if score.z_rms > 6.0} == {"deterministic"}


@pytest.mark.parametrize("follows_torch", [False, True])
def test_a_deterministic_mode_that_is_not_declared_is_judged(follows_torch: bool) -> None:
    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        outputs = eager.BACKEND.run(inputs, False)
        if not (torch.are_deterministic_algorithms_enabled() if follows_torch else deterministic):
            return outputs
        unwindowed = replace(inputs, case=replace(inputs.case, window_size=(-1, 0)))
        return replace(outputs, dq=eager.BACKEND.run(unwindowed, False).dq)

    backend = replace(make_backend(run_correct), run=run, noise="eager", takes_mask=True)
    case = make_case((150,), num_kv_heads=2, window_size=(40, 0))
    failing = ParitySession(backend, CPU).measure(case)
    verdict = judge_run(failing)
    assert verdict.answer == "fail" and verdict.reason.startswith("in deterministic mode, dq "), verdict
    assert failing.pattern[0] == f"{NEEDED}only a window; right without it"
    plain = ParitySession(backend, CPU).measure(replace(case, window_size=(-1, -1)))
    assert judge_run(plain).answer == "pass" and {score.mode for score in plain.scores} == {"default"}


DROPPED = make_case((130,), num_kv_heads=2, dropout=0.2, probe="dropout")


@pytest.mark.parametrize("feature", [{"alibi": True}, {"softcap": 2.0}, {"sinks": True}, {"attention_chunk": 50}])
def test_a_feature_that_dropout_forgets_is_found(feature: dict[str, object]) -> None:
    forgotten = dict.fromkeys(feature, 0)
    case = replace(DROPPED, **feature)  # type: ignore[arg-type]

    def forgetful(inputs: Inputs) -> Outputs:
        plain = replace(inputs.case, **forgotten)  # type: ignore[arg-type]
        slopes, sinks = (inputs.slopes if plain.alibi else None), (inputs.sinks if plain.sinks else None)
        return eager.BACKEND.run(replace(inputs, case=plain, slopes=slopes, sinks=sinks), False)

    assert judge_run(ParitySession(eager.BACKEND, CPU).measure(case)).answer == "pass"
    assert judge_run(measure_parity(forgetful, case, takes_mask=True)).answer == "fail"


def test_the_deterministic_mode_drops_what_the_forward_pass_drops() -> None:
    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        outputs = eager.BACKEND.run(inputs, False)
        with torch.random.fork_rng([]):
            torch.manual_seed(99)
            return replace(outputs, dv=eager.BACKEND.run(inputs, False).dv) if deterministic else outputs

    backend = replace(eager.BACKEND, run=run, deterministic_switch="argument")
    verdict = judge_run(ParitySession(backend, CPU).measure(DROPPED))
    assert verdict.answer == "fail" and verdict.reason.startswith("in deterministic mode, dv "), verdict
    assert judge_run(ParitySession(eager.BACKEND, CPU).measure(DROPPED)).answer == "pass"


def test_a_mode_is_not_blamed_for_a_later_call() -> None:
    calls = []

    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        calls.append(deterministic)
        outputs = eager.BACKEND.run(inputs, False)
        return outputs if len(calls) <= 1 else replace(outputs, out=outputs.out * 2.0)

    backend = replace(make_backend(run_correct), run=run, noise="eager")
    verdict = judge_run(ParitySession(backend, CPU).measure(make_case((70,))))
    assert verdict.answer == "fail" and verdict.reason.startswith("in call 2, out "), (verdict, calls)
    assert True in calls


def test_a_pattern_that_the_inputs_alone_explain_is_not_named() -> None:
    def shifted(inputs: Inputs) -> Outputs:
        return run_correct(replace(inputs, q=inputs.q * 1.5))

    for values in ("negative", "first_key", "cancelling"):
        patterns = measure_parity(shifted, replace(PLAIN, values=values)).pattern
        assert not any("head_dim elements" in line or "from 1 on" in line for line in patterns), patterns
        assert values != "cancelling" or not any("errors only in head" in line for line in patterns), patterns


def test_heads_whose_sinks_hide_an_error_are_not_called_right() -> None:
    def widened(inputs: Inputs) -> Outputs:
        return eager.BACKEND.run(replace(inputs, case=replace(inputs.case, window_size=(17, 0))), False)

    case = make_case((40,), num_heads=8, num_kv_heads=2, sinks=True, window_size=(16, 0))
    assert not any("errors only in head" in line for line in measure_parity(widened, case, takes_mask=True).pattern)


def forget(feature: str, **plain: object) -> Call:
    """Return a backend's run that takes a case as if it did not have some feature."""
    return lambda inputs: eager.BACKEND.run(replace(inputs, case=replace(inputs.case, **plain)), False)  # type: ignore[arg-type]


@pytest.mark.parametrize("alibi", [False, True])
def test_the_scale_is_not_named_if_the_scores_have_a_bias(alibi: bool) -> None:
    case = make_case((300,), alibi=alibi)
    logit = compute_reference(make_inputs(case, "cpu")).expected_logit  # what the scale would change, without a bias
    run = measure_parity(with_edits(lse=lambda x: x + 0.03 * logit), case, rounded_bias=True)
    assert any("the softmax scale" in line for line in run.pattern) != alibi, run.pattern


@pytest.mark.parametrize("bias", [{"alibi": True}, {"mask": "additive"}])
def test_backends_share_a_reference_unless_their_noise_differs(bias: dict[str, object]) -> None:
    for changes, is_other in ((bias, True), ({}, False)):
        inputs, shared = make_inputs(make_case((40,), **changes), "cpu"), SharedResults()
        exact, rounded = (shared.unrounded_reference(inputs, "fused", rounded_bias) for rounded_bias in (False, True))
        assert torch.equal(exact.sigma["out"], rounded.sigma["out"]) != is_other
        assert torch.equal(exact.out, rounded.out)


def test_heads_that_are_nearly_equal_are_not_called_swapped() -> None:
    def blur(x: Tensor) -> Tensor:
        return x + 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)

    inputs = make_inputs(make_case((200,)), "cpu")
    inputs = replace(inputs, v=1.0 + 0.01 * inputs.v)
    outputs = run_correct(inputs)
    lines = describe_patterns(replace(outputs, out=blur(outputs.out.flip(2))), compute_reference(inputs), ("out",))
    assert not any(" holds " in line for line in lines), lines


@pytest.mark.parametrize(
    ("run", "changes", "expected"),
    [
        (forget("softcap", softcap=0.0), {"softcap": 5.0, "strides": "ttcc"}, "soft-cap"),
        (forget("window", window_size=(-1, 0)), {"window_size": (16, 0), "alibi": True}, "a window"),
        (
            lambda i: run_correct(i if i.v.is_contiguous() else replace(i, v=i.v.roll(1, 1))),
            {"strides": "ctst", "num_kv_heads": 2},
            "a sliced v",
        ),
        (
            lambda i: run_correct(i if i.case.layout != "left_padded" else replace(i, v=i.v.roll(1, 1))),
            {"layout": "left_padded"},
            "padding on the left",
        ),
        (
            lambda i: with_edits(dk=set_at((0, slice(i.case.seqlen_k // 64 * 64, None)), 0.0))(i),
            {"num_kv_heads": 2},
            "lengths that are not multiples of 64",
        ),
        *(
            (
                lambda i, is_wrong=is_wrong: run_correct(replace(i, v=i.v.roll(1, 1)) if is_wrong(i.case) else i),
                {"head_dim": 72, "v_head_dim": 72, "num_kv_heads": 2},
                expected,
            )
            for is_wrong, expected in (
                (lambda case: case.head_dim % 16 > 0, "a head_dim that is not a multiple of 32"),
                (lambda case: case.head_dim > 64, "head_dim 72"),
            )
        ),
    ],
)
def test_a_feature_without_which_the_case_is_right_is_named(
    run: Call, changes: dict[str, object], expected: str
) -> None:
    pattern = measure_parity(run, make_case((70, 70), **changes), noise="eager").pattern
    named, *_ = (line for line in pattern if not line.startswith(EXPLAINED))
    assert named == f"{NEEDED}only {expected}; right without it", pattern
    wrong_always = measure_parity(with_edits(dq=lambda x: x * 0.5), make_case((70, 70), **changes)).pattern
    assert any(line.startswith(PLAIN_CASE) for line in wrong_always[:2])


def forget_together(*features: str) -> Call:
    """Return a backend's run whose out is halved if a case has all features."""

    longest = 0

    def run(inputs: Inputs) -> Outputs:
        nonlocal longest
        outputs, case = eager.BACKEND.run(inputs, False), inputs.case
        longest = max(longest, *case.seqlens_k)
        has = {
            "sinks": case.sinks,
            "group": case.num_kv_heads < case.num_heads,
            "packed": case.layout == "packed",
            "window": case.windowed,
            "dropout": case.dropout > 0.0,
            "forward": not case.backward,
            "many": len(case.seqlens_q) > 2,
            "keys_alone": any(k and not q for q, k in zip(case.seqlens_q, case.seqlens_k)),
            "queries_alone": any(q and not k for q, k in zip(case.seqlens_q, case.seqlens_k)),
            "more_keys": any(k > q for q, k in zip(case.seqlens_q, case.seqlens_k)),
            "fewer_keys": any(k < q for q, k in zip(case.seqlens_q, case.seqlens_k)),
            "one_query": max(case.seqlens_q) == 1,
            "one_key": max(case.seqlens_k) == 1,
            "uneven": len(set(case.seqlens_k)) > 1,
            "tail": any(k % 64 for k in case.seqlens_k),
            "long": max(case.seqlens_k) > (2100 if longest > 2100 else 600),
        }
        return replace(outputs, out=outputs.out / 2.0) if all(has[name] for name in features) else outputs

    return run


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (("sinks", "group"), "sinks and several heads for each kv head; right without any one of them"),
        (
            ("packed", "window", "group"),
            "a window, several heads for each kv head and a packed layout; right without any",
        ),
        (("forward",), "no backward; right without it"),
        (("many",), "4 documents; right without it"),
    ],
)
def test_a_wrong_case_is_reduced_to_the_features_that_it_needs_together(
    features: tuple[str, ...], expected: str
) -> None:
    rich: dict[str, object] = {"layout": "packed", "window_size": (16, 0), "strides": "tcsc", "softcap": 5.0}
    case = make_case((40, 0, 17, 70), num_kv_heads=2, sinks=True, backward=False, **rich)
    right = measure_parity(forget_together("dropout"), case, noise="eager", takes_mask=True)
    assert judge_run(right).answer == "pass" and not right.pattern
    pattern = measure_parity(forget_together(*features), case, noise="eager", takes_mask=True).pattern
    assert pattern[0].startswith(f"{NEEDED}only {expected}"), pattern


@pytest.mark.parametrize(
    ("features", "seqlens_q", "seqlens_k", "expected"),
    [
        (("keys_alone",), (0, 40, 17), (5, 40, 17), "documents without queries; right without it"),
        (("queries_alone",), (5, 40, 17), (0, 40, 17), "documents without keys; right without it"),
        (("more_keys", "fewer_keys"), (17, 40), (40, 17), "more keys than queries and fewer keys than queries; right"),
        (("one_query",), (1, 1), (9, 5), "one query in each sequence; right without it"),
        (("one_key",), (1, 1), (1, 1), "one key in each sequence; right without it"),
        (("one_key",), (9, 5), (1, 1), "one key in each sequence; right without it"),
        (("one_query",), (1, 1), (1, 1), "one query in each sequence; right without it"),
        (("uneven", "packed"), (70, 3), (70, 5), "documents of unequal lengths; right without it"),
        (("tail",), (70, 3), (69, 5), "lengths that are not multiples of 64; right without it"),
        (("long",), (3,), (2600,), "over 2048 tokens; right without it"),
        (("long",), (3,), (700,), "over 512 tokens; right without it"),
    ],
)
def test_lengths_of_the_two_sides_are_features_of_their_own(
    features: tuple[str, ...], seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...], expected: str
) -> None:
    case = with_name(replace(make_case(seqlens_q, layout="packed", num_kv_heads=2), seqlens_k=seqlens_k, causal=False))
    pattern = measure_parity(forget_together(*features), case, noise="eager", takes_mask=True).pattern
    assert pattern[0].startswith(f"{NEEDED}only {expected}"), pattern


def test_dropout_is_not_blamed_for_what_is_wrong_without_it() -> None:
    case = replace(DROPPED, sinks=True)
    violations = measure_parity(forget_together("sinks"), case, noise="eager", takes_mask=True).violations
    assert violations[0].startswith(f"{NEEDED}only sinks; right") and violations[1].startswith("so without dropout"), (
        violations
    )
    rich: dict[str, object] = {"layout": "packed", "seqlens_q": (40, 33, 17, 70), "seqlens_k": (40, 33, 17, 70)}
    packed = with_name(replace(DROPPED, **rich))  # type: ignore[arg-type]
    violations = measure_parity(forget_together("many"), packed, noise="eager", takes_mask=True).violations
    assert violations[0].startswith(f"{NEEDED}only 4 documents; right"), "sizes are named too"
    run = measure_parity(forget_together("dropout", "group"), case, noise="eager", takes_mask=True)
    assert run.violations[0].startswith("dropout 0.2 keeps") and not run.pattern

    def another_dk(inputs: Inputs) -> Outputs:
        outputs = eager.BACKEND.run(inputs, False)
        is_grouped = inputs.case.num_kv_heads < inputs.case.num_heads
        return replace(outputs, dk=eager.BACKEND.run(inputs, False).dk) if is_grouped else outputs

    run = measure_parity(another_dk, case, noise="eager", takes_mask=True)
    assert run.pattern[0].startswith(f"{NEEDED}only dropout and several heads for each kv head; right"), run.pattern


@pytest.mark.parametrize("kept", ["window_size", "seqlens_k", "softcap"])
def test_what_is_kept_by_shape_is_wrong_for_another_case_of_the_shape(kept: str) -> None:
    first: dict[tuple[int, ...], Case] = {}

    def run(inputs: Inputs) -> Outputs:
        own = first.setdefault(tuple(inputs.q.shape), inputs.case)
        lengths = {"seqlens_q": own.seqlens_k} if kept == "seqlens_k" else {}
        case = replace(inputs.case, **{kept: getattr(own, kept)}, **lengths)  # type: ignore[arg-type]
        return eager.BACKEND.run(replace(inputs, case=case), False)

    case = replace(PACKED, window_size=(16, 0), softcap=5.0)
    wrong = measure_parity(run, case, noise="eager", takes_mask=True)
    assert judge_run(wrong).answer == "fail" and wrong.pattern[0] == STALE_CONTENTS
    assert judge_run(measure_parity(lambda i: eager.BACKEND.run(i, False), case, noise="eager")).answer == "pass"


@pytest.mark.parametrize("kept", ["window_size", "softcap"])
@pytest.mark.parametrize("probe", ["", "code"])
def test_a_parameter_of_an_earlier_call_is_named(kept: str, probe: Probe) -> None:
    """A kernel compiled for a head_dim keeps the window or soft-cap of its first call."""
    first: dict[int, Any] = {48: (3, 0) if kept == "window_size" else 1.0}

    def run(inputs: Inputs) -> Outputs:
        own = first.setdefault(inputs.case.head_dim, getattr(inputs.case, kept))
        if not inputs.case.windowed:  # another kernel
            own = getattr(inputs.case, kept)
        return eager.BACKEND.run(replace(inputs, case=replace(inputs.case, **{kept: own})), False)

    case = make_case((70,), window_size=(16, 0), softcap=5.0, head_dim=48, v_head_dim=48, values="large")
    if probe and kept == "window_size":
        case = replace(case, probe=probe, backward=False, softcap=0.0)
    wrong = measure_parity(run, case, noise="eager", takes_mask=True)
    lines = (*wrong.violations, *wrong.pattern)
    assert judge_run(wrong).answer == "fail" and any(line.startswith(STALE_PARAMETERS) for line in lines), lines


@pytest.mark.parametrize(
    ("field", "name"), [("num_kv_heads", "number of kv heads"), ("seqlen_k", "lengths"), ("strides", "strides")]
)
def test_what_a_backward_keeps_of_its_first_call_is_named(field: str, name: str) -> None:
    """Compiled for a head_dim, or planned for lengths, it keeps that call's number of kv heads, lengths or strides."""
    first: dict[tuple[int, ...], Any] = {}

    def run(inputs: Inputs) -> Outputs:
        outputs, case = eager.BACKEND.run(inputs, False), inputs.case
        key = (case.head_dim,) if field != "strides" else case.seqlens_k
        if not first:
            first[key] = None
        is_stale = outputs.dk is not None and first.setdefault(key, getattr(case, field)) != getattr(case, field)
        return replace(outputs, dk=2.0 * outputs.dk) if is_stale and outputs.dk is not None else outputs

    case = make_case((70,), num_kv_heads=2, head_dim=48, v_head_dim=48)
    wrong = measure_parity(run, case, noise="eager", takes_mask=True)
    assert judge_run(wrong).answer == "fail" and wrong.pattern[0] == STALE_PARAMETERS + name, wrong


def test_an_error_that_some_values_show_is_no_state() -> None:
    """It is 10 times the budget or within it, in any call, which alone looks like a call that others spoilt."""

    def run(inputs: Inputs) -> Outputs:
        outputs = eager.BACKEND.run(inputs, False)
        assert outputs.dk is not None
        return replace(outputs, dk=outputs.dk * (1.04 if float(outputs.dk[0, 0, 0, 0]) > 0.0 else 1.0))

    for seed in range(8):
        wrong = measure_parity(run, make_case((70,), num_kv_heads=2, seed=seed), noise="eager", takes_mask=True)
        assert not any(line.startswith(STALE) for line in wrong.pattern), (seed, wrong.pattern)


@pytest.mark.parametrize("strides", ["tttt", "csrc"])
def test_strides_that_are_kept_by_shape_spoil_a_strided_case(strides: Any) -> None:
    first: dict[tuple[int, ...], tuple[int, ...]] = {}

    def run(inputs: Inputs) -> Outputs:
        own = first.setdefault(tuple(inputs.k.shape), inputs.k.stride())
        if own == inputs.k.stride():
            return eager.BACKEND.run(inputs, False)
        flat = inputs.k.as_strided((inputs.k.untyped_storage().nbytes() // inputs.k.element_size(),), (1,), 0)
        k = flat.repeat(4).as_strided(inputs.k.shape, own)
        return eager.BACKEND.run(replace(inputs, k=k), False)

    wrong = measure_parity(run, make_case((70,), num_kv_heads=2, strides=strides), noise="eager", takes_mask=True)
    assert judge_run(wrong).answer == "fail" and wrong.pattern[0] == STALE_PARAMETERS + "strides", wrong.pattern


@pytest.mark.parametrize("name", ["sinks", "k"])
def test_what_is_kept_by_address_is_found(name: str) -> None:
    kept: dict[int, Tensor] = {}

    def run(inputs: Inputs) -> Outputs:
        x = getattr(inputs, name)
        own = kept.setdefault(x.data_ptr(), x.clone())
        return eager.BACKEND.run(replace(inputs, **{name: own}) if own.shape == x.shape else inputs, False)  # type: ignore[arg-type]

    case = make_case((40, 17), layout="packed", sinks=True)
    wrong = measure_parity(run, case, noise="eager", takes_mask=True)
    assert judge_run(wrong).answer == "fail" and wrong.pattern[0] in (STALE_CONTENTS, UNREPEATED), wrong.pattern
    right = measure_parity(lambda i: eager.BACKEND.run(i, False), case, noise="eager", takes_mask=True)
    assert judge_run(right).answer == "pass" and not right.pattern


def test_the_worst_place_is_found() -> None:
    run = measure_parity(with_edits(dk=set_at((1, 123, 1), 9.0)), PLAIN)
    score = next(score for score in run.scores if score.tensor == "dk")
    assert (score.batch, score.token, score.head) == (1, 123, 1)
    run = measure_parity(with_edits(out=set_at((0, 130, 3), 9.0)), PACKED)
    score = next(score for score in run.scores if score.tensor == "out")
    assert (score.token, score.head, score.document) == (130, 3, 1)
    far = make_case((5000,), num_heads=1, num_kv_heads=1, every_row=False)
    run = measure_parity(with_edits(out=set_at((0, 4096), 9.0)), far)
    assert next(score for score in run.scores if score.tensor == "out").token == 4096, "a row among the sampled"


def test_nan_is_counted_and_fails_even_in_rows_that_are_not_sampled() -> None:
    far = make_case((5000,), num_heads=1, num_kv_heads=1, every_row=False)
    run = measure_parity(with_edits(out=set_at((0, 777), float("nan"))), far)
    assert judge_run(run).reason == "64 values are NaN or infinite in out"


def test_a_clean_run_has_no_pattern() -> None:
    run = measure_parity(run_correct, PLAIN)
    assert judge_run(run).answer == "pass"
    assert run.pattern == ()
    assert all(score.eager_ratio > 0 for score in run.scores if score.tensor != "lse")


def with_shifted_mask(shift: int) -> Call:
    """Return a backend's run whose causal mask is moved by `shift` keys."""

    def run(inputs: Inputs) -> Outputs:
        case = inputs.case
        shifted = replace(case, causal=False, window_size=(-1, shift))
        answer = sdpa_math.BACKEND.run(replace(inputs, case=shifted), False)
        return replace(answer, lse=None)

    return run


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        ("code", "does not sum its"),
        ("retrieve", "which must be hidden"),
        ("prefix", "which must be hidden"),
    ],
)
def test_a_look_ahead_is_named_by_query_and_key(probe: str, expected: str) -> None:
    case = make_case((300,), probe=probe, backward=False)
    assert judge_run(measure_parity(with_shifted_mask(0), case)).answer == "pass"
    verdict = judge_run(measure_parity(with_shifted_mask(1), case))
    assert verdict.answer == "fail"
    assert expected in verdict.reason


def test_the_count_comes_from_the_lse() -> None:
    case = make_case((300,), probe="code", backward=False)
    verdict = judge_run(measure_parity(with_edits(lse=lambda x: x + 0.02), case))
    assert "keys, not" in verdict.reason


def test_a_wrong_kv_head_is_named() -> None:
    def rolled(inputs: Inputs) -> Outputs:
        return run_correct(replace(inputs, k=inputs.k.roll(1, 2), v=inputs.v.roll(1, 2)))

    verdict = judge_run(measure_parity(rolled, make_case((130,), num_heads=8, num_kv_heads=4, probe="heads")))
    assert verdict.reason == "head 0 returns the v of kv head 3, not of 0"


DROPOUT = next(case for case in make_suite("standard") if case.probe == "dropout")


def dropout_reason(run: Callable[[Inputs], Outputs]) -> str:
    return judge_run(measure_parity(run, DROPOUT)).reason


def test_dropout_is_judged_by_what_it_keeps() -> None:
    def plain(inputs: Inputs) -> Outputs:
        return eager.BACKEND.run(inputs, False)

    def rate(inputs: Inputs) -> Outputs:
        return plain(replace(inputs, case=replace(inputs.case, dropout=1.2 * inputs.case.dropout)))

    def none(inputs: Inputs) -> Outputs:
        return plain(replace(inputs, case=replace(inputs.case, dropout=0.0)))

    def seeded(inputs: Inputs) -> Outputs:
        if inputs.case.dropout:
            torch.manual_seed(0)
        return plain(inputs)

    def unscaled(inputs: Inputs) -> Outputs:
        answer = plain(inputs)
        return replace(answer, out=answer.out * (1.0 - inputs.case.dropout))

    def another_backward(inputs: Inputs) -> Outputs:
        return replace(plain(inputs), dv=plain(inputs).dv)

    assert dropout_reason(plain) == "as expected"
    assert "of the weights" in dropout_reason(rate)
    assert "of the weights" in dropout_reason(none)
    assert "two seeds" in dropout_reason(seeded)
    assert "not 1.111" in dropout_reason(unscaled)
    assert "dv of batch 0" in dropout_reason(another_backward)


def test_an_impostor_is_named() -> None:
    others = (sdpa_flash.BACKEND, sdpa_math.BACKEND)
    for claimed in (
        sdpa_math.BACKEND,
        replace(sdpa_math.BACKEND, name="flash_attention_2", kernel_pattern="flash::flash_fwd"),
    ):
        impostor = replace(claimed, run=sdpa_flash.BACKEND.run)
        verdict = judge_run(ParitySession(impostor, CPU, others).measure(PLAIN))
        assert verdict.answer == "fail"
        assert "ran" in verdict.reason
    stranger = replace(sdpa_flash.BACKEND, run=sdpa_math.BACKEND.run)
    assert "another kernel" in judge_run(ParitySession(stranger, CPU, others).measure(PLAIN)).reason


def test_refusals_keep_torchs_own_reason() -> None:
    run = ParitySession(replace(sdpa_flash.BACKEND, refuse=lambda case, device: ""), CPU).measure(
        replace(PLAIN, dropout=0.5)
    )
    assert run.outcome == "refused"
    assert run.reason


def test_digests_tell_bits_apart() -> None:
    x = torch.randn(1000).to(torch.bfloat16)
    assert digest_bits(x) == digest_bits(x.clone())
    swapped = x.clone()
    swapped[0], swapped[1] = x[1].clone(), x[0].clone()
    assert digest_bits(x) != digest_bits(swapped)
    assert not has_same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    nan = torch.tensor([float("nan")])
    assert has_same_bits(nan, nan.clone())
    assert bit_patterns(x).dtype == torch.int16


def test_repeats_count_what_differs() -> None:
    calls = 0

    def shaky(inputs: Inputs) -> Outputs:
        nonlocal calls
        calls += 1
        answer = run_correct(inputs)
        assert answer.dq is not None
        dq = answer.dq.clone()
        dq[0, 7, 2, 0] += 0.25 * (calls % 4 == 0)
        return replace(answer, dq=dq)

    repeats = Repeater(make_backend(shaky), Device("cpu"), 12).measure(make_case((200,)), "default")
    by_tensor = {difference.tensor: difference for difference in repeats.differences}
    assert by_tensor["out"].distinct == by_tensor["dk"].distinct == 1
    dq = by_tensor["dq"]
    assert (dq.distinct, dq.elements, dq.token, dq.head) == (2, 1, 7, 2)
    assert 0.2 < dq.max_abs < 0.3
    assert repeats.under_load == 6


def test_what_shares_the_batch_is_seen() -> None:
    def crowded(inputs: Inputs) -> Outputs:
        answer = run_correct(inputs)
        return replace(answer, out=answer.out * (1.01 if inputs.case.batch > 1 else 1.0))

    case = make_case((200,))
    repeats = Repeater(make_backend(crowded), Device("cpu"), 2).measure(case, "default")
    assert {difference.tensor for difference in repeats.batch if difference.distinct > 1} == {"out"}
    assert all(
        d.distinct == 1 for d in Repeater(make_backend(run_correct), Device("cpu"), 2).measure(case, "default").batch
    )


MALFORMED: dict[str, tuple[Call, str]] = {
    "no dk": (lambda i: replace(run_correct(i), dk=None), "it returns no dk"),
    "another dtype": (
        lambda i: replace(run_correct(i), out=run_correct(i).out.float()),
        "out is float32, not bfloat16",
    ),
    "another shape": (lambda i: replace(run_correct(i), dv=run_correct(i).out), "dv has the shape"),
    "writes to q": (lambda i: run_correct(replace(i, q=i.q.mul_(1.01))), "it overwrites its input q"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_a_training_job_could_not_use_is_wrong(name: str) -> None:
    run, expected = MALFORMED[name]
    verdict = judge_run(measure_parity(run, PLAIN))
    assert verdict.answer == "fail"
    assert verdict.reason.startswith(expected)


def test_sinks_without_a_gradient_are_wrong_and_a_small_error_in_it_is_seen() -> None:
    case = make_case((300,), sinks=True)

    def run(inputs: Inputs, **changes: object) -> Outputs:
        return replace(eager.BACKEND.run(inputs, False), **changes)  # type: ignore[arg-type]

    def off(inputs: Inputs, times: float) -> Outputs:
        answer = eager.BACKEND.run(inputs, False)
        assert answer.dsinks is not None
        return replace(answer, dsinks=answer.dsinks * times)

    assert judge_run(measure_parity(run, case, noise="eager")).answer == "pass"
    assert "no gradient for the sinks" in judge_run(measure_parity(lambda i: run(i, dsinks=None), case)).reason
    assert judge_run(measure_parity(lambda i: off(i, 1.1), case, noise="eager")).answer == "warn"
    assert judge_run(measure_parity(lambda i: off(i, 1.5), case, noise="eager")).answer == "fail"


def test_what_lies_in_padding_and_in_rows_without_keys_is_nobodys() -> None:
    def careless(inputs: Inputs) -> Outputs:
        answer = sdpa_math.BACKEND.run(inputs, False)
        unseen = ~masks.build_mask(inputs.case, "cpu").any(-1)[:, 0].expand(inputs.case.batch, -1)
        out = answer.out.clone()
        out[unseen] = float("nan")
        return replace(answer, out=out)

    padded = make_case((200, 70), layout="left_padded")
    crossed = with_name(replace(PLAIN, seqlens_q=(300,), seqlens_k=(129,)))
    for case in (padded, crossed):
        assert judge_run(measure_parity(careless, case)).answer == "pass"


def test_nan_in_a_gradients_padding_is_somebodys() -> None:
    def spoilt(inputs: Inputs) -> Outputs:
        answer = sdpa_math.BACKEND.run(inputs, False)
        assert answer.dq is not None
        unseen = ~masks.build_mask(inputs.case, "cpu").any(-1)[:, 0]
        dq = answer.dq.clone()
        dq[unseen] = float("nan")
        return replace(answer, dq=dq)

    case = make_case((64, 40), layout="left_padded", mask="bool")
    assert "NaN or infinite in dq" in judge_run(measure_parity(spoilt, case, takes_mask=True)).reason


def test_deterministic_mode_is_judged_beside_the_default() -> None:
    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        answer = sdpa_math.BACKEND.run(inputs, False)
        assert answer.dk is not None
        return replace(answer, dk=answer.dk * 1.01) if deterministic else answer

    def refuse(inputs: Inputs, deterministic: bool) -> Outputs:
        if deterministic:
            raise RuntimeError("no deterministic kernel")
        return sdpa_math.BACKEND.run(inputs, False)

    backend = replace(sdpa_math.BACKEND, run=run, deterministic_switch="argument")
    verdict = judge_run(ParitySession(backend, CPU).measure(PLAIN))
    assert verdict.answer == "fail"
    assert verdict.reason.startswith("in deterministic mode, dk is 1.0098 times")
    assert judge_run(ParitySession(replace(backend, run=refuse), CPU).measure(PLAIN)).answer == "pass"


def test_one_buffer_for_every_answer_hides_no_leak() -> None:
    buffer: dict[torch.Size, Tensor] = {}

    def leaky(inputs: Inputs) -> Outputs:
        answer = with_shifted_mask(1)(inputs).out
        kept = buffer.setdefault(answer.shape, torch.empty_like(answer))
        kept.copy_(answer)
        return Outputs(kept)

    assert judge_run(measure_parity(leaky, make_case((300,), probe="prefix", backward=False))).answer == "fail"


def test_an_exception_is_told_in_one_printable_line() -> None:
    def raising(inputs: Inputs) -> Outputs:
        raise ValueError("\ud800 bad\x1b[31m\nmore")

    reason = judge_run(measure_parity(raising, PLAIN)).reason
    assert reason.startswith("ValueError: ")
    assert reason.isprintable()
    assert reason.encode()


def test_a_leak_between_documents_is_found_whichever_of_them_is_long() -> None:
    """The documents of one token in a packed row are safe from most leaks: others are watched too."""
    case = next(c for c in make_suite("standard") if c.probe == "poison" and c.family == "packed")

    def leaky(inputs: Inputs) -> Outputs:
        answer = run_correct(inputs)
        out = answer.out.clone()
        first = case.seqlens_q[0]
        out[:, :first] += 1e-3 * inputs.v[:, first : first + 1].repeat_interleave(2, 2)
        return replace(answer, out=out)

    assert judge_run(measure_parity(run_correct, case)).answer == "pass"
    assert "of document 0 changes with other documents" in judge_run(measure_parity(leaky, case)).reason


@pytest.mark.parametrize(
    ("noise", "dtype", "is_judged"),
    [("fused", "bfloat16", True), ("fused", "float32", True), ("eager", "float32", True), ("eager", "bfloat16", False)],
)
def test_an_lse_is_judged_unless_its_scores_are_rounded_to_sixteen_bits(
    noise: str, dtype: str, is_judged: bool
) -> None:
    scores = measure_parity(run_correct, make_case((130,), dtype=dtype), noise=noise).scores
    assert ("lse" in {score.tensor for score in scores}) == is_judged
    assert {score.mode for score in scores} == {"default"}


def test_no_memory_is_no_fault() -> None:
    def greedy(inputs: Inputs) -> Outputs:
        torch.empty(1 << 60, dtype=torch.uint8)
        return run_correct(inputs)

    assert measure_parity(greedy, PLAIN).outcome == "out_of_memory"


@pytest.mark.parametrize(("seconds", "reason"), [(4.7, "about 5 s on this CPU, but only 5 s are allowed"), (4.9, "")])
def test_a_case_that_would_take_too_long_is_skipped(seconds: float, reason: str) -> None:
    case = make_case((20_000,), num_heads=1, num_kv_heads=1, head_dim=128, v_head_dim=128)
    run = ParitySession(sdpa_flash.BACKEND, CPU, seconds=seconds).check_case(case)  # 2e4² scores, 6 ns each for 64
    assert (run.outcome, reason in run.reason) == ("skipped" if reason else "ok", True), run.reason


def test_equal_results_need_not_be_the_same_objects() -> None:
    first = run_correct(make_inputs(make_case((16,)), "cpu"))
    copies = {name: getattr(first, name).clone() for name in ("out", "dq", "dk", "dv")}
    assert has_same_outputs(first, replace(first, **copies))
    assert not has_same_outputs(first, replace(first, **{**copies, "dk": -copies["dk"]}))
    assert not has_same_outputs(first, replace(first, dv=None)) and not has_same_outputs(replace(first, dv=None), first)
