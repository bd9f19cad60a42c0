"""A worker's threads stay within its share of the processors, as the mask, the quota and the user's settings say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attncheck.workers import processors
from attncheck.workers.processor_time import CpuSample, compare_samples, sample_cpu
from attncheck.workers.processors import count_cores, read_quota, share_cores, thread_environment

QUOTAS = {  # files of a control group, by name, and the processors that they allow
    "version 2": ({"cpu.max": "150000 100000\n"}, 1.5),
    "version 2 without a bound": ({"cpu.max": "max 100000\n"}, 0.0),
    "version 1": ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
    "version 1 without a bound": ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.0),
    "damaged": ({"cpu.max": "lots\n"}, 0.0),
    "no control groups": ({}, 0.0),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_containers_quota_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, expected = QUOTAS[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    assert read_quota(tmp_path) == expected
    monkeypatch.setattr(processors, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert count_cores() == {1.5: 2, 4.0: 4, 0.0: 64}[expected]


def test_workers_share_the_processors_and_the_users_own_setting_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "count_cores", lambda: 8)
    assert [share_cores(workers, {}) for workers in (1, 3, 8, 20)] == [8, 2, 1, 1]
    assert share_cores(1, {}, spare=1) == 7
    assert share_cores(4, {"OMP_NUM_THREADS": "3"}) == share_cores(1, {"OMP_NUM_THREADS": "3,1"}, spare=1) == 3
    assert share_cores(4, {"OMP_NUM_THREADS": "many"}) == 2


def test_threads_sleep_while_they_wait_unless_they_are_timed_or_the_user_says_otherwise() -> None:
    variables = thread_environment(2, False, {})
    assert variables["OMP_NUM_THREADS"] == variables["TORCHINDUCTOR_COMPILE_THREADS"] == "2"
    assert variables["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "OMP_WAIT_POLICY" not in thread_environment(2, True, {})
    assert "OMP_WAIT_POLICY" not in thread_environment(2, False, {"GOMP_SPINCOUNT": "9"})
    assert "OMP_NUM_THREADS" not in thread_environment(2, False, {"OMP_NUM_THREADS": "5"})


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says")
def test_a_childs_processor_time_is_counted_and_sleep_is_told_from_work() -> None:
    spin = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    activities = {}
    for name, code in {"sleeps": "import time; time.sleep(100)", "has a child that spins": spin}.items():
        with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
            try:
                time.sleep(1.0)
                first = sample_cpu([process.pid])
                time.sleep(1.5)
                activities[name] = compare_samples(first, sample_cpu([process.pid])).activity
            finally:
                os.killpg(process.pid, 9)
    assert activities["sleeps"] == "asleep"
    assert activities["has a child that spins"] in ("computing", "starved")
    assert sample_cpu([2**22 + 1]) is None


def test_a_process_that_waits_for_the_machine_is_not_asleep() -> None:
    waiting, later = CpuSample(0.0, 1.0, True), CpuSample(60.0, 1.1, False)
    assert compare_samples(waiting, later).activity == "starved"
    assert compare_samples(CpuSample(0.0, 1.0, False), later).activity == "asleep"
    assert compare_samples(None, later).activity == "unknown"
