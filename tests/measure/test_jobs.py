"""How parity's work is shared among workers: what costs time for each new shape is spread, the rest is not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.attention import memory
from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.verdicts import BackendState
from attncheck.measure import discovery, parity_jobs
from attncheck.measure.case_features import group_by_kernel, group_by_shape, list_features
from attncheck.measure.parity import Request, choose_backend_cases
from attncheck.measure.parity_jobs import (
    SECONDS_PER_DROPOUT_PLAN,
    SECONDS_PER_KERNEL,
    SECONDS_PER_PLAN,
    SHARED_JOB,
    accepted_cases,
    make_jobs,
)
from attncheck.measure.suites import COMPILED_CASES, make_suite
from attncheck.measure.worker import tasks
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool

CASES = make_suite("standard")
NAMES = ("eager", "sdpa_math", "sdpa_flash", "sdpa_cudnn", "flash_attention_2", "flex_attention")
STATES = [BackendState(name, name, "torch") for name in NAMES]
SLOTS = 10


def jobs_of(
    device: str,
    states: Sequence[BackendState] = STATES,
    cases: tuple[Case, ...] = CASES,
    request: Request | None = None,
) -> list[Job]:
    target, request = ExecutionTarget(sys.executable, device), request or Request()
    by_backend = {state.name: choose_backend_cases(state, cases, request, target) for state in states}
    return make_jobs(by_backend, target, SLOTS)


def test_what_each_shape_costs_is_spread_over_the_slots_on_a_gpu() -> None:
    jobs = jobs_of("cuda")
    counts = Counter(job.name for job in jobs)
    assert counts["sdpa_cudnn"] >= 3 and counts["flex_attention"] >= 3 and counts["flash_attention_2"] == 1
    first = Counter(job.name for job in jobs[:SLOTS])
    assert set(first) == set(counts) and first["sdpa_cudnn"] >= 3 and first["flex_attention"] >= 2
    assert all(job.message["has_other_parts"] == (counts[job.name] > 1) for job in jobs)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_case_is_in_one_job_with_its_message_and_features(device: str) -> None:
    jobs = jobs_of(device)
    for name in NAMES:
        items = [item.partition("@")[0] for job in jobs for item in job.items if item.endswith(f"@{name}")]
        assert len(items) == len(set(items))
        if name != "flex_attention":
            assert set(items) == {case.name for case in CASES}
        elif device == "cuda":
            assert len(items) == COMPILED_CASES["standard"]
            assert not any("-fp32" in item for item in items), "one product of float32 takes minutes to compile"
    for job in jobs:
        assert {case["name"] for case in job.message["cases"]} == {item.partition("@")[0] for item in job.items}
        assert set(job.items) == set(job.features)
        assert {item.partition("@")[2] for item in job.items} == set(job.message["backends"]) or not job.items


@pytest.mark.parametrize(("device", "planner"), [("cpu", {"sdpa_cudnn"}), ("cuda", set())])
def test_backends_of_torch_share_workers_and_references(device: str, planner: set[str]) -> None:
    own = {"eager", "sdpa_math", "sdpa_flash"} | planner
    shared = [job for job in jobs_of(device) if job.name == SHARED_JOB]
    assert shared and all(set(job.message["backends"]) == own for job in shared)
    assert len(shared) > 1 or device == "cuda"
    for job in shared:
        assert all(job.features[item][0] == item.partition("@")[2] for item in job.items), "losses say whose they are"
        cases = [item.partition("@")[0] for item in job.items]
        assert all(cases.count(name) == len(own) for name in cases) and cases == sorted(cases, key=cases.index)
    assert len([job for job in jobs_of("cpu", cases=make_suite("quick")) if job.name == SHARED_JOB]) == 1


def test_backends_of_another_package_share_a_worker() -> None:
    names = ("eager", "flash_attention_2", "flash_attention_2_varlen", "flash_attention_3")
    jobs = {job.name: job for job in jobs_of("cuda", [BackendState(name, name, "torch") for name in names])}
    assert set(jobs) == {"eager", "flash-attn", "flash_attention_3"}, "one that is alone keeps its name"
    assert jobs["flash-attn"].message["backends"] == ["flash_attention_2", "flash_attention_2_varlen"]
    first, second = jobs["flash-attn"].items[:2]
    assert first.partition("@")[0] == second.partition("@")[0], "case by case, so that they share the reference"


def test_the_longest_work_begins_first() -> None:
    names = ("flash_attention_2", "flash_attention_3", "flex_attention")
    jobs = jobs_of("cuda", [BackendState(name, name, "torch") for name in names])
    target = ExecutionTarget(sys.executable, "cuda")
    accepted = [len(accepted_cases(job.name, CASES, target)) for job in jobs if job.name != "flex_attention"]
    assert len(set(accepted)) == 2 and accepted == sorted(accepted, reverse=True), "by the cases that they accept"
    assert jobs[0].name == "flex_attention"


def estimate_seconds(cases: Sequence[Case]) -> float:
    """Return what cuDNN's plans and kernels for these cases cost."""
    shapes = group_by_shape(cases)
    dropped = sum(shape[0].dropout > 0.0 for shape in shapes)
    plans = SECONDS_PER_PLAN * len(shapes) + SECONDS_PER_DROPOUT_PLAN * dropped
    return plans + SECONDS_PER_KERNEL * len(group_by_kernel(cases))


def test_cases_of_one_shape_stay_together() -> None:
    jobs = [job for job in jobs_of("cuda") if job.name == "sdpa_cudnn"]
    job_of_case = {item.partition("@")[0]: index for index, job in enumerate(jobs) for item in job.items}
    groups = group_by_shape(CASES)
    assert any(len(group) > 3 for group in groups)
    assert all(len({job_of_case[case.name] for case in group}) == 1 for group in groups)
    accepted = accepted_cases("sdpa_cudnn", CASES, ExecutionTarget(sys.executable, "cuda"))
    loads = [estimate_seconds([case for case in accepted if f"{case.name}@sdpa_cudnn" in job.items]) for job in jobs]
    assert len(loads) > 20 and max(loads) == loads[0], (
        "small parts, so that all workers end together; the longest first"
    )


def test_nothing_is_spread_where_it_gains_nothing() -> None:
    on_the_cpu = Counter(job.name for job in jobs_of("cpu"))
    assert all(count == 1 for name, count in on_the_cpu.items() if name not in ("flex_attention", SHARED_JOB))
    few = Request(cases=("dense-causal-s257-h4kv2-d64-bf16-normal",))
    named = jobs_of("cuda", cases=CASES[:1], request=few)
    assert set(Counter(job.name for job in named).values()) == {1}
    assert len(jobs_of("cuda", [state for state in STATES if state.name == "sdpa_cudnn"])) > 4, "it has the slots alone"


def test_a_shape_is_all_but_what_the_tensors_hold() -> None:
    case = Case("test", (70,), (70,))
    same = [Case("other", (70,), (70,), values="large", seed=3, probe="code", backward=False)]
    others = [replace(case, seqlens_q=(71,)), replace(case, dtype="float16"), replace(case, causal=False)]
    assert [len(group) for group in group_by_shape([case, *same, *others])] == [2, 1, 1, 1]


def test_cases_are_told_apart_by_their_features() -> None:
    distinct = {list_features(case) for case in CASES}
    assert len(distinct) > 0.85 * len(CASES)
    features = list_features(Case("head_dim", (70,), (70,), head_dim=160, v_head_dim=128, dtype="float16"))
    assert features[:4] == ("head_dim 160", "v_head_dim 128", "a different head_dim for v", "dtype fp16")


def test_a_refused_case_does_not_wait_for_memory(tmp_path: Path) -> None:
    case = with_name(Case("softcap", (64,), (64,), softcap=20.0))
    item = f"{case.name}@sdpa_flash"
    message = {"backends": ["sdpa_flash"], "cases": codec.to_plain((case,)), "items": [item], "device": "cpu"}
    message |= {"threads": 1, "slots": 2, "seconds": 60.0, "folder": str(tmp_path), "has_other_parts": False}
    sent: list[dict[str, Any]] = []

    def send(document: dict[str, Any]) -> None:
        assert "waiting" not in document
        sent.append(document)

    with open(tmp_path / "turn", "ab") as turn:  # another worker runs a large case alone
        fcntl.flock(turn, fcntl.LOCK_EX)
        tasks.parity(message, send)
    assert sent[1] == {"started": item} and sent[-1]["answer"]["outcome"] == "refused"


class Waits(Exception):
    """A case waits for another worker's."""


@pytest.mark.parametrize(
    ("shares", "held", "waits"),
    [  # the case's bytes, in parts of the free memory of which each of four workers has an eighth; another one's locks
        (0.9, ["turn shared", "room"], False),
        (1.1, ["turn shared"], False),  # the small cases of others leave half of the memory
        (1.1, ["turn shared", "room"], True),
        (3.9, ["turn shared"], False),
        (4.1, ["turn shared"], True),  # it runs alone
        (0.9, ["turn"], True),
    ],
)
def test_large_cases_take_turns_and_only_the_largest_stop_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: float, held: list[str], waits: bool
) -> None:
    case, backend = Case("plain", (64,), (64,)), discovery.get_backend("eager")
    size = memory.estimate_bytes(case, "cpu", backend)
    monkeypatch.setattr(memory, "free_bytes", lambda kind: round(8 * size / shares))

    def on_wait() -> None:
        raise Waits

    with contextlib.ExitStack() as stack:
        for name, _, mode in (text.partition(" ") for text in held):
            stream = stack.enter_context(open(tmp_path / name, "ab"))
            fcntl.flock(stream, fcntl.LOCK_SH if mode else fcntl.LOCK_EX)
        with (
            pytest.raises(Waits) if waits else contextlib.nullcontext(),
            memory.wait_for_memory(str(tmp_path), case, "cpu", backend, 4, on_wait),
        ):
            pass


# --- the compile cache

TASKS = """
import os

def work(message, send):
    send({"device": {"kind": "cpu"}})
    for item in message["items"]:
        send({"started": item})
        folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        os.makedirs(folder, exist_ok=True)
        seen = sorted(os.listdir(folder))
        open(os.path.join(folder, item), "w").close()
        send({"item": item, "answer": [folder, os.environ["TRITON_CACHE_DIR"], seen]})
"""


def run_cache_jobs(folder: Path) -> list[list[object]]:
    (folder / "planted_caches.py").write_text(TASKS)
    message = {"task": "planted_caches:work", "threads": 1}
    jobs = [Job(name, message, (name,), 20.0, str(folder)) for name in ("first", "second")]
    events: list[Event] = []
    Pool(sys.executable, 1).run(jobs, events.append)
    return [event.answer for event in events if event.kind == "answer"]


def test_the_workers_of_a_run_share_one_cache_that_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "own"))
    (first, triton, seen), (second, same_triton, seen_later) = run_cache_jobs(tmp_path)
    assert first == second and triton == same_triton
    assert (seen, seen_later) == ([], ["first"]), "the second worker finds what the first one left"
    for folder in (str(first), str(triton)):
        assert os.path.basename(os.path.dirname(folder)).startswith("attncheck-")
        assert not os.path.exists(os.path.dirname(folder))


def test_flex_rounds_twice_if_sinks_scale_its_output() -> None:
    factor = discovery.get_backend("flex_attention").class_factor
    assert factor(Case("sinks", (70,), (70,), sinks=True)) == pytest.approx(2**0.5)
    assert factor(Case("length", (70,), (70,))) == 1.0


@pytest.mark.parametrize(
    ("seconds", "can_split", "slots", "workers"),
    [
        ({"flex": 119, "cudnn": 212, "torch": 84, "flash": 27, "fa3": 30}, "flex cudnn torch", 16, [5, 6, 3, 1, 1]),
        ({"torch": 60, "flash": 27}, "torch", 2, [1, 1]),  # the slot that is free first takes parts of the other
        ({"torch": 30, "flash": 27}, "torch", 2, [1, 1]),
        ({"torch": 7, "flash": 1}, "torch", 8, [1, 1]),  # another worker would do little but open the device
        ({"torch": 8, "flash": 1}, "torch", 8, [2, 1]),
        ({"flash": 27}, "", 8, [1]),
    ],
)
def test_the_slots_are_shared_by_work(
    seconds: dict[str, float], can_split: str, slots: int, workers: list[int]
) -> None:
    imports = {group: 8.0 * (group in ("flex", "flash", "fa3")) for group in seconds}
    assert list(parity_jobs._share_slots(seconds, imports, can_split.split(), slots).values()) == workers
