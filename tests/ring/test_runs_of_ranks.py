"""Which cases ranks run, what becomes of their answers, and what a rank reports; groups are imitated by events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.attention.backend import Device
from attncheck.attention.backends import ulysses_sdpa
from attncheck.attention.calls import ring_package
from attncheck.attention.inputs import Inputs
from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.facts import Known
from attncheck.core.io.errors import BadUsage, Following, Unanswered
from attncheck.core.report import InterruptedRun, Report
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.ring import RingSection
from attncheck.core.verdicts import BackendState, MeasuredOn, Repeats, Run, Score
from attncheck.measure import determinism as one_device
from attncheck.measure.parity import Request
from attncheck.ring import determinism, parity, suites
from attncheck.ring.group import Ring
from attncheck.ring.worker import session as session_module
from attncheck.ring.worker.session import RankSession
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankJob
from tests.snapshots import laptop, with_model

TARGET = ExecutionTarget("python", "cpu", seconds=10.0)
RING = Ring(4, checks_communication=False)
STATES = [BackendState(name, name, "torch", over_ranks=True) for name in ("ulysses_sdpa", "torch_context_parallel")]
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "host", "MASTER_PORT": "1"}
Answer = Callable[[str, str, RankJob], Event]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


class FakeRunner:
    """A runner whose group answers every item, until it is interrupted or out of time."""

    jobs: list[RankJob]
    until: list[float | None]

    def __init__(self, answer: Answer, stop_after: int | None = None, reaches: int = 99, follows: bool = False) -> None:
        self.answer, self.stop_after, self.reaches, self.is_follower = answer, stop_after, reaches, follows
        self.device = {"kind": "cpu", "name": "imitated"}
        self.jobs, self.until, self.count = [], [], 0

    def run(self, job: RankJob, on_event: Callable[[Event], None], until: float | None = None) -> tuple[str, ...]:
        self.jobs.append(job)
        self.until.append(until)
        for backend, item in job.items[: self.reaches]:
            if self.count == self.stop_after:
                raise KeyboardInterrupt
            on_event(Event(backend, item, "started"))
            on_event(self.answer(backend, item, job))
            self.count += 1
        return tuple(" ".join(item) for item in job.items[self.reaches :])


def answer_right(backend: str, item: str, job: RankJob) -> Event:
    cases = {document["name"]: codec.read(Case, document) for document in job.message["cases"]}
    answer: Any = (
        Repeats(backend, cases[item.partition("@")[0]], item.partition("@")[2], "ok", repeats=4)  # type: ignore[arg-type]
        if "@" in item
        else Run(backend, cases[item], "ok")
    )
    return Event(backend, item, "answer", codec.to_plain(answer))


def run_module(
    module: Any, request: Any, monkeypatch: pytest.MonkeyPatch, **behaviour: Any
) -> tuple[Report, FakeRunner]:
    runner = FakeRunner(behaviour.pop("answer", answer_right), **behaviour)
    monkeypatch.setattr(module, "RankRunner", lambda python, env: runner)
    monkeypatch.setattr(module, "choose_schemes", lambda target, names: (STATES, STATES[::-1]))
    said: list[str] = []
    report = module.run(laptop(), request, RING, TARGET, said.append)
    assert any(f"of {sum(len(job.items) for job in runner.jobs)} cases" in text for text in said)
    return report, runner


# --- parity ---


def test_the_ring_gets_its_suite_and_smaller_ones_the_growing_problem() -> None:
    cases = parity.choose_cases(Request("quick", seed=5, repeat=2), laptop(), Ring(8))
    assert list(cases) == [1, 2, 4, 8]
    assert cases[8] == (*suites.make_suite("quick", 8, 5), *suites.make_suite("quick", 8, 6))
    assert cases[2] == (*suites.make_growth_cases(2, 5), *suites.make_growth_cases(2, 6))
    assert list(parity.choose_cases(Request("quick"), laptop(), Ring(1024))) == [1 << power for power in range(11)]
    assert list(parity.choose_cases(Request("quick"), laptop(), Ring(6))) == [1, 2, 4, 6]


def test_named_cases_and_an_external_launcher_measure_the_ring_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    name = suites.make_suite("quick", 4)[0].name
    assert list(parity.choose_cases(Request("quick", cases=(name,)), laptop(), RING)) == [4]
    for key, value in LAUNCHED.items():
        monkeypatch.setenv(key, value)
    assert list(parity.choose_cases(Request("quick"), laptop(), RING)) == [4]


def test_a_models_cases_are_in_its_dtype_or_those_that_are_named() -> None:
    snapshot = with_model(laptop(), num_heads=Known(8), num_kv_heads=Known(4), head_dim=Known(64), v_head_dim=Known(64))
    own = parity.choose_cases(Request("quick", max_seqlen=2048), snapshot, RING)[4]
    assert {case.dtype for case in own} == {"bfloat16"} and {case.num_heads for case in own} == {8}
    named = parity.choose_cases(Request("quick", max_seqlen=2048, dtypes=("float16", "float32")), snapshot, RING)[4]
    assert {case.dtype for case in named} == {"float16", "float32"}


def test_no_case_is_a_wrong_request() -> None:
    with pytest.raises(BadUsage, match="exclude every case; --list"):
        parity.choose_cases(Request("quick", cases=("no such case",)), laptop(), RING)
    with pytest.raises(BadUsage, match="failed last time"):
        parity.choose_cases(Request("quick", only=(("ulysses_sdpa", "no such case"),)), laptop(), RING)


def test_every_scheme_runs_every_case_of_every_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    report, runner = run_module(parity, Request("quick", seed=3), monkeypatch)
    cases = parity.choose_cases(Request("quick", seed=3), laptop(), RING)
    assert [job.world_size for job in runner.jobs] == list(cases)
    for job in runner.jobs:
        names = [case.name for case in cases[job.world_size]]
        assert list(job.items) == [(state.name, name) for state in STATES[::-1] for name in names]
        assert job.message["task"] == "attncheck.ring.worker.tasks:parity" and job.seconds == 10.0
    section = report.section(ParitySection)
    assert section is not None and section.measured_on.suite == "quick" and section.measured_on.ring_size == 4
    assert [run.backend for run in section.runs] == [
        state.name for state in STATES[::-1] for own in cases.values() for _ in own
    ]
    assert (section.measured_on.seed, section.measured_on.not_reached, section.measured_on.interrupted) == (3, 0, False)
    assert runner.until == [None] * len(cases)


def test_a_budget_ends_a_run_and_what_was_not_reached_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "time", SimpleNamespace(monotonic=lambda: 100.0))
    report, runner = run_module(parity, Request("quick", budget=7.0), monkeypatch, reaches=1)
    section = report.section(ParitySection)
    assert section is not None
    assert section.measured_on.not_reached == sum(len(job.items) - 1 for job in runner.jobs) > 0
    assert runner.until == [107.0] * len(runner.jobs)
    with pytest.raises(Unanswered, match="before the first case"):
        run_module(parity, Request("quick", budget=0.0), monkeypatch, reaches=0)


def test_an_interrupted_run_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, request, section_type in (
        (parity, Request("quick"), ParitySection),
        (determinism, one_device.Request(), DeterminismSection),
    ):
        with pytest.raises(KeyboardInterrupt) as nothing:
            run_module(module, request, monkeypatch, stop_after=0)
        assert not isinstance(nothing.value, InterruptedRun)
        total = 0
        for job in run_module(module, request, monkeypatch)[1].jobs:
            total += len(job.items)
        with pytest.raises(InterruptedRun) as some:
            run_module(module, request, monkeypatch, stop_after=3)
        section: Any = some.value.report.section(section_type)
        assert section.measured_on.interrupted and section.measured_on.not_reached == total - 3 > 0


def test_a_rank_that_does_not_report_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, request in ((parity, Request("quick")), (determinism, one_device.Request())):
        with pytest.raises(Following):
            run_module(module, request, monkeypatch, follows=True)


def test_only_what_failed_last_time_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    name = suites.make_suite("quick", 4)[0].name
    _, runner = run_module(parity, Request("quick", only=(("torch_context_parallel", name),)), monkeypatch)
    assert [job.items for job in runner.jobs if job.items] == [(("torch_context_parallel", name),)]
    with pytest.raises(BadUsage, match="failed last time"):
        run_module(parity, Request("quick", only=(("another", name),)), monkeypatch)


def test_ranks_that_cannot_communicate_run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, request in ((parity, Request("quick")), (determinism, one_device.Request())):
        silent = Report("parity", laptop())
        monkeypatch.setattr(module, "check_communication", lambda *arguments, silent=silent: silent)
        monkeypatch.setattr(module, "cannot_communicate", lambda report: True)
        monkeypatch.setattr(module, "choose_schemes", lambda target, names: (STATES, STATES))
        monkeypatch.setattr(module, "RankRunner", None)
        assert module.run(laptop(), request, RING, TARGET, lambda text: None) is silent


def grow(*z_rms: float, layout: str = "dense") -> tuple[Run, ...]:
    case = Case("growth", (64,), (64,), layout=layout)  # type: ignore[arg-type]
    return tuple(
        Run("ulysses_sdpa", with_name(replace(case, context_parallel_size=2**power)), "ok", scores=(
            Score("out", z, 1.0, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, 0),))
        for power, z in enumerate(z_rms, 1)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("z_rms", "codes"),
    [
        ((1.0, 2.0**0.25), []),
        ((1.0, 2.0**0.26), ["ATN605"]),
        ((1.0, 1.2, 1.45), ["ATN605"]),
        ((1.0, 6.1), ["ATN601"]),
    ],
)
def test_an_error_that_grows_is_a_finding_unless_the_scheme_is_wrong(
    z_rms: tuple[float, ...], codes: list[str]
) -> None:
    report = parity.make_report(laptop(), tuple(STATES), grow(*z_rms), MeasuredOn("cpu"))
    assert [finding.code for finding in report.findings] == codes
    section = report.section(RingSection)
    assert section is not None and [growth.backend for growth in section.growth] == ["ulysses_sdpa"]
    assert all("ulysses_sdpa" in finding.message for finding in report.findings)


# --- determinism ---


@pytest.mark.parametrize(("repeats", "factor"), [(12, 2.0), (18, 3.0)])
def test_every_scheme_is_repeated_in_its_modes(repeats: int, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    report, runner = run_module(determinism, one_device.Request(seed=3, repeats=repeats), monkeypatch)
    (job,) = runner.jobs
    cases = one_device.choose_ring_cases(laptop(), 3, False, 4)
    assert job.items == tuple(
        (state.name, f"{case.name}@{mode}")
        for state in STATES[::-1]
        for case in cases
        for mode in one_device.choose_modes(state.name)
    )
    assert (job.world_size, job.seconds, job.message["repeats"]) == (4, 10.0 * factor, repeats)
    section = report.section(DeterminismSection)
    assert section is not None and len(section.repeats) == len(job.items)
    order = [(result.backend, result.case.layout) for result in section.repeats]
    assert order == sorted(order, key=lambda pair: (pair[0] == "ulysses_sdpa", pair[1]))
    assert (section.measured_on.seed, section.measured_on.not_reached, section.measured_on.interrupted) == (3, 0, False)


# --- a rank ---

CASE = with_name(Case("ranks", (64,), (64,), context_parallel_size=2))


def make_context(kind: str = "cpu", rank: int = 0) -> Any:
    context: Any = SimpleNamespace(agree_on_reason=lambda reason: reason, rank=rank, group=None, is_leader=rank == 0)
    context.device = Device(kind, ranks=2)  # type: ignore[arg-type]
    return context


def test_a_ranks_session_judges_on_the_leader_and_traces_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        session_module,
        "ParitySession",
        lambda backend, device, others, seconds, judges, traces_kernels: made.append(
            (backend.kernel_pattern, seconds, judges, traces_kernels)
        ),
    )
    backend = replace(ulysses_sdpa.BACKEND, kernel_pattern="flash")
    for kind, rank, traces in (("cpu", 0, True), ("cuda", 0, True), ("cuda", 1, False)):
        RankSession(backend, make_context(kind, rank), traces_kernels=traces)
    RankSession(backend, make_context("cuda"))
    assert made == [
        ("", float("inf"), True, False),
        ("flash", float("inf"), True, True),
        ("flash", float("inf"), False, False),
        ("flash", float("inf"), True, True),
    ]


def test_a_package_that_does_not_import_is_an_error_of_every_case_that_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load() -> None:
        raise SystemError("damaged")

    monkeypatch.setattr(ring_package, "load", load)
    accepting = replace(ulysses_sdpa.BACKEND, package="ring-flash-attn", refuse=lambda case, device: "")
    run = RankSession(accepting, make_context()).measure(CASE)
    assert (run.outcome, run.reason) == ("raised", "import ring_flash_attn raises SystemError: damaged")
    refused = RankSession(replace(accepting, refuse=lambda case, device: "no"), make_context()).measure(CASE)
    assert (refused.outcome, refused.reason) == ("refused", "no")
    assert RankSession(ulysses_sdpa.BACKEND, make_context()).import_error == ""
    monkeypatch.setattr(ring_package, "load", lambda: None)
    assert RankSession(accepting, make_context()).import_error == ""


def test_a_score_names_the_rank_of_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(inputs: Inputs, deterministic: bool) -> Any:
        raise AssertionError("the session is imitated")

    backend = replace(ulysses_sdpa.BACKEND, run=run, refuse=lambda case, device: "", sharding="contiguous")
    session = RankSession(backend, make_context())
    scores = tuple(Score("out", 1.0, 1.0, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, token, 0) for token in (31, 32))
    monkeypatch.setattr(session._session, "run_case", lambda blank: replace(blank, scores=scores))
    assert [score.rank for score in session.measure(CASE).scores] == [0, 1]
