"""What determinism repeats, counts and concludes, on either side of each limit; workers are imitated by events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.facts import Absent, Known
from attncheck.core.io.errors import Unanswered
from attncheck.core.report import Finding, InterruptedRun
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.verdicts import BackendState, Difference, MeasuredOn, Mode, Outcome, Repeats, Score
from attncheck.measure import determinism
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job
from tests.snapshots import laptop, with_model

CASE = with_name(Case("repeats", (512,), (512,)))
OTHER = with_name(replace(CASE, layout="packed", seqlens_q=(12, 500), seqlens_k=(12, 500)))
SAME = (Difference("out", 1, 0, 0.0, 0, 1000), Difference("dq", 1, 0, 0.0, 0, 1000))
VARYING = (SAME[0], Difference("dq", 2, 4, 0.001, 30, 1000, 7, 1))
PLAIN = Repeats("sdpa_flash", CASE, "default", "ok", repeats=32, under_load=16, differences=SAME)
STRICT = replace(PLAIN, mode="deterministic", deterministic_switch="strict=True")
WARNING = replace(PLAIN, mode="warn_only", deterministic_switch="warn_only=True")
VARIES = replace(PLAIN, differences=VARYING)
STATES = tuple(BackendState(name, name, "torch") for name in ("sdpa_math", "sdpa_flash", "flex_attention"))


def score(z_rms: float) -> Score:
    return Score("dq", z_rms, 1.0, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, 0)


def find(*repeats: Repeats) -> tuple[Finding, ...]:
    return determinism.make_report(laptop(), STATES, repeats, MeasuredOn("cuda")).findings


def codes(*repeats: Repeats) -> list[str]:
    return [finding.code for finding in find(*repeats)]


# --- which cases ---


def shape(case: Case) -> tuple[int, int, int, int, bool]:
    return case.num_heads, case.num_kv_heads, case.head_dim, case.v_head_dim, case.causal


def test_the_usual_cases() -> None:
    dense, packed = determinism.choose_cases(laptop(), 3, False)
    assert (dense.seqlens_q, packed.seqlens_q) == ((512,) * 4, (150, 250, 50, 62))
    assert shape(dense) == shape(packed) == (4, 2, 128, 128, True)
    dense, packed = determinism.choose_cases(laptop(), 3, True)
    assert (dense.seqlens_q, packed.seqlens_q) == ((4096, 4096), (2048, 4096, 100, 1024))
    assert shape(dense) == shape(packed) == (8, 2, 128, 128, True)
    assert {case.layout for case in (dense, packed)} == {"dense", "packed"} and dense.seed == packed.seed == 3
    assert all(case.seqlens_q == case.seqlens_k for case in (dense, packed))


def test_a_models_cases() -> None:
    heads = {"num_heads": Known(6), "num_kv_heads": Known(3), "head_dim": Known(80), "v_head_dim": Known(40)}
    dense, _ = determinism.choose_cases(with_model(laptop(), **heads, causal=False), 0, False)
    assert (shape(dense), dense.batch) == ((6, 3, 80, 40, False), 5)
    large, _ = determinism.choose_cases(with_model(laptop(), **{**heads, "head_dim": Known(800)}), 0, False)
    assert large.batch == 1
    unknown = dict.fromkeys(heads, Absent("not said"))
    dense, _ = determinism.choose_cases(with_model(laptop(), **unknown), 0, True)
    assert shape(dense) == (8, 8, 128, 128, True)
    dense, _ = determinism.choose_cases(with_model(laptop(), **{**unknown, "head_dim": Known(64)}), 0, True)
    assert shape(dense) == (8, 8, 64, 64, True)


@pytest.mark.parametrize(
    ("uses_gpu", "ranks", "lengths"), [(True, 4, (2048, 8, 1024, 1016)), (False, 3, (378, 6, 186, 186))]
)
def test_a_rings_cases(uses_gpu: bool, ranks: int, lengths: tuple[int, ...]) -> None:
    dense, packed = determinism.choose_ring_cases(laptop(), 3, uses_gpu, ranks)
    assert (packed.seqlens_q, dense.seqlens_q, packed.layout) == (lengths, (sum(lengths),), "packed")
    assert dense.context_parallel_size == packed.context_parallel_size == ranks
    assert dense.seed == packed.seed == 3


# --- which work ---


@pytest.mark.parametrize(
    ("name", "modes"),
    [
        ("sdpa_flash", ("default", "deterministic", "warn_only")),
        ("flash_attention_2", ("default", "deterministic")),
        ("eager", ("default",)),
    ],
)
def test_the_modes_of_a_backend(name: str, modes: tuple[Mode, ...]) -> None:
    assert determinism.choose_modes(name) == modes


def make_jobs(repeats: int, slots: int, device: str = "cuda") -> list[Job]:
    request, target = determinism.Request(repeats=repeats), ExecutionTarget("python", device, seconds=10.0)
    return determinism.make_jobs(STATES[1:], (CASE, OTHER), request, target, slots)


def test_what_compiles_comes_first_one_case_a_worker() -> None:
    first, second, flash = make_jobs(12, 2)
    assert [job.name for job in (first, second, flash)] == ["flex_attention", "flex_attention", "sdpa_flash"]
    assert (first.items, second.items) == ((f"{CASE.name}@default",), (f"{OTHER.name}@default",))
    modes = ("default", "deterministic", "warn_only")
    assert flash.items == tuple(f"{case.name}@{mode}" for case in (CASE, OTHER) for mode in modes)
    assert flash.features[f"{OTHER.name}@warn_only"][0] == "warn_only mode"
    flash, flex = make_jobs(12, 1)
    assert (flash.name, flex.name, len(flex.items)) == ("sdpa_flash", "flex_attention", 2)


@pytest.mark.parametrize(("repeats", "compiled", "other"), [(12, 4.0, 2.0), (18, 4.0, 3.0), (36, 6.0, 6.0)])
def test_a_job_has_time_for_its_repeats_and_its_compiler(repeats: int, compiled: float, other: float) -> None:
    first, _, flash = make_jobs(repeats, 2)
    assert (first.seconds, flash.seconds) == (10.0 * compiled, 10.0 * other)
    assert flash.message["repeats"] == repeats
    assert flash.message["cases"] == codec.to_plain((CASE, OTHER))


def test_a_worker_on_a_cpu_leaves_half_of_it_to_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutionTarget, "threads_per_worker", lambda target, slots: 24 // slots)
    assert make_jobs(12, 3, "cuda")[0].message["threads"] == 8
    assert make_jobs(12, 3, "cpu")[0].message["threads"] == 12


# --- one run ---


def run_with(
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...] = (),
    stop_after: int | None = None,
    change: Callable[[Sequence[Event]], Sequence[Event]] = lambda events: events,
) -> DeterminismSection:
    """Return the section of a run on a CPU whose workers answer every item as `PLAIN`, or are interrupted."""

    class FakePool:
        def __init__(self, python: str, slots: int) -> None:
            self.slots, self.device = slots, {"kind": "cpu"}
            assert slots == 1

        def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None]) -> None:
            cases = {case.name: case for case in determinism.choose_cases(laptop(), 0, False)}
            events = []
            for job in reversed(jobs):
                for item in reversed(job.items):
                    name, _, mode = item.partition("@")
                    answer = replace(PLAIN, backend=job.name, case=cases[name], mode=mode)  # type: ignore[arg-type]
                    events += [
                        Event(job.name, item, "started"),
                        Event(job.name, item, "answer", codec.to_plain(answer)),
                    ]
            for event in change(events)[: None if stop_after is None else 2 * stop_after]:
                on_event(event)
            if stop_after is not None:
                raise KeyboardInterrupt

    monkeypatch.setattr(determinism, "Pool", FakePool)
    monkeypatch.setattr("attncheck.measure.discovery.list_backends", lambda target: list(STATES))
    request = determinism.Request(names)
    report = determinism.run(laptop(), request, ExecutionTarget("python", "cpu"), lambda text: None)
    section = report.section(DeterminismSection)
    assert section is not None
    return section


def test_a_run_is_in_the_order_of_backends_and_layouts_and_says_what_it_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    section = run_with(monkeypatch)
    order = [(repeats.backend, repeats.case.layout, repeats.outcome) for repeats in section.repeats]
    expected = [
        (name, layout, "ok")
        for name in ("sdpa_math", "sdpa_flash")
        for layout in ("dense", "packed")
        for _ in determinism.choose_modes(name)
    ]
    assert order == [*expected, ("flex_attention", "dense", "skipped")]
    assert not section.measured_on.interrupted and section.measured_on.not_reached == 0


def test_an_interrupted_run_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt) as nothing:
        run_with(monkeypatch, stop_after=0)
    assert not isinstance(nothing.value, InterruptedRun)
    with pytest.raises(InterruptedRun) as some:
        run_with(monkeypatch, stop_after=3)
    section = some.value.report.section(DeterminismSection)
    assert section is not None and section.measured_on.interrupted
    total = sum(len(job.items) for job in make_jobs(32, 1)) - 2 + 2 * len(determinism.choose_modes("sdpa_math"))
    assert (len(section.repeats), section.measured_on.not_reached) == (4, total - 3), "one is left out"
    with pytest.raises(Unanswered):
        run_with(monkeypatch, change=lambda events: [])


def test_what_has_no_answer_keeps_its_reason() -> None:
    event = Event("sdpa_flash", f"{OTHER.name}@deterministic", "timed_out", reason="it hung")
    repeats = determinism.read_repeats(event, (CASE, OTHER))
    assert (repeats.backend, repeats.case, repeats.mode) == ("sdpa_flash", OTHER, "deterministic")
    assert (repeats.outcome, repeats.reason) == ("timed_out", "it hung")
    answer = replace(event, kind="answer", answer=codec.to_plain(VARIES))
    assert determinism.read_repeats(answer, (CASE,)) == VARIES


# --- verdicts ---


@pytest.mark.parametrize(
    ("repeats", "answer", "words"),
    [
        (PLAIN, "pass", ("identical bits in 32 calls, 16 under load", "in more than 9.2 % of calls")),
        (VARIES, "warn", ("dq: 2 different results in 32 calls, first at call 4, up to 0.001, in 3 % of elements",)),
        (replace(VARIES, mode="warn_only"), "warn", ("dq: 2",)),
        (replace(VARIES, mode="deterministic"), "fail", ("dq: 2",)),
        (replace(PLAIN, scores=(score(2.0),)), "pass", ("identical bits",)),
        (replace(PLAIN, scores=(score(2.1),)), "warn", ("dq has z_rms 2.1",)),
        (replace(PLAIN, scores=(score(6.0),)), "warn", ("dq has z_rms 6",)),
        (replace(PLAIN, scores=(score(6.1),)), "fail", ("dq has z_rms 6.1",)),
        (replace(PLAIN, scores=(score(6.1),), class_factor=1.5), "warn", ("dq has z_rms 6.1",)),
        (replace(VARIES, scores=(score(2.0),)), "warn", ("dq: 2",)),
        (replace(VARIES, scores=(score(2.1),)), "warn", ("dq has z_rms 2.1 (budget 2); dq: 2",)),
        (replace(VARIES, mode="deterministic", scores=(score(2.1),)), "fail", ("dq has z_rms 2.1 (budget 2); dq: 2",)),
        (replace(PLAIN, outcome="refused", reason="no"), "refused", ("no",)),
        (replace(VARIES, outcome="died", reason="no"), "lost", ("no",)),
    ],
)
def test_the_verdict_on_one_case_in_one_mode(repeats: Repeats, answer: str, words: tuple[str, ...]) -> None:
    verdict = determinism.judge_repeats(repeats)
    assert verdict.answer == answer and all(part in verdict.reason for part in words), verdict
    assert verdict.reason.startswith(words[0]), verdict
    assert verdict.case == f"{CASE.name}@{repeats.mode}"


def test_one_call_excludes_nothing() -> None:
    assert determinism.excluded_share(1) == determinism.excluded_share(2) == pytest.approx(0.95)


# --- findings ---


@pytest.mark.parametrize(
    ("repeats", "expected"),
    [
        ((PLAIN, STRICT, WARNING), []),
        ((replace(PLAIN, backend="sdpa_math", differences=VARYING),), ["ATN711"]),
        ((replace(STRICT, differences=VARYING),), ["ATN712"]),
        ((replace(STRICT, differences=VARYING, outcome="raised"),), ["ATN604"]),
        ((replace(WARNING, differences=VARYING),), []),
        ((replace(PLAIN, batch=SAME),), []),
        ((replace(PLAIN, batch=VARYING),), ["ATN713"]),
        ((replace(PLAIN, scores=(score(2.0),)),), []),
        ((replace(PLAIN, scores=(score(2.1),)),), ["ATN602"]),
        ((replace(PLAIN, scores=(score(6.0),)),), ["ATN602"]),
        ((replace(PLAIN, scores=(score(6.1),)),), ["ATN601"]),
        ((replace(PLAIN, scores=(score(6.1),), class_factor=2.0),), ["ATN602"]),
        ((replace(PLAIN, scores=(score(6.1),)), replace(STRICT, scores=(score(2.1),))), ["ATN601", "ATN602"]),
    ],
)
def test_the_findings_on_a_backend(repeats: tuple[Repeats, ...], expected: list[str]) -> None:
    assert codes(*repeats) == expected


@pytest.mark.parametrize(
    ("outcome", "is_fault"),
    [
        *(("raised", True), ("died", True), ("timed_out", True)),
        *(("out_of_time", False), ("refused", False), ("skipped", False), ("out_of_memory", False)),
    ],
)
def test_what_is_lost_is_a_finding(outcome: Outcome, is_fault: bool) -> None:
    findings = find(PLAIN, *[replace(STRICT, outcome=outcome, reason="the reason")] * 6)
    assert [finding.code for finding in findings] == ["ATN604"] * is_fault
    for finding in findings:
        assert finding.message == "sdpa_flash fails 6 of 7 repeated cases"
        assert finding.evidence == (f"{CASE.name} (deterministic): the reason",) * 5


def test_wrong_values_name_the_modes_in_which_they_are_wrong() -> None:
    wrong = replace(PLAIN, scores=(score(6.1),))
    assert find(wrong)[0].message == "sdpa_flash is wrong"
    strict = replace(STRICT, scores=(score(6.1),))
    (finding,) = find(strict, replace(WARNING, scores=(score(6.2),)), strict)
    assert finding.message == "sdpa_flash is wrong with strict=True or warn_only=True"
    assert [line.partition(": ")[2] for line in finding.evidence] == [
        f"dq has z_rms {z} (budget 2)" for z in (6.1, 6.2, 6.1)
    ]


@pytest.mark.parametrize(
    ("others", "is_fixed"),
    [
        ((STRICT,), True),
        ((STRICT, replace(STRICT, outcome="refused", reason="no kernel")), True),
        ((STRICT, replace(STRICT, differences=VARYING)), False),
        ((STRICT, replace(STRICT, scores=(score(2.1),))), False),
        ((replace(STRICT, outcome="refused", reason="no kernel"),), False),
        ((), False),
    ],
)
def test_a_switch_is_a_fix_if_it_works_wherever_it_is_answered(others: tuple[Repeats, ...], is_fixed: bool) -> None:
    (finding,) = (finding for finding in find(VARIES, *others) if finding.code == "ATN711")
    assert [fix.text for fix in finding.fixes] == ["strict=True"] * is_fixed
    refused = any(repeats.outcome == "refused" for repeats in others)
    assert (finding.evidence[1:] == ("strict=True: no kernel",)) == refused
    assert finding.message == "sdpa_flash is not reproducible: dq change between calls"


def test_a_refusal_counts_where_the_default_mode_answered_and_warn_only_where_it_varies() -> None:
    refused = replace(STRICT, outcome="refused", reason="no kernel", case=OTHER)
    assert len(find(VARIES, refused)[0].evidence) == 1
    assert len(find(VARIES, refused, replace(PLAIN, case=OTHER, outcome="refused"))[0].evidence) == 1
    assert find(VARIES, replace(STRICT, case=OTHER), replace(PLAIN, case=OTHER))[0].evidence[1:] == ()
    assert find(VARIES, refused, replace(PLAIN, case=OTHER))[0].evidence[1:] == ("strict=True: no kernel",)
    assert len(find(VARIES, WARNING)[0].evidence) == 1
    (line,) = find(VARIES, replace(WARNING, differences=VARYING))[0].evidence[1:]
    assert line.startswith("warn_only=True does not help: dq: 2 different")


@pytest.mark.parametrize(
    ("default", "strict", "cost"),
    [
        ({}, {}, ""),
        ({"call_ms": 2.0}, {"call_ms": 3.0}, ", 1.50 × the time"),
        ({"memory_bytes": 4 << 20}, {"memory_bytes": 7 << 20}, ", +3 MiB"),
        ({"memory_bytes": 4 << 20}, {"memory_bytes": 3 << 20}, ", -1 MiB"),
        ({"memory_bytes": 4 << 20}, {}, ""),
        ({}, {"memory_bytes": 4 << 20}, ""),
    ],
)
def test_the_cost_of_a_switch_is_that_of_the_same_case(
    default: dict[str, Any], strict: dict[str, Any], cost: str
) -> None:
    elsewhere = replace(PLAIN, case=OTHER, call_ms=70.0, memory_bytes=90 << 20)
    (finding,) = find(elsewhere, replace(VARIES, **default), replace(WARNING, call_ms=9.0), replace(STRICT, **strict))
    assert finding.fixes[0].proven == "32 calls with identical bits, 16 under load" + cost


def test_what_a_batch_changes_is_named() -> None:
    (finding,) = find(PLAIN, replace(PLAIN, batch=(SAME[0], replace(VARYING[1], elements=20))))
    assert finding.message == "sdpa_flash: a sequence's dq change when other sequences share its batch"
    assert finding.evidence == ("dq: differs by up to 0.001 in 2 % of elements",)


def test_up_to_16_workers_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    slots: list[int] = []

    def note(python: str, count: int) -> None:
        slots.append(count)
        raise KeyboardInterrupt

    monkeypatch.setattr(determinism, "Pool", note)
    monkeypatch.setattr("attncheck.workers.pool.count_cores", lambda: 64)
    monkeypatch.setattr("attncheck.measure.discovery.list_backends", lambda target: list(STATES))
    for device in ("cuda", "cpu"):
        with pytest.raises(KeyboardInterrupt):
            determinism.run(laptop(), determinism.Request(), ExecutionTarget("python", device), lambda text: None)
    assert slots == [16, 1]
