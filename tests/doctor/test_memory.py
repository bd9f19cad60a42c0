"""Rules with a memory find what they find without: a rule is run again wherever a fact that it read is another."""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.facts import Known
from attncheck.core.launch import SourceLocation
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.memory import RuleMemory, noted_by_answer
from attncheck.doctor.needs import Need
from attncheck.doctor.profile import needs_of_profile
from attncheck.doctor.target import with_version
from tests import snapshots as s


def test_answers_are_those_without_a_memory() -> None:
    variants = [
        s.h200(),
        s.with_env(s.h200(), CUDA_LAUNCH_BLOCKING="1"),
        s.with_model(s.h200()),
        s.with_job(s.h200(), gpus=s.Known(8)),
        s.with_gpus(s.h200(), (7, 0), (7, 0)),
        s.with_package(s.h200(), "transformers", "4.40.0"),
        replace(s.h200(), environ_gap="nobody looked"),
        *(with_version(s.h200(), "transformers", "", allowed) for allowed in (">=4.40,<4.42", ">=5,<6")),
        with_version(with_version(s.h200(), "transformers", "", ">=5,<6"), "torch", "", ">=2.4,<2.6"),
        s.h200(),
    ]
    memory: RuleMemory[engine.RuleAnswer] = RuleMemory()
    for snapshot in variants:
        job_need: frozenset[Need] = frozenset({"job"})
        needs = needs_of_profile("all", snapshot) | job_need
        remembered, alone = (engine.run_rules(snapshot, needs, memory=used) for used in (memory, None))
        assert remembered.findings == alone.findings
        assert remembered.skips == alone.skips and remembered.passed == alone.passed


def test_a_rule_is_run_again_only_where_it_reads_something_else() -> None:
    memory: RuleMemory[str] = RuleMemory()
    calls: list[Snapshot] = []

    def read_environ(snapshot: Snapshot) -> str:
        calls.append(snapshot)
        return snapshot.environ.get("A", "")

    first, second = s.with_env(s.h200(), A="1"), s.with_env(s.h200(), A="2")
    other_model = replace(first, model=s.with_model(first).model)
    answers = [memory.recall("X", snapshot, read_environ) for snapshot in (first, other_model, second, first)]
    assert answers == ["1", "1", "2", "1"] and len(calls) == 2


def test_of_host_and_variables_only_what_was_read_counts() -> None:
    memory: RuleMemory[str] = RuleMemory()
    calls: list[Snapshot] = []

    def read_parts(snapshot: Snapshot) -> str:
        calls.append(snapshot)
        return f"{snapshot.host.python_abi} {snapshot.env('A')} {snapshot.sets('B')}"

    first = s.with_env(s.h200(), A="1")
    other_host = s.with_host(first, kernel="another", cpu_count=3)
    other_variable = s.with_env(first, C="x")
    for snapshot in (first, other_host, other_variable):
        assert memory.recall("X", snapshot, read_parts) == "cp312 Known(value='1') False"
    assert len(calls) == 1
    changed = (s.with_host(first, python_abi="cp313"), s.with_env(first, B=""), s.with_env(first, A="2"))
    answers = {memory.recall("X", snapshot, read_parts) for snapshot in changed}
    assert len(calls) == 4 and len(answers) == 3


@noted_by_answer
def is_job_of(snapshot: Snapshot, framework: str) -> bool:
    """Return whether the launch is one of a framework: a question of the tests."""
    return isinstance(snapshot.job, Known) and snapshot.job.value.framework == framework


def test_of_a_question_the_answer_counts() -> None:
    memory: RuleMemory[str] = RuleMemory()
    calls: list[Snapshot] = []

    def ask(snapshot: Snapshot) -> str:
        calls.append(snapshot)
        return f"{snapshot.env('A')} {is_job_of(snapshot, 'trl')}"

    first = s.with_trl_job(s.with_env(s.h200(), A="1"), "sdpa")
    snapshots = (first, s.with_trl_job(first, "eager"), s.with_job(first, framework="verl"), s.with_env(first, A="2"))
    answers = [memory.recall("X", snapshot, ask) for snapshot in snapshots]
    assert answers == [ask(snapshot) for snapshot in snapshots]
    assert len(calls) == 3 + len(snapshots)  # the second is answered from memory: its job differs in nothing asked


def test_a_rule_that_reads_all_variables_is_run_again_for_any_of_them() -> None:
    memory: RuleMemory[str] = RuleMemory()

    def read_all(snapshot: Snapshot) -> str:
        return " ".join(sorted(name for name in {**snapshot.environ} if name.startswith("ZZ")))

    answers = [memory.recall("X", s.with_env(s.h200(), **{name: "1"}), read_all) for name in ("ZZ1", "ZZ2", "ZZ1")]
    assert answers == ["ZZ1", "ZZ2", "ZZ1"]


def test_of_a_job_only_the_fields_that_were_read_count() -> None:
    memory: RuleMemory[str] = RuleMemory()
    calls: list[Snapshot] = []

    def read_framework(snapshot: Snapshot) -> str:
        calls.append(snapshot)
        return (
            f"{snapshot.job.value.framework} {snapshot.job.value.plan.batch}" if isinstance(snapshot.job, Known) else ""
        )

    trl = s.with_trl_job(s.h200(), "sdpa")
    others = (
        s.with_job(trl, framework="verl"),
        replace(trl, job=s.h200().job),
        s.with_job(trl, nodes=4, framework="trl"),
    )
    answers = [memory.recall("X", snapshot, read_framework) for snapshot in (trl, *others, trl)]
    assert answers == [read_framework(snapshot) for snapshot in (trl, *others, trl)]
    assert len(calls) == 3 + len(answers)  # neither the nodes nor the second time


def test_equal_locations_of_a_job_are_not_the_same() -> None:
    """They are equal wherever they end, and a finding shows the end."""
    memory: RuleMemory[int] = RuleMemory()
    ends = [
        memory.recall("X", s.with_job(s.h200(), location=SourceLocation("a.sh", 3, 1, 3, end)), _read_end)
        for end in (7, 9)
    ]
    assert ends == [7, 9]


def _read_end(snapshot: Snapshot) -> int:
    assert isinstance(snapshot.job, Known)
    return snapshot.job.value.location.end_column
