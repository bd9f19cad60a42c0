"""Patterns are named truly, structured probes name the place, dropout is judged, impostors are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Backend, Device, Installed, Outputs
from attncheck.attention.backends import eager, sdpa_flash, sdpa_math
from attncheck.attention.device import device_of
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case, with_name
from attncheck.core.results.verdicts import Run, judge
from attncheck.measure.suites import suite
from attncheck.measure.worker.repeats import Repeater, bits, digest, same_bits
from attncheck.measure.worker.session import Session

CPU = device_of("cpu")
Call = Callable[[Inputs], Outputs]


def a(seqlens: tuple[int, ...], **changes: object) -> Case:
    return with_name(replace(Case("measure", seqlens, seqlens), **changes))  # type: ignore[arg-type]


def backend(run: Call, **changes: object) -> Backend:
    plain = Backend("planted", "", "", Installed, lambda case, device: "", lambda x, strict: run(x), lambda case: ())
    return replace(plain, **changes)  # type: ignore[arg-type]


def measured(run: Call, case: Case, **changes: object) -> Run:
    return Session(backend(run, **changes), CPU).measure(case)


def right(inputs: Inputs) -> Outputs:
    return sdpa_flash.BACKEND.run(inputs, False)


def edited(**changes: Callable[[Tensor], Tensor]) -> Call:
    """Return a backend whose named results are changed."""

    def run(inputs: Inputs) -> Outputs:
        answer = right(inputs)
        results = {name: getattr(answer, name) for name in ("out", "lse", "dq", "dk", "dv")}
        for name, change in changes.items():
            results[name] = change(results[name].clone())
        return Outputs(**results)

    return run


def put(index: tuple[object, ...], value: float) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        x[index] = value  # type: ignore[index]
        return x

    return change


PLAIN = a((300, 300), num_kv_heads=2)
PACKED = a((100, 60, 90), layout="packed", num_kv_heads=2)
PATTERNS: dict[str, tuple[Call, Case, str]] = {
    "a factor": (edited(dq=lambda x: x * 8.0), PLAIN, "dq: 8 times what it should be"),
    "another base": (edited(lse=lambda x: x * 1.4427), PLAIN, "lse is in base 2"),
    "a shift": (edited(lse=lambda x: x + 0.5), PLAIN, "lse is shifted by 0.5 everywhere"),
    "the scale": (lambda i: right(replace(i, q=i.q * 1.03)), PLAIN, "the softmax scale is off by about +3"),
    "swapped heads": (edited(dk=lambda x: x.flip(2)), PLAIN, "dk: head 0 holds head 1's result"),
    "one head": (edited(out=put((..., 2, slice(None)), 0.0)), PLAIN, "out: errors only in head 2 of 4"),
    "one batch row": (edited(out=put((1,), 0.0)), PLAIN, "out: errors only in batch row 1 of 2"),
    "one query": (edited(out=put((slice(None), 211), 0.0)), PLAIN, "out: errors only in query 211"),
    "from a row on": (
        edited(dq=put((slice(None), slice(128, None)), 0.0)),
        PLAIN,
        "dq: errors in every query from 128",
    ),
    "the first rows": (edited(dv=put((slice(None), slice(0, 64)), 0.0)), PLAIN, "dv: errors in the first 64 key rows"),
    "some columns": (
        edited(out=put((..., slice(48, None)), 0.0)),
        PLAIN,
        "out: errors only in head_dim elements 48 to 63",
    ),
    "a document": (edited(out=put((0, slice(100, 160)), 0.0)), PACKED, "out: errors only in document 1 of 3"),
    "boundaries": (edited(out=put((0, [100, 160]), 0.0)), PACKED, "out: errors only on document boundaries"),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_telling_pattern_is_named(name: str) -> None:
    run, case, says = PATTERNS[name]
    found = measured(run, case)
    assert judge(found).answer == "fail"
    assert any(line.startswith(says) for line in found.pattern), found.pattern


def test_the_worst_place_is_found() -> None:
    found = measured(edited(dk=put((1, 123, 1), 9.0)), PLAIN)
    score = next(score for score in found.scores if score.tensor == "dk")
    assert (score.batch, score.token, score.head) == (1, 123, 1)
    found = measured(edited(out=put((0, 130, 3), 9.0)), PACKED)
    score = next(score for score in found.scores if score.tensor == "out")
    assert (score.token, score.head, score.document) == (130, 3, 1)
    far = a((5000,), num_heads=1, num_kv_heads=1, every_row=False)
    found = measured(edited(out=put((0, 4096), 9.0)), far)
    assert next(score for score in found.scores if score.tensor == "out").token == 4096, "a row among the sampled"


def test_nan_is_counted_and_fails_even_in_rows_that_are_not_sampled() -> None:
    far = a((5000,), num_heads=1, num_kv_heads=1, every_row=False)
    found = measured(edited(out=put((0, 777), float("nan"))), far)
    assert judge(found).reason == "64 values are NaN or infinite in out"


def test_a_clean_run_has_no_pattern() -> None:
    found = measured(right, PLAIN)
    assert judge(found).answer == "pass"
    assert found.pattern == ()
    assert all(score.eager_ratio > 0 for score in found.scores if score.tensor != "lse")


def seeing(shift: int) -> Call:
    """Return a backend whose causal mask is moved by `shift` keys."""

    def run(inputs: Inputs) -> Outputs:
        case = inputs.case
        moved = replace(case, causal=False, window_size=(-1, shift))
        answer = sdpa_math.BACKEND.run(replace(inputs, case=moved), False)
        return replace(answer, lse=None)

    return run


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        ("code", "does not sum the"),
        ("retrieve", "which it must not see"),
        ("prefix", "which it must not see"),
    ],
)
def test_a_look_ahead_is_named_by_query_and_key(probe: str, says: str) -> None:
    case = a((300,), probe=probe, backward=False)
    assert judge(measured(seeing(0), case)).answer == "pass"
    verdict = judge(measured(seeing(1), case))
    assert verdict.answer == "fail"
    assert says in verdict.reason


def test_the_count_comes_from_the_lse() -> None:
    case = a((300,), probe="code", backward=False)
    verdict = judge(measured(edited(lse=lambda x: x + 0.02), case))
    assert "keys, not" in verdict.reason


def test_a_wrong_kv_head_is_named() -> None:
    def rolled(inputs: Inputs) -> Outputs:
        return right(replace(inputs, k=inputs.k.roll(1, 2), v=inputs.v.roll(1, 2)))

    verdict = judge(measured(rolled, a((130,), num_heads=8, num_kv_heads=4, probe="heads")))
    assert verdict.reason == "head 0 returns the v of kv head 3, not of 0"


DROPOUT = next(case for case in suite("standard") if case.probe == "dropout")


def dropping(change: Callable[[Inputs], Outputs]) -> str:
    return judge(measured(change, DROPOUT)).reason


def test_dropout_is_judged_by_what_it_keeps() -> None:
    def plain(inputs: Inputs) -> Outputs:
        return eager.BACKEND.run(inputs, False)

    def rate(inputs: Inputs) -> Outputs:
        return plain(replace(inputs, case=replace(inputs.case, dropout=0.12)))

    def none(inputs: Inputs) -> Outputs:
        return plain(replace(inputs, case=replace(inputs.case, dropout=0.0)))

    def seeded(inputs: Inputs) -> Outputs:
        torch.manual_seed(0)
        return plain(inputs)

    def unscaled(inputs: Inputs) -> Outputs:
        answer = plain(inputs)
        return replace(answer, out=answer.out * 0.9)

    def another_backward(inputs: Inputs) -> Outputs:
        return replace(plain(inputs), dv=plain(inputs).dv)

    assert dropping(plain) == "as expected"
    assert "spread" in dropping(rate)
    assert "spread" in dropping(none)
    assert "two seeds" in dropping(seeded)
    assert "keeps a share" in dropping(unscaled)
    assert "backward drops other keys" in dropping(another_backward)


def test_an_impostor_is_named() -> None:
    others = (sdpa_flash.BACKEND, sdpa_math.BACKEND)
    for claimed in (
        sdpa_math.BACKEND,
        replace(sdpa_math.BACKEND, name="flash_attention_2", kernel_pattern="flash::flash_fwd"),
    ):
        liar = replace(claimed, run=sdpa_flash.BACKEND.run)
        verdict = judge(Session(liar, CPU, others).measure(PLAIN))
        assert verdict.answer == "fail"
        assert "ran" in verdict.reason
    stranger = replace(sdpa_flash.BACKEND, run=sdpa_math.BACKEND.run)
    assert "something else" in judge(Session(stranger, CPU, others).measure(PLAIN)).reason


def test_refusals_keep_torchs_own_reason() -> None:
    found = Session(replace(sdpa_flash.BACKEND, refuse=lambda case, device: ""), CPU).measure(
        replace(PLAIN, dropout=0.5)
    )
    assert found.outcome == "refused"
    assert found.reason


def test_digests_tell_bits_apart() -> None:
    x = torch.randn(1000).to(torch.bfloat16)
    assert digest(x) == digest(x.clone())
    swapped = x.clone()
    swapped[0], swapped[1] = x[1].clone(), x[0].clone()
    assert digest(x) != digest(swapped)
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    nan = torch.tensor([float("nan")])
    assert same_bits(nan, nan.clone())
    assert bits(x).dtype == torch.int16


def test_repeats_count_what_differs() -> None:
    calls = 0

    def shaky(inputs: Inputs) -> Outputs:
        nonlocal calls
        calls += 1
        answer = right(inputs)
        assert answer.dq is not None
        dq = answer.dq.clone()
        dq[0, 7, 2, 0] += 0.25 * (calls % 4 == 0)
        return replace(answer, dq=dq)

    found = Repeater(backend(shaky), Device("cpu"), 12).measure(a((200,)), "default")
    by_tensor = {difference.tensor: difference for difference in found.differences}
    assert by_tensor["out"].distinct == by_tensor["dk"].distinct == 1
    dq = by_tensor["dq"]
    assert (dq.distinct, dq.elements, dq.token, dq.head) == (2, 1, 7, 2)
    assert 0.2 < dq.max_abs < 0.3
    assert found.under_load == 6


def test_what_shares_the_batch_is_seen() -> None:
    def crowded(inputs: Inputs) -> Outputs:
        answer = right(inputs)
        return replace(answer, out=answer.out * (1.01 if inputs.case.batch > 1 else 1.0))

    case = a((200,))
    loose = Repeater(backend(crowded), Device("cpu"), 2).measure(case, "default")
    assert {difference.tensor for difference in loose.batch if difference.distinct > 1} == {"out"}
    assert all(d.distinct == 1 for d in Repeater(backend(right), Device("cpu"), 2).measure(case, "default").batch)


MALFORMED: dict[str, tuple[Call, str]] = {
    "no dk": (lambda i: replace(right(i), dk=None), "it returns no dk"),
    "another dtype": (lambda i: replace(right(i), out=right(i).out.float()), "out is float32, not bfloat16"),
    "another shape": (lambda i: replace(right(i), dv=right(i).out), "dv has the shape"),
    "writes to q": (lambda i: right(replace(i, q=i.q.mul_(1.01))), "it writes to its input q"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_a_training_job_could_not_use_is_wrong(name: str) -> None:
    run, says = MALFORMED[name]
    verdict = judge(measured(run, PLAIN))
    assert verdict.answer == "fail"
    assert verdict.reason.startswith(says)


def test_sinks_without_a_gradient_are_wrong_and_a_small_error_in_it_is_seen() -> None:
    case = a((300,), sinks=True)

    def run(inputs: Inputs, **changes: object) -> Outputs:
        return replace(eager.BACKEND.run(inputs, False), **changes)  # type: ignore[arg-type]

    def off(inputs: Inputs, times: float) -> Outputs:
        answer = eager.BACKEND.run(inputs, False)
        assert answer.dsinks is not None
        return replace(answer, dsinks=answer.dsinks * times)

    assert judge(measured(run, case, noise="eager")).answer == "pass"
    assert "no gradient for the sinks" in judge(measured(lambda i: run(i, dsinks=None), case)).reason
    assert judge(measured(lambda i: off(i, 1.1), case, noise="eager")).answer == "warn"
    assert judge(measured(lambda i: off(i, 1.5), case, noise="eager")).answer == "fail"


def test_what_lies_in_padding_and_in_rows_without_keys_is_nobodys() -> None:
    def careless(inputs: Inputs) -> Outputs:
        answer = sdpa_math.BACKEND.run(inputs, False)
        unseen = ~masks.whole(inputs.case, "cpu").any(-1)[:, 0].expand(inputs.case.batch, -1)
        out = answer.out.clone()
        out[unseen] = float("nan")
        return replace(answer, out=out)

    padded = a((200, 70), layout="left_padded")
    crossed = with_name(replace(PLAIN, seqlens_q=(300,), seqlens_k=(129,)))
    for case in (padded, crossed):
        assert judge(measured(careless, case)).answer == "pass"


def test_one_buffer_for_every_answer_hides_no_leak() -> None:
    buffer: dict[torch.Size, Tensor] = {}

    def leaky(inputs: Inputs) -> Outputs:
        answer = seeing(1)(inputs).out
        kept = buffer.setdefault(answer.shape, torch.empty_like(answer))
        kept.copy_(answer)
        return Outputs(kept)

    assert judge(measured(leaky, a((300,), probe="prefix", backward=False))).answer == "fail"


def test_an_exception_is_told_in_one_printable_line() -> None:
    def raising(inputs: Inputs) -> Outputs:
        raise ValueError("\ud800 bad\x1b[31m\nmore")

    because = judge(measured(raising, PLAIN)).reason
    assert because.startswith("ValueError: ")
    assert because.isprintable()
    assert because.encode()


def test_a_leak_between_documents_is_found_whichever_of_them_is_long() -> None:
    """The documents of one token in a packed row are safe from most leaks: others are watched too."""
    case = next(c for c in suite("standard") if c.probe == "poison" and c.layout == "packed")

    def leaky(inputs: Inputs) -> Outputs:
        answer = right(inputs)
        out = answer.out.clone()
        first = case.seqlens_q[0]
        out[:, :first] += 1e-3 * inputs.v[:, first : first + 1].repeat_interleave(2, 2)
        return replace(answer, out=out)

    assert judge(measured(right, case)).answer == "pass"
    assert "of document 0 changes with other documents" in judge(measured(leaky, case)).reason


def test_no_memory_is_no_fault() -> None:
    def greedy(inputs: Inputs) -> Outputs:
        torch.empty(1 << 60, dtype=torch.uint8)
        return right(inputs)

    assert measured(greedy, PLAIN).outcome == "out_of_memory"
