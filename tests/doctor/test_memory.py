"""Rules with a memory find what they find without: a rule is run again wherever a fact that it read is another."""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.memory import RuleMemory
from attncheck.doctor.needs import Need
from attncheck.doctor.profile import needs_of_profile
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
