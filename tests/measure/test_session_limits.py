"""What a session decides, on either side of each limit: which cases run, which calls are made, which numbers count."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.attention import memory
from attncheck.attention.backend import Backend, Device, Installed, Outputs, Refused
from attncheck.attention.backends import eager
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.core.cases import Case, with_name
from attncheck.core.verdicts import Run, Score, judge_run
from attncheck.measure.worker import judging
from attncheck.measure.worker import session as module
from attncheck.measure.worker.guarded_calls import DIRT
from attncheck.measure.worker.judging import SharedResults
from attncheck.measure.worker.session import ParitySession, find_malformed_outputs, has_same_outputs, negate_outputs

CPU, CUDA = Device("cpu"), Device("cuda")
CASE = with_name(Case("limits", (9, 5), (9, 5), layout="packed", num_kv_heads=2, head_dim=16, v_head_dim=8))
FORWARD = replace(CASE, backward=False)
SINKS = replace(CASE, sinks=True)
Edit = Callable[[Outputs], Outputs]


class Calls:
    """A right backend's run that remembers its calls, and changes what some of them return."""

    def __init__(self, edit: Callable[[Outputs, Calls], Outputs] = lambda outputs, calls: outputs) -> None:
        self.made: list[tuple[Inputs, bool]] = []
        self.edit = edit

    def __call__(self, inputs: Inputs, deterministic: bool) -> Outputs:
        self.made.append((inputs, deterministic))
        return self.edit(eager.BACKEND.run(inputs, False), self)

    def list_kinds(self) -> list[str]:
        """Return each call as "decoy", "first", "again" or "negated", and "strict" in deterministic mode."""
        first = next((inputs.q for inputs, _ in self.made if inputs.case == CASE), torch.zeros(()))
        kinds = []
        for inputs, strict in self.made:
            kind = "decoy" if inputs.case != CASE else "negated" if torch.equal(inputs.q, -first) else "call"
            kinds.append(f"strict {kind}" if strict else kind)
        return kinds


def make_backend(run: Callable[[Inputs, bool], Outputs], **changes: object) -> Backend:
    plain = Backend("planted", "", "", Installed, lambda case, device: "", run, noise="eager", takes_mask=True)
    return replace(plain, **changes)  # type: ignore[arg-type]


def make_session(run: Callable[[Inputs, bool], Outputs], device: Device = CPU, **changes: Any) -> ParitySession:
    return ParitySession(make_backend(run, **changes), device)


def double_dk(outputs: Outputs) -> Outputs:
    assert outputs.dk is not None
    return replace(outputs, dk=2.0 * outputs.dk)


def fail_at(*calls: int) -> Callable[[Outputs, Calls], Outputs]:
    """Return an edit that doubles dk in the calls of these numbers."""
    return lambda outputs, made: double_dk(outputs) if len(made.made) - 1 in calls else outputs


# --- outputs ---


@pytest.mark.parametrize(
    ("case", "changes", "expected"),
    [
        (CASE, {}, ()),
        (CASE, {"lse": None}, ()),
        (CASE, {"dq": None, "dv": None}, ("it returns no dq", "it returns no dv")),
        (FORWARD, {"dq": None, "dk": None, "dv": None}, ()),
        (CASE, {"lse": torch.zeros(1, 14, 4)}, ("lse has the shape (1, 14, 4), not (1, 4, 14)",)),
        (CASE, {"out": torch.zeros(1, 14, 4, 16)}, ("out has the shape (1, 14, 4, 16), not (1, 14, 4, 8)",)),
        (CASE, {"dk": torch.zeros(1, 14, 2, 16)}, ("dk is float32, not bfloat16",)),
        (SINKS, {"dsinks": torch.zeros(4)}, ()),
        (SINKS, {}, ("it returns no gradient for the sinks, so they would never be trained",)),
        (replace(SINKS, backward=False), {}, ()),
    ],
)
def test_what_a_backend_must_return(case: Case, changes: dict[str, Any], expected: tuple[str, ...]) -> None:
    inputs = make_inputs(case, "cpu")
    right = Outputs(inputs.dout, torch.zeros(1, 4, 14), inputs.q, inputs.k, inputs.v)
    assert find_malformed_outputs(inputs, replace(right, **changes)) == expected


def test_the_same_numbers_and_their_negatives() -> None:
    x = torch.tensor([1.0, -0.0])
    outputs = Outputs(x, x, x, x, x, x)
    for name in ("out", "lse", "dq", "dk", "dv", "dsinks"):
        assert has_same_outputs(outputs, replace(outputs, **{name: x + 0.0}))  # type: ignore[arg-type]
        assert not has_same_outputs(outputs, replace(outputs, **{name: x + 1.0}))  # type: ignore[arg-type]
    negated = negate_outputs(replace(outputs, dv=None))
    assert [float(y[0]) for y in (negated.out, negated.dq, negated.dk) if y is not None] == [-1.0, -1.0, -1.0]
    assert negated.dv is None and negated.lse is x and negated.dsinks is x


@pytest.mark.parametrize("text", ["CUDA error: x", "cudaErrorLaunchFailure", "device-side assert"])
def test_an_error_that_leaves_no_device(text: str) -> None:
    assert module.is_fatal(Run("planted", CASE, "raised", text))
    assert not module.is_fatal(Run("planted", CASE, "refused", text))
    assert not module.is_fatal(Run("planted", CASE, "raised", "ValueError: x"))


# --- which cases run ---


def test_a_case_that_fills_the_memory_runs_and_a_larger_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    session = make_session(Calls())
    size = memory.estimate_bytes(CASE, "cpu", session.backend)
    for free, outcome in ((size, "ok"), (size - 1, "skipped")):
        monkeypatch.setattr(memory, "free_bytes", lambda kind, free=free: free)
        assert session.check_case(CASE).outcome == session.measure(CASE).outcome == outcome


def test_a_case_that_takes_just_as_long_as_allowed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASE, head_dim=128)
    seconds = 6e-9 * 4 * 14 * 14 * 128 / 64
    for allowed, outcome in ((seconds, "ok"), (0.999 * seconds, "skipped")):
        assert ParitySession(make_backend(Calls()), CPU, seconds=allowed).check_case(case).outcome == outcome
    monkeypatch.setattr(memory, "free_bytes", lambda kind: 1 << 40)
    assert ParitySession(make_backend(Calls()), CUDA, seconds=0.0).check_case(case).outcome == "ok"


@pytest.mark.parametrize(("more", "device", "every_row"), [(0, CPU, True), (1, CPU, False), (1, CUDA, True)])
def test_rows_are_sampled_beyond_a_size_on_a_cpu(
    more: int, device: Device, every_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda kind: 1 << 50)
    lengths = (1 << 13, 1 << 13, *[1] * more)
    case = replace(CASE, seqlens_q=lengths, seqlens_k=lengths, num_heads=1, num_kv_heads=1)
    assert case.cells == (1 << 27) + more
    assert make_session(Calls(), device).check_case(case).case.every_row == every_row


def test_a_refusal_that_raises_is_an_error_and_an_empty_run_has_the_backends_factor() -> None:
    def refuse(case: Case, device: Device) -> str:
        raise ValueError("no luck")

    run = make_session(Calls(), refuse=refuse, class_factor=lambda case: 1.5).check_case(CASE)
    assert (run.outcome, run.reason, run.class_factor) == ("raised", "ValueError: no luck", 1.5)
    calls = Calls()
    assert make_session(calls, refuse=lambda case, device: "never").measure(CASE).reason == "never"
    assert not calls.made


def test_memory_is_released_after_a_case_of_more_than_4_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[str] = []
    monkeypatch.setattr(memory, "release_cached_memory", released.append)
    session = make_session(Calls())
    for size, count in ((4 << 30, 0), ((4 << 30) + 1, 1)):
        session.run_case(Run("planted", CASE, "ok", memory_bytes=size))
        assert released == ["cpu"] * count


def test_compiling_calls_the_backend_once_unless_it_refuses() -> None:
    def raise_error(outputs: Outputs, calls: Calls) -> Outputs:
        raise RuntimeError("no")

    for edit in (lambda outputs, calls: outputs, raise_error):
        calls = Calls(edit)
        make_session(calls).compile(CASE)
        assert [(inputs.case, strict) for inputs, strict in calls.made] == [(CASE, False)]
    calls = Calls()
    make_session(calls, refuse=lambda case, device: "no").compile(CASE)
    assert not calls.made


# --- which calls are made ---


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ["decoy", "call", "strict negated"]),
        ({"deterministic_switch": "argument"}, ["decoy", "call", "strict call", "negated"]),
        ({"compiles": True}, ["call", "negated"]),
        ({"plans": True}, ["call", "strict negated"]),
        ({"sharding": "contiguous", "deterministic_switch": "argument"}, ["call"]),
        ({"refuse": lambda case, device: "" if case.backward else "no"}, ["call", "strict negated"]),
    ],
)
def test_the_calls_of_a_right_backend(changes: dict[str, Any], kinds: list[str]) -> None:
    calls = Calls()
    run = make_session(calls, **changes).measure(CASE)
    assert calls.list_kinds() == kinds
    assert run.outcome == "ok" and not run.pattern
    modes = ["default", "deterministic"] if "strict call" in kinds else ["default"]
    assert list(dict.fromkeys(score.mode for score in run.scores)) == modes
    assert {score.call for score in run.scores} == {1}


def test_a_forward_pass_alone_is_judged_in_deterministic_mode_too() -> None:
    calls = Calls()
    make_session(calls, deterministic_switch="argument").measure(FORWARD)
    assert [strict for _, strict in calls.made] == [False, False, True, False]


def test_a_decoy_differs_from_the_case_and_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = replace(CASE, seqlens_q=(7, 7), seqlens_k=(7, 7))
    for case, limit, count in ((equal, equal.cells, 2), (CASE, CASE.cells, 3), (CASE, CASE.cells - 1, 2)):
        monkeypatch.setattr(module, "MAX_CELLS", limit)
        calls = Calls()
        assert make_session(calls).measure(case).outcome == "ok"
        assert len(calls.made) == count

    def raise_first(outputs: Outputs, calls: Calls) -> Outputs:
        if len(calls.made) == 1:
            raise ValueError("only in the decoy")
        return outputs

    monkeypatch.setattr(module, "MAX_CELLS", CASE.cells)
    assert make_session(Calls(raise_first)).measure(CASE).outcome == "ok"


def test_ranks_that_do_not_judge_make_one_call() -> None:
    calls = Calls()
    run = ParitySession(make_backend(calls, plans=True), CPU, judges=False).measure(CASE)
    assert (calls.list_kinds(), run.scores, run.outcome) == (["call"], (), "ok")


def test_what_another_backend_wrote_to_is_forgotten() -> None:
    def write(inputs: Inputs, deterministic: bool) -> Outputs:
        outputs = eager.BACKEND.run(inputs, False)
        inputs.k.add_(1.0)
        return outputs

    shared = SharedResults()
    run = ParitySession(make_backend(write, plans=True), CPU, shared=shared).measure(CASE)
    assert run.violations == ("it overwrites its input k",)
    assert ParitySession(make_backend(Calls()), CPU, shared=shared).measure(CASE).pattern == ()
    assert torch.equal(shared.inputs_of(CASE, "cpu").k, make_inputs(CASE, "cpu").k)


# --- which numbers count ---


def test_a_result_at_its_budget_is_right() -> None:
    session = make_session(Calls(), class_factor=lambda case: 1.5)
    for z_rms, wrong in ((3.0, ()), (3.01, ("dq",))):
        assert session._list_wrong(CASE, (Score("dq", z_rms, 1.0, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, 0),)) == wrong


@pytest.mark.parametrize(
    ("wrong", "scored", "causes"),
    [
        ((), [("default", 1), ("deterministic", 1)], []),
        ((1,), [("default", 1), ("deterministic", 1)], []),  # what the same call does not repeat is state
        ((2,), [("default", 1), ("deterministic", 1)], []),
        ((3,), [("default", 1), ("deterministic", 1), ("default", 2)], []),
        (range(99), [("default", 1), ("deterministic", 1)], [False]),
    ],
)
def test_each_wrong_call_is_scored_and_its_mode_is_searched_for_a_cause(
    wrong: range | tuple[int, ...], scored: list[tuple[str, int]], causes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[bool] = []

    def describe_cause(case: Case, is_right: Any, is_gross: bool) -> tuple[Case, tuple[str, ...]]:
        searched.append(is_right.keywords["deterministic"])
        return case, ("the cause",)

    monkeypatch.setattr(module, "describe_cause", describe_cause)
    monkeypatch.setattr(module, "describe_state", lambda *arguments: "")
    run = make_session(Calls(fail_at(*wrong)), deterministic_switch="argument").measure(CASE)
    assert list(dict.fromkeys((score.mode, score.call) for score in run.scores)) == scored
    assert searched == causes
    has_state = tuple(wrong) in ((1,), (2,))
    assert ("the cause" in run.pattern[:2]) == (bool(causes) and not has_state)
    assert any(line.startswith("dk: ") and "times" in line for line in run.pattern) == (tuple(wrong) not in ((), (3,)))
    assert any("keeps state" in line for line in run.pattern[:1]) == has_state


@pytest.mark.parametrize(
    ("changes", "judges", "count"),
    [({}, True, 3), ({"plans": True}, True, 1), ({"compiles": True}, True, 0), ({"sharding": "zigzag"}, True, 0)],
)
def test_causes_are_searched_for_the_first_wrong_cases(
    changes: dict[str, Any], judges: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[bool] = []

    def describe_cause(case: Case, is_right: Any, is_gross: bool) -> tuple[Case, tuple[str, ...]]:
        searched.append(is_right.keywords["deterministic"])
        return case, ()

    monkeypatch.setattr(module, "describe_cause", describe_cause)
    monkeypatch.setattr(module, "describe_state", lambda *arguments: "")
    monkeypatch.setattr(module, "describe_patterns", lambda *arguments: ())
    session = make_session(Calls(fail_at(*range(99))), **changes)
    for _ in range(5):
        session.measure(CASE)
    assert searched == [False] * count


@pytest.mark.parametrize(
    ("probe", "dropout", "is_wrong", "reduced"),
    [
        ("code", 0.0, lambda case: True, ""),  # usual inputs show the error too
        ("code", 0.0, lambda case: bool(case.probe), "code"),
        ("dropout", 0.5, lambda case: True, "dropout"),
    ],
)
def test_a_case_of_a_probe_is_reduced_with_usual_inputs_if_they_show_the_error(
    probe: str, dropout: float, is_wrong: Callable[[Case], bool], reduced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []

    def describe_cause(case: Case, is_right: Any, is_gross: bool) -> tuple[Case, tuple[str, ...]]:
        searched.append(case.probe)
        return case, ()

    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        outputs = eager.BACKEND.run(inputs, False)
        return replace(outputs, out=-3.0 * outputs.out) if is_wrong(inputs.case) else outputs

    monkeypatch.setattr(module, "describe_cause", describe_cause)
    monkeypatch.setattr(module, "describe_state", lambda *arguments: "")
    case = replace(CASE, probe=probe, dropout=dropout, backward=False, head_dim=32, v_head_dim=32)  # type: ignore[arg-type]
    make_session(run)._describe_cause(case, False, True)
    assert searched == [reduced]


def test_one_line_on_state_replaces_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([(), ("one", "two")])
    monkeypatch.setattr(module, "find_state", lambda *arguments: next(found))
    monkeypatch.setattr(module, "describe_cause", lambda case, *arguments: (case, ("the cause",)))
    monkeypatch.setattr(module, "describe_state", lambda *arguments: "")
    run = make_session(Calls(fail_at(*range(99)))).measure(CASE)
    assert run.pattern[0] == "one" and not {"two", "the cause"} & set(run.pattern)


def test_a_later_call_counts_if_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_dk(outputs: Outputs, calls: Calls) -> Outputs:
        return replace(outputs, dk=None) if len(calls.made) == 3 else outputs

    def nudge(outputs: Outputs, calls: Calls) -> Outputs:
        outputs.out[0, 0, 0, 0] *= 1.0 + 2.0**-7 * (len(calls.made) == 3)
        return outputs

    judged: list[Outputs] = []
    score = judging.score_backend

    def count_scores(backend: Backend, outputs: Outputs, *arguments: Any) -> tuple[Score, ...]:
        judged.append(outputs)
        return score(backend, outputs, *arguments)

    monkeypatch.setattr(module, "score_backend", count_scores)
    run = make_session(Calls(lose_dk)).measure(CASE)
    assert run.violations == ("in a later call, it returns no dk",) and judge_run(run).answer == "fail"
    for edit, count in ((nudge, 2), (lambda outputs, calls: outputs, 1)):  # the same is not judged twice
        judged.clear()
        assert {score.call for score in make_session(Calls(edit)).measure(CASE).scores} == {1}
        assert len(judged) == count
    monkeypatch.setattr(module, "find_state", lambda *arguments: ("one", "two"))
    run = make_session(Calls(fail_at(*range(2, 99)))).measure(CASE)
    assert [line for line in run.pattern if line in ("one", "two")] == ["one"]
    assert [score.tensor for score in run.scores if score.call == 2] == ["out", "dq", "dk", "dv"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        *((Refused("x"), "ok"), (RuntimeError("x"), "ok"), (NotImplementedError("x"), "ok"), (ValueError("x"), "ok")),
        *((KeyError("x"), "raised"), (RuntimeError("CUDA error: x"), "raised")),
    ],
)
def test_a_deterministic_mode_may_refuse_but_not_break(error: Exception, outcome: str) -> None:
    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        if deterministic:
            raise error
        return eager.BACKEND.run(inputs, False)

    result = make_session(run, deterministic_switch="argument").measure(CASE)
    assert result.outcome == outcome
    assert {score.mode for score in result.scores} <= {"default"}


@pytest.mark.parametrize(
    ("switch", "error", "outcome"),
    [
        ("", ValueError("x"), "ok"),  # torch's deterministic mode, which the backend does not declare, may be refused
        ("", RuntimeError("CUDA error: x"), "raised"),
        ("argument", ValueError("x"), "raised"),
    ],
)
def test_a_later_call_that_raises_once(switch: str, error: Exception, outcome: str) -> None:
    def fail_once(outputs: Outputs, calls: Calls) -> Outputs:
        negated = [kind.endswith("negated") for kind in calls.list_kinds()]
        if negated[-1] and sum(negated) == 1:
            raise error
        return outputs

    assert make_session(Calls(fail_once), deterministic_switch=switch).measure(CASE).outcome == outcome


def test_a_deterministic_mode_without_a_gradient_is_a_violation() -> None:
    run = make_session(
        Calls(lambda outputs, calls: replace(outputs, dk=None) if calls.made[-1][1] else outputs),
        deterministic_switch="argument",
    ).measure(CASE)
    assert run.violations == ("in deterministic mode, it returns no dk",)


def test_a_simpler_case_is_right_if_it_runs_and_its_results_are() -> None:
    calls = Calls()
    assert make_session(calls)._is_right(CASE, True) and calls.made[0][1] is True
    assert make_session(Calls(fail_at(0)))._is_right(CASE, False) is False
    assert make_session(Calls(), refuse=lambda case, device: "no")._is_right(CASE, False) is None
    assert make_session(Calls(lambda outputs, made: replace(outputs, dk=None)))._is_right(CASE, False) is None
    for text, is_fatal in (("no luck", False), ("CUDA error: x", True)):

        def raise_error(outputs: Outputs, calls: Calls, text: str = text) -> Outputs:
            raise RuntimeError(text)

        session = make_session(Calls(raise_error))
        if is_fatal:
            with pytest.raises(RuntimeError):
                session._is_right(CASE, False)
        else:
            assert session._is_right(CASE, False) is None


@pytest.mark.parametrize(("switch", "deterministic"), list(itertools.product(("", "argument"), (False, True))))
def test_torchs_mode_is_on_for_a_backend_without_one_of_its_own(switch: str, deterministic: bool) -> None:
    modes: list[bool] = []

    def note(outputs: Outputs, calls: Calls) -> Outputs:
        modes.append(torch.are_deterministic_algorithms_enabled())
        return outputs

    make_session(Calls(note), deterministic_switch=switch)._is_right(CASE, deterministic)
    assert modes == [deterministic and not switch]


def test_a_simpler_case_that_gives_no_results_explains_nothing() -> None:
    assert len(list(make_session(Calls())._call_again(CASE, False))) == 1
    assert not list(make_session(Calls(), refuse=lambda case, device: "no")._call_again(CASE, False))
    assert not list(make_session(Calls(lambda x, made: replace(x, dk=None)))._call_again(CASE, False))


# --- traces, times, yardstick ---


def count_traces(session: ParitySession, *cases: Case, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of traces after each call on each case, two a case; the inputs do not matter."""
    traced: list[str] = []

    def trace(call: Callable[[], Outputs], kind: str) -> tuple[Outputs, tuple[str, ...]]:
        traced.append(kind)
        return call(), ("a kernel",)

    monkeypatch.setattr(module, "trace_kernels", trace)
    counts = []
    for case in cases:
        call = session._make_call(case)
        for _ in range(2):
            call(make_inputs(case, "cpu"), False)
            counts.append(len(traced))
    assert set(traced) <= {session.device.kind}
    return counts


@pytest.mark.parametrize(
    ("change", "on_cpu", "on_cuda"),
    [
        ({}, 1, 1),
        ({"dtype": "float32"}, 2, 2),
        ({"layout": "dense"}, 2, 2),
        ({"backward": False}, 2, 2),
        ({"alibi": True}, 2, 2),
        ({"head_dim": 32}, 1, 2),
        ({"num_kv_heads": 4}, 1, 2),
        ({"num_kv_heads": 4, "num_heads": 8}, 1, 1),
    ],
)
def test_each_kind_of_case_is_traced_once(
    change: dict[str, object], on_cpu: int, on_cuda: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device, count in ((CPU, on_cpu), (CUDA, on_cuda)):
        session = make_session(Calls(), device)
        other = replace(CASE, **change)  # type: ignore[arg-type]
        assert count_traces(session, CASE, other, monkeypatch=monkeypatch) == [1, 1, count, count]


def test_what_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    untraced = ParitySession(make_backend(calls), CPU, traces_kernels=False)
    assert count_traces(untraced, CASE, monkeypatch=monkeypatch) == [0, 0]
    assert [strict for _, strict in calls.made] == [False, False]
    for device, count, calls_made in ((CPU, 0, 2), (CUDA, 1, 3)):  # on a GPU it is compiled before it is traced
        calls = Calls()
        session = make_session(calls, device, compiles=True)
        assert count_traces(session, CASE, monkeypatch=monkeypatch) == [count, count]
        assert [strict for _, strict in calls.made] == [False] * calls_made


def test_a_kernel_that_is_missing_from_a_trace_is_proof_and_from_a_graph_is_not() -> None:
    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        return replace(eager.BACKEND.run(inputs, False), operators=("Node",))

    backend = make_backend(run, kernel_pattern="no_such_kernel")
    for traces, foreign in ((True, "another kernel (aten"), (False, "")):
        result = ParitySession(backend, CPU, traces_kernels=traces).measure(CASE)
        assert result.foreign_kernels[:20] == foreign
        assert ("Node" in result.kernels) == (not traces)


def test_calls_are_timed_and_find_other_dirt_each(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, dirt = itertools.count(0, 2), []
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(module, "fill_free_memory", lambda inputs, pattern: dirt.append(pattern))
    run = make_session(Calls()).measure(CASE)
    assert (run.call_ms, run.oracle_ms) == (4e3, 6e3), "the later call's time is in both"
    assert dirt == [DIRT[0], DIRT[1]]
    probe = make_session(Calls()).measure(replace(CASE, probe="code"))
    assert (probe.call_ms, probe.kernels != ()) == (2e3, True)
    malformed = make_session(Calls(lambda outputs, made: replace(outputs, dk=None))).measure(CASE)
    assert (malformed.call_ms, malformed.violations) == (2e3, ("it returns no dk",))


@pytest.mark.parametrize(("device", "count"), [(CPU, 0), (CUDA, 1)])
def test_a_gpu_is_waited_for(device: Device, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[None] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(None))
    inputs, session = make_inputs(CASE, "cpu"), make_session(Calls(), device, deterministic_switch="argument")
    assert session._run_deterministic(inputs) is not None and len(waits) == count
    module._TimedCall(lambda inputs, deterministic: (eager.BACKEND.run(inputs, deterministic), ()), device.kind)(inputs)
    assert len(waits) == 2 * count


@pytest.mark.parametrize(
    ("device", "lengths", "free", "runs"),
    [
        (CPU, (512, 512), 1 << 50, True),
        (CPU, (512, 513), 1 << 50, False),
        (CUDA, (8192, 8192), 1 << 50, True),
        (CUDA, (8192, 8193), 1 << 50, False),
        (CPU, (512, 512), 4, False),
        (CPU, (512, 512), 5, True),
    ],
)
def test_eager_is_the_yardstick_of_cases_that_it_can_hold(
    device: Device, lengths: tuple[int, int], free: int, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(CASE, seqlens_q=lengths[:1], seqlens_k=lengths[1:], layout="dense")
    needed = int(eager.BACKEND.bytes_per_score * case.scores)
    monkeypatch.setattr(memory, "free_bytes", lambda kind: free * needed if free < 99 else free)
    session, outputs = make_session(Calls(), device), Outputs(torch.zeros(1))
    shared: Any = SimpleNamespace(eager_outputs=lambda inputs: outputs, keep_eager=lambda outputs: kept.append(outputs))
    kept: list[Outputs] = []
    inputs: Any = SimpleNamespace(case=case)
    assert session._run_yardstick(inputs, outputs, shared) is (outputs if runs else None)
    dropout: Any = SimpleNamespace(case=replace(case, dropout=0.1))
    assert session._run_yardstick(dropout, outputs, shared) is None
    assert ParitySession(eager.BACKEND, device)._run_yardstick(inputs, outputs, shared) is None
    assert kept == ([outputs] if runs else [])
