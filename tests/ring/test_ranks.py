"""Groups of ranks as a user runs them: raising, dying and hanging ranks are distinguished, and nothing is left
behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.attention.backend import Device, Outputs
from attncheck.attention.backends import ulysses_sdpa
from attncheck.core.cases import Case, with_name
from attncheck.core.io.errors import BadUsage
from attncheck.workers.launcher_env import first_node, read_rank_env
from attncheck.workers.stacks import collect_stacks, is_waiting_for_peers
from tests.conftest import Run, all_processes_gone, find_marked_processes
from tests.ring.ring_plugins import write_ring_plugin

pytest.importorskip("torch")
CASE = "dense-causal-s1024-h4kv2-d64-bf16-cp{}-normal"
LAUNCHER = (sys.executable, "-m", "torch.distributed.run")


def parity_arguments(name: str, world_size: int = 2, *options: str) -> tuple[str, ...]:
    ring = ("--ring-size", str(world_size), "--no-emulate", "--no-communication", "--device", "cpu", "--suite", "quick")
    return ("parity", *ring, "--timeout", "6", "--backend", name, "--case", CASE.format(world_size), *options)


def read_report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done.stdout)
    return document


ELSE_RIGHT = "\n    return right(inputs, deterministic)"
ON_ONE = "def run(inputs, deterministic):\n    if inputs.rank == 1:\n        "
FAULTS = {
    "raises": (ON_ONE + "raise ValueError('no luck')" + ELSE_RIGHT, "ATN604", "fail", "rank 1: ValueError: no luck"),
    "all_raise": (
        "def run(inputs, deterministic):\n    raise ValueError('no luck')",
        "ATN604",
        "fail",
        "every rank: ValueError: no luck",
    ),
    "dies": (
        ON_ONE + "os.kill(os.getpid(), signal.SIGSEGV)" + ELSE_RIGHT,
        "ATN604",
        "lost",
        "rank 1 ended with SIGSEGV",
    ),
    "leaves": (
        ON_ONE + "print('out of here', file=sys.stderr, flush=True)\n        os._exit(7)" + ELSE_RIGHT,
        "ATN604",
        "lost",
        "rank 1 ended with exit status 7: out of here",
    ),
    "vanishes": (ON_ONE + "os._exit(0)" + ELSE_RIGHT, "ATN604", "lost", "rank 1 ended on its own, before its peers"),
    "stops": (
        ON_ONE + "os.kill(os.getpid(), signal.SIGSTOP)" + ELSE_RIGHT,
        "ATN604",
        "lost",
        "rank 1 reported no stack",
    ),
    "hangs": (ON_ONE + "time.sleep(1000)" + ELSE_RIGHT, "ATN604", "lost", "rank 1 hangs in run (pl/hangs_plugin.py:"),
    "mismatched": (
        "def run(inputs, deterministic):\n"
        "    outputs = right(inputs, deterministic)\n"
        "    return replace(outputs, dq=outputs.dq[:, :-1]) if inputs.rank == 1 else outputs",
        "ATN604",
        "fail",
        "rank 1: ValueError: dq has the shape (1, 511, 4, 64) on this rank",
    ),
    "silent_zero": (
        "def run(inputs, deterministic):\n"
        "    outputs = right(inputs, deterministic)\n"
        "    return replace(outputs, dk=outputs.dk * 0) if inputs.rank == 1 else outputs",
        "ATN601",
        "fail",
        "errors only on rank 1 of 2",
    ),
}


EVERY_TIME = ("silent_zero",)  # each takes two ranks and their start: the others at night
NAMES = [name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.nightly) for name in FAULTS]


@pytest.mark.parametrize("name", NAMES)
def test_what_goes_wrong_on_one_rank_is_told_with_its_rank(
    name: str, attncheck: Run, tmp_path: Path, marker: str
) -> None:
    source, code, answer, message = FAULTS[name]
    env = {**write_ring_plugin(tmp_path / "pl", name, source), "ATTNCHECK_TEST_RUN": marker}
    done = attncheck(*parity_arguments(name), "--format", "json", env=env)
    assert done.returncode == 1, done.stderr
    report = read_report(done)
    assert [finding["code"] for finding in report["findings"]] == [code]
    assert any(message in line for line in report["findings"][0]["evidence"]), report["findings"][0]["evidence"]
    assert [verdict["answer"] for verdict in report["parity"]["verdicts"]] == [answer]
    assert "--ring-size 2 --case" in report["findings"][0]["fixes"][-1]["text"]


@pytest.mark.nightly
def test_a_scheme_that_is_right_passes_and_another_group_takes_up_the_rest(
    attncheck: Run, tmp_path: Path, marker: str
) -> None:
    """The first case is lost, all others are measured by the group that is started after it."""
    mark = tmp_path / "once"
    source = (
        "def run(inputs, deterministic):\n"
        f"    if inputs.rank == 1 and not os.path.exists({str(mark)!r}):\n"
        f"        open({str(mark)!r}, 'w').close()\n"
        "        os._exit(9)\n"
        "    return right(inputs, deterministic)"
    )
    env = write_ring_plugin(tmp_path / "pl", "stumbles", source)
    ring = ("--ring-size", "2", "--no-emulate", "--device", "cpu", "--suite", "quick")
    done = attncheck("parity", *ring, "--backend", "stumbles", "--case", "ring", "--format", "json", env=env)
    report = read_report(done)
    answers = [verdict["answer"] for verdict in report["parity"]["verdicts"]]
    assert answers == ["lost", "pass"]
    assert report["ring"]["communication"]["world_size"] == 2, "it is checked first that ranks can talk"
    assert report["parity"]["measured_on"]["ring_size"] == 2 and not report["parity"]["measured_on"]["emulated"]


@pytest.mark.nightly
def test_the_smaller_rings_are_measured_too_and_the_slope_is_told(attncheck: Run, tmp_path: Path) -> None:
    env = write_ring_plugin(tmp_path / "pl", "flat", "run = right")
    ring = ("--ring-size", "4", "--no-emulate", "--no-communication", "--device", "cpu", "--suite", "quick")
    done = attncheck("parity", *ring, "--backend", "flat", "-v", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 ranks" in done.stdout
    slope = re.search(r"flat \(dense\) \w+: z_rms (\S+) on 1, (\S+) on 2, (\S+) on 4; ×(\S+) for each", done.stdout)
    assert slope is not None, done.stdout
    assert 0.9 < float(slope[4]) < 1.1, "what is gathered whole does not grow"


def test_ctrl_c_and_a_killed_parent_leave_no_rank_behind(tmp_path: Path, marker: str) -> None:
    env = {**write_ring_plugin(tmp_path / "pl", "hangs", FAULTS["hangs"][0]), "ATTNCHECK_TEST_RUN": marker}
    for number in (signal.SIGINT, signal.SIGKILL):
        command = [sys.executable, "-m", "attncheck", *parity_arguments("hangs", 2, "--timeout", "100")]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
        deadline = time.monotonic() + 60
        while (
            len(find_marked_processes(marker)) < 4 and time.monotonic() < deadline
        ):  # attncheck, the launcher, two ranks
            time.sleep(0.05)
        time.sleep(1.0)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
        assert all_processes_gone(marker), f"left after {number.name}"
        if number == signal.SIGINT:
            assert b"interrupted; nothing is left running" in errors


@pytest.mark.nightly
def test_under_torchrun_every_process_is_a_rank_and_rank_0_reports(tmp_path: Path) -> None:
    env = write_ring_plugin(tmp_path / "pl", "fine", "run = right")
    arguments = parity_arguments("fine", 2, "--timeout", "60")
    launched = [*LAUNCHER, "--standalone", "--nproc-per-node=2", "-m", "attncheck", *arguments]
    done = subprocess.run(launched, env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 ranks") == 1 and done.stdout.count(" right, 1 backend") == 2


@pytest.mark.nightly
def test_under_torchrun_the_whole_of_parity_ends_by_itself(tmp_path: Path) -> None:
    """Nothing that comes after the schemes, such as the adapter's check, waits for ranks that have ended."""
    ring = ("--ring-size", "2", "--device", "cpu", "--rendezvous-timeout", "40", "--no-communication")
    arguments = ("parity", *ring, "--suite", "quick", "--case", CASE.format(2))
    launched = [*LAUNCHER, "--standalone", "--nproc-per-node=2", "-m", "attncheck", *arguments]
    done = subprocess.run(launched, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks") == 1 and "ulysses_sdpa" in done.stdout


def test_under_torchrun_a_rank_that_raises_is_named_by_rank_0(tmp_path: Path) -> None:
    env = write_ring_plugin(tmp_path / "pl", "raises", FAULTS["raises"][0])
    launched = [*LAUNCHER, "--standalone", "--nproc-per-node=2", "-m", "attncheck", *parity_arguments("raises")]
    done = subprocess.run(launched, env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode != 0
    assert "rank 1: ValueError: no luck" in done.stdout


def test_a_rank_that_never_comes_is_named(attncheck: Run, tmp_path: Path, marker: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**write_ring_plugin(tmp_path / "pl", "fine", "run = right"), "ATTNCHECK_TEST_RUN": marker}
    env |= {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = attncheck(*parity_arguments("fine", 2, "--rendezvous-timeout", "3"), env=env)
    assert done.returncode == 3
    assert "after 3 s rank 1 of 2 had not joined" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_words_are_one_line(attncheck: Run, tmp_path: Path) -> None:
    for command, message in (
        (("parity", "--emulate"), "--emulate is for --ring-size"),
        (("determinism", "--rendezvous-timeout", "5"), "--rendezvous-timeout is for --ring-size"),
        (("parity", "--ring-size", "2", "--backend", "sdpa_math"), "sdpa_math runs on one device: leave --ring-size 2"),
        (("parity", "--backend", "ring_flash_attn"), "ring_flash_attn"),
        (("parity", "--ring-size", "0"), "'--ring-size'"),
    ):
        done = attncheck(*command)
        assert done.returncode in (2, 3), (command, done.stdout)
        assert message in done.stderr and "Traceback" not in done.stderr
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = attncheck("parity", "--ring-size", "2", "--suite", "quick", env=env)
    assert done.returncode == 2 and "the launcher started 4 ranks, but a ring of 2 needs 2" in done.stderr


def test_the_place_that_a_launcher_gives() -> None:
    assert read_rank_env({}) is None
    torchrun = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "5"}
    env = read_rank_env(torchrun)
    assert env is not None and (env.rank, env.world_size) == (3, 8)
    assert env.environment["LOCAL_RANK"] == "1"
    slurm = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "123456"}
    env = read_rank_env({**slurm, "SLURM_STEP_NODELIST": "gpu[03-06,9],login"})
    assert env is not None and env.rank == 2 and env.world_size == 4
    assert env.environment["MASTER_ADDR"] == "gpu03" and env.environment["MASTER_PORT"] == "13456"
    assert read_rank_env({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None, "a batch script is one process"
    for broken in ({"RANK": "0", "WORLD_SIZE": "2"}, {**torchrun, "RANK": "first"}):
        with pytest.raises(BadUsage):
            read_rank_env(broken)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[03-06,9]", "gpu03"), ("a1,a2", "a1"), ("n[1,2]", "n1"), ("host", "host"), ("rack-2-node7", "rack-2-node7")],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_a_stack_tells_who_waits() -> None:
    waits = '  File "torch/distributed/distributed_c10d.py", line 1 in all_gather\n  File "x.py", line 2 in run'
    works = '  File "planted.py", line 1 in run\n  File "attncheck/ring/worker/gathered.py", line 2 in run'
    assert is_waiting_for_peers(waits) and not is_waiting_for_peers(works)
    at_store = '  File "attncheck/ring/worker/rank.py", line 70 in all_gather_text\n  File "x.py", line 2 in run'
    assert is_waiting_for_peers(at_store)


LATE = """
import faulthandler, json, os, signal, sys, threading, time
def dump(*arguments):
    time.sleep(1.2)
    with open("stack-0.txt", "w") as stream:
        faulthandler.dump_traceback(stream)
signal.signal(signal.SIGUSR1, dump)
document = {"rank": 0, "pid": os.getpid(), "thread": threading.main_thread().ident}
with open("rank-0.json", "w") as stream:
    json.dump(document, stream)
print(flush=True)
time.sleep(100)
"""


def test_a_stack_that_comes_late_is_awaited_and_that_of_a_stopped_rank_is_not(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LATE], cwd=tmp_path, stdout=subprocess.PIPE) as late:
        assert late.stdout is not None and late.stdout.readline()
        stopped = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        os.kill(stopped.pid, signal.SIGSTOP)
        document = {"rank": 1, "pid": stopped.pid, "thread": 1}
        (tmp_path / "rank-1.json").write_text(json.dumps(document), encoding="utf-8")
        try:
            stacks = collect_stacks(tmp_path)
        finally:
            for process in (late, stopped):
                process.kill()
                process.wait()
    assert list(stacks) == [0] and " in dump" in stacks[0]


HOSTS = ("attnchecka", "attncheckb")


@pytest.fixture
def hosts(tmp_path: Path) -> Any:
    """Two network namespaces joined by a pair of virtual interfaces: two hosts, as far as a network goes."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")

    def ip(*arguments: str) -> bool:
        return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0

    if not ip("netns", "add", HOSTS[0]):
        pytest.skip("no network namespace can be made here")
    try:
        made = ip("netns", "add", HOSTS[1]) and ip("link", "add", "atnv0", "type", "veth", "peer", "name", "atnv1")
        for index, host in enumerate(HOSTS):
            made = made and ip("link", "set", f"atnv{index}", "netns", host)
            made = made and ip("-n", host, "addr", "add", f"10.77.0.{index + 1}/24", "dev", f"atnv{index}")
            made = made and ip("-n", host, "link", "set", f"atnv{index}", "up")
            made = made and ip("-n", host, "link", "set", "lo", "up")
        assert made
        yield HOSTS
    finally:
        for host in HOSTS:
            ip("netns", "del", host)


@pytest.mark.nightly
def test_two_hosts_under_torchrun(hosts: tuple[str, str], tmp_path: Path) -> None:
    env = write_ring_plugin(tmp_path / "pl", "fine", "run = right")
    processes = []
    for index, host in enumerate(hosts):
        launcher = [*LAUNCHER, "--nnodes=2", "--nproc-per-node=1", "--rdzv-id=two", "--rdzv-backend=c10d"]
        launcher += [f"--rdzv-conf=is_host={int(index == 0)}"]
        launcher += ["--rdzv-endpoint=10.77.0.1:29411", f"--local-addr=10.77.0.{index + 1}", "-m", "attncheck"]
        command = ["ip", "netns", "exec", host, *launcher, *parity_arguments("fine", 2, "--timeout", "60")]
        local = {**env, "GLOO_SOCKET_IFNAME": f"atnv{index}"}
        processes.append(
            subprocess.Popen(
                command, env=local, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
            )
        )
    outputs = [process.communicate(timeout=150) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    output = "".join(out for out, _ in outputs)
    assert output.count("2 ranks") == 1 and output.count(" right, 1 backend") == 2


def test_what_one_rank_refuses_no_rank_runs() -> None:
    from attncheck.ring.worker.session import RankSession

    def run(inputs: Any, deterministic: bool) -> Outputs:
        raise AssertionError("a refused case ran")

    case = with_name(Case("ranks", (64,), (64,), context_parallel_size=2))
    context: Any = SimpleNamespace(agree_on_reason=lambda reason: reason, rank=0, group=None, is_leader=True)
    context.device = Device("cpu", torch=(99, 0), ranks=2)
    refusing = replace(ulysses_sdpa.BACKEND, run=run, refuse=lambda case, device: "it has no ring")
    refused = RankSession(refusing, context).measure(case)
    assert (refused.outcome, refused.reason) == ("refused", "it has no ring")
    session = RankSession(replace(refusing, refuse=lambda case, device: ""), context)
    context.agree_on_reason = lambda reason: reason or "another rank has no memory"
    skipped = session.measure(case)
    assert (skipped.outcome, skipped.reason) == ("skipped", "another rank has no memory")
