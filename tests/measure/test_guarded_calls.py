"""A backend may not change its inputs, keep state, read unwritten memory, or be wrong in one call of many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attncheck.attention import masks
from attncheck.attention.backend import Backend, Device, Installed, Outputs
from attncheck.attention.backends import eager, sdpa_math
from attncheck.attention.calls.common import compute_gradients, unpad
from attncheck.attention.inputs import Inputs, make_inputs, negate_inputs
from attncheck.core.cases import Case, Probe, with_name
from attncheck.core.verdicts import Run, Verdict, judge_run
from attncheck.measure.determinism import judge_repeats
from attncheck.measure.worker import guarded_calls
from attncheck.measure.worker.repeats import Repeater
from attncheck.measure.worker.session import ParitySession

CPU = Device("cpu", torch=(99, 0))
PLAIN = with_name(Case("test", (65, 65), (65, 65), num_kv_heads=2))
PACKED = with_name(Case("test", (40, 7, 65), (40, 7, 65), layout="packed"))


def measure(run: Callable[[Inputs], Outputs], case: Case) -> tuple[Run, Verdict]:
    backend = Backend(
        "planted", "", "", Installed, lambda case, device: "", lambda inputs, strict: run(inputs), takes_mask=True
    )
    result = ParitySession(backend, CPU).measure(case)
    return result, judge_run(result)


def run_eager(inputs: Inputs) -> Outputs:
    return eager.BACKEND.run(inputs, False)


def run_math(inputs: Inputs) -> Outputs:
    return sdpa_math.BACKEND.run(inputs, False)


def writing(name: str) -> Callable[[Inputs], Outputs]:
    def run(inputs: Inputs) -> Outputs:
        getattr(inputs, name).clamp_(max=0.03)  # what it then computes is right for what it wrote
        return run_eager(inputs)

    return run


@pytest.mark.parametrize("name", ["q", "k", "v", "dout", "sinks", "slopes"])
@pytest.mark.parametrize("copied_bytes", [1 << 30, 0])
def test_an_input_that_is_written_to_is_named(name: str, copied_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_calls, "MAX_COPIED_BYTES", copied_bytes)  # 0: digests are compared
    case = with_name(replace(PLAIN, sinks=name == "sinks", alibi=name == "slopes"))
    run, verdict = measure(writing(name), case)
    assert verdict.answer == "fail" and run.violations == (f"it overwrites its input {name}",)
    assert run.scores == (), "an oracle of what a backend wrote says nothing"
    assert measure(run_eager, case)[1].answer == "pass"


def writing_to_what_it_builds(build: Callable[[Inputs], torch.Tensor]) -> Callable[[Inputs], Outputs]:
    def run(inputs: Inputs) -> Outputs:
        outputs = run_eager(inputs)  # right, so that nothing but the written argument is wrong
        build(inputs)[..., -1:].fill_(1)
        return outputs

    return run


def build_bias(inputs: Inputs) -> torch.Tensor:
    assert inputs.slopes is not None
    return masks.build_alibi_bias(inputs.case, inputs.slopes)


@pytest.mark.parametrize(
    ("name", "build", "fields"),
    [
        ("mask", lambda x: masks.build_mask(x.case, "cpu"), {}),
        ("mask", lambda x: masks.build_mask_tensor(x.case, "cpu", x.q.dtype), {"mask": "additive", "per_head": True}),
        ("cu_seqlens", lambda x: masks.build_cu_seqlens(x.case.seqlens_q, "cpu"), {}),
        ("ALiBi bias", build_bias, {"alibi": True, "layout": "dense"}),
        ("document positions", lambda x: masks.document_positions(x.case, "cpu")[1], {}),
        ("k", lambda x: unpad(x).k, {"layout": "right_padded"}),
    ],
)
@pytest.mark.parametrize("copied_bytes", [1 << 30, 0])
def test_an_argument_made_of_the_inputs_that_is_written_to_is_named(
    name: str,
    build: Callable[[Inputs], torch.Tensor],
    fields: dict[str, Any],
    copied_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarded_calls, "MAX_COPIED_BYTES", copied_bytes)
    case = with_name(replace(PACKED if fields.get("layout") != "dense" else PLAIN, **fields))
    run, verdict = measure(writing_to_what_it_builds(build), case)
    assert verdict.answer == "fail" and run.violations == (f"it overwrites its input {name}",)
    assert measure(run_math, case)[1].answer == "pass"
    assert not masks.watchers


@pytest.mark.parametrize("build", [masks.build_mask, masks.build_mask_bias])
def test_each_call_has_a_mask_of_its_own(build: Callable[[Case, str], torch.Tensor]) -> None:
    case = replace(PACKED, mask="additive")
    first = build(case, "cpu").clone()
    build(case, "cpu").zero_()
    assert torch.equal(build(case, "cpu"), first) and bool(first.any())


def test_gradients_are_those_of_autograd_with_the_strides_of_dout() -> None:
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    dout = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(2)).transpose(0, 1).contiguous().transpose(0, 1)
    seen: list[tuple[int, ...]] = []
    out = torch.tanh(x)
    out.register_hook(lambda gradient: seen.append(gradient.stride()))
    (got,) = compute_gradients(out, (x,), dout)
    assert torch.equal(got, torch.autograd.grad(torch.tanh(x), x, dout)[0]) and seen == [dout.stride()]


def test_probes_and_repeats_see_written_inputs_too() -> None:
    probe = with_name(replace(PACKED, probe="poison"))
    assert measure(writing("v"), probe)[1].reason == "it overwrites its input v"
    backend = Backend("planted", "", "", Installed, lambda case, device: "", lambda x, strict: writing("k")(x))
    assert Repeater(backend, CPU, 3).measure(PLAIN, "default").reason == "it overwrites its input k"


@pytest.mark.parametrize("probe", ["", "poison", "prefix", "dropout"])
def test_a_result_that_the_next_call_overwrites_is_named(probe: Probe) -> None:
    buffers: dict[tuple[object, ...], torch.Tensor] = {}

    def run(inputs: Inputs) -> Outputs:
        outputs = run_eager(inputs)
        kept = buffers.setdefault((outputs.out.shape, outputs.out.dtype), torch.empty_like(outputs.out))
        return replace(outputs, out=kept.copy_(outputs.out))

    layout = PACKED if probe == "poison" else PLAIN
    case = with_name(replace(layout, probe=probe, dropout=0.2 * (probe == "dropout")))
    assert measure(run, case)[1].reason == "it overwrites the out of an earlier call"


def test_a_seed_is_not_set_by_a_call_without_dropout() -> None:
    def seeding(inputs: Inputs) -> Outputs:
        torch.manual_seed(7)
        return run_eager(inputs)

    def drawing(inputs: Inputs) -> Outputs:
        torch.rand(1)
        return run_eager(inputs)

    assert measure(seeding, PLAIN)[1].reason == "it overwrites the seed of torch's random generator"
    assert measure(drawing, PLAIN)[1].answer == "pass"


def test_memory_that_was_never_written_is_not_zero() -> None:
    def run(inputs: Inputs) -> Outputs:
        outputs = run_math(inputs)
        assert outputs.dk is not None
        dk = torch.empty_like(outputs.dk)
        dk[:, :64] = outputs.dk[:, :64]  # the last row is left as it was found
        return replace(outputs, dk=dk)

    verdict = measure(run, PLAIN)[1]
    assert verdict.answer == "fail" and "dk" in verdict.reason
    assert measure(run_math, PLAIN)[1].answer == "pass"


def accumulating() -> Callable[[Inputs], Outputs]:
    kept: list[torch.Tensor] = []

    def run(inputs: Inputs) -> Outputs:
        outputs = run_math(inputs)
        earlier = kept[-1] if kept else torch.zeros_like(outputs.out)
        kept.append(outputs.out.clone())
        return replace(outputs, out=outputs.out + earlier)

    return run


def test_a_kernel_with_state_is_called_that_and_neighbours_are_not_blamed() -> None:
    run, verdict = measure(accumulating(), PLAIN)
    assert verdict.answer == "fail" and verdict.reason.startswith("in call 2, out")
    assert "keeps state" in run.pattern[0]
    for probe in ("poison", "prefix"):
        case = with_name(replace(PACKED if probe == "poison" else PLAIN, probe=probe))
        assert "when the same call is made again" in measure(accumulating(), case)[1].reason


def test_nan_in_every_call_is_no_state() -> None:
    def run(inputs: Inputs) -> Outputs:
        outputs = run_math(inputs)
        assert outputs.dq is not None
        dq = outputs.dq.clone()
        dq[:, 3] = torch.nan
        return replace(outputs, dq=dq)

    run_of_nan, verdict = measure(run, PLAIN)
    assert verdict.answer == "fail" and "keeps state" not in " ".join(run_of_nan.pattern)


@pytest.mark.parametrize("strides", ["contiguous", "transposed", "sliced", "expanded", "scalar_dout", "ctsc", "rtse"])
def test_negated_inputs_give_negated_results(strides: str) -> None:
    inputs = make_inputs(with_name(replace(PLAIN, strides=strides)), "cpu")
    negated = negate_inputs(inputs)
    for name in ("q", "k", "v", "dout"):
        x, opposite = getattr(inputs, name), getattr(negated, name)
        assert torch.equal(x, -opposite)
        assert x.stride() == opposite.stride(), "with others, a backend would compile or plan again"
    first, later = run_math(inputs), run_math(negated)
    assert torch.equal(first.out, -later.out)


def failing_at(call: int) -> Callable[[Inputs, bool], Outputs]:
    count = 0

    def run(inputs: Inputs, strict: bool) -> Outputs:
        nonlocal count
        count += 1
        outputs = run_math(inputs)
        assert outputs.dv is not None
        return replace(outputs, dv=torch.zeros_like(outputs.dv)) if count == call else outputs

    return run


@pytest.mark.parametrize("call", [4, 11])
def test_one_wrong_call_of_many_is_an_error(call: int) -> None:
    case = with_name(replace(PACKED, family="repeats"))
    backend = Backend("race", "", "", Installed, lambda case, device: "", failing_at(call))
    verdict = judge_repeats(Repeater(backend, CPU, repeats=12).measure(case, "default"))
    assert verdict.answer == "fail" and f"in call {call}, dv" in verdict.reason
    backend = Backend("right", "", "", Installed, lambda case, device: "", lambda inputs, strict: run_math(inputs))
    verdict = judge_repeats(Repeater(backend, CPU, repeats=32).measure(case, "default"))
    assert verdict.answer == "pass" and "in more than 9.2 % of calls is excluded" in verdict.reason
