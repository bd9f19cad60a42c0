"""doctor --nodes as launchers start it: torchrun and srun's variables here, torchrun over hosts made of namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attncheck.selftest import run as selftest
from attncheck.selftest import table
from tests.cluster.test_exchange import free_port
from tests.conftest import all_processes_gone, find_marked_processes
from tests.selftest.planted import nodes
from tests.wheels import fetch_wheel

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
DOCTOR = ("doctor", "--nodes", "--profile", "all", "--format", "json", "--fail-on", "never")
HOSTS = 5
SUBNET = "10.78.0"
SLOW_PACKAGE = "import time\ntime.sleep(600)\n"


def start(argv: list[str], folder: Path, **environ: str) -> subprocess.Popen[str]:
    """Start a command in its own session."""
    return subprocess.Popen(
        argv,
        cwd=folder,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def add_distribution(folder: Path, name: str, version: str, source: str | None = None) -> str:
    """Lay down a package of this version below `folder`; return PYTHONPATH with it first."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if source is not None:
        (folder / f"{name.replace('-', '_')}.py").write_text(source)
    return f"{folder}:{os.environ.get('PYTHONPATH', '')}"


def facts_by_subject(report: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the nodes by value of each fact that differs."""
    return {
        fact["subject"]: {group["value"]: group["nodes"] for group in fact["groups"]}
        for fact in report["cluster"]["facts"]
        if fact["relation"] == "stack"
    }


def slurm(node: int, nodes: int, local: int = 0) -> dict[str, str]:
    """Return what srun sets for a task of one node."""
    return {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_NODEID": str(node), "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_PROCID": str(2 * node + local), "SLURM_STEP_NUM_TASKS": str(2 * nodes), "SLURM_LOCALID": str(local),
        "SLURM_STEP_NODELIST": "localhost",
    }  # fmt: skip


def test_srun_gives_one_report_of_all_nodes(tmp_path: Path, marker: str) -> None:
    """Three nodes of two tasks each, and node 2 has another transformers."""
    argv = [sys.executable, "-m", "attncheck", *DOCTOR, "--lane", "static", "--nodes-port", str(free_port())]
    other = add_distribution(tmp_path / "other", "transformers", "4.57.1")
    paths = {2: {"PYTHONPATH": other}}
    tasks = {
        (node, local): start(argv, tmp_path, **slurm(node, 3, local), **paths.get(node, {}))
        for node in range(3)
        for local in range(2)
    }
    outputs = {place: process.communicate(timeout=60) for place, process in tasks.items()}
    assert {process.returncode for process in tasks.values()} == {0}, outputs
    assert [place for place, (out, _) in outputs.items() if out] == [(0, 0)]
    assert outputs[2, 0][1] == "attncheck: this is node 2 of 3; node 0 reports\n" and outputs[2, 1] == ("", "")
    report = json.loads(outputs[0, 0][0])
    assert report["cluster"]["launcher"] == "Slurm" and report["cluster"]["size"] == 3
    assert facts_by_subject(report)["transformers"]["4.57.1"] == "2"
    assert "node 2 differs from the other 2 in transformers" in [f["message"] for f in report["findings"]]
    assert all_processes_gone(marker)


def test_a_node_that_never_starts_is_named_after_the_deadline(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "attncheck", *DOCTOR, "--lane", "static", "--nodes-port", str(free_port())]
    process = start([*argv, "--nodes-timeout", "2"], tmp_path, **slurm(0, 2))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    report = json.loads(out)
    assert report["cluster"]["silent"][0]["node"] == 1
    assert report["unanswered"][0]["reason"].startswith("node 1: it did not reach node 0 on port")


def test_without_node_0_the_others_say_so(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "attncheck", *DOCTOR, "--nodes-port", str(free_port()), "--nodes-timeout", "1"]
    process = start(argv, tmp_path, **slurm(1, 2))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert err.startswith("attncheck: node 1 did not reach node 0 on port") and len(err.splitlines()) == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_interrupted_while_it_waits_nothing_is_left(tmp_path: Path, marker: str, signum: signal.Signals) -> None:
    argv = [sys.executable, "-m", "attncheck", *DOCTOR, "--lane", "static", "--nodes-port", str(free_port())]
    process = start(argv, tmp_path, **slurm(0, 2))
    time.sleep(3)
    process.send_signal(signum)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "") and "interrupted" in err
    assert all_processes_gone(marker)


def test_torchrun_on_two_nodes_of_two_ranks(tmp_path: Path, marker: str) -> None:
    port = free_port()
    other = add_distribution(tmp_path / "other", "flash-attn", "2.7.4")
    processes = []
    for node in range(2):
        launcher = [*TORCHRUN, "--nnodes=2", "--nproc-per-node=2", "--rdzv-id=two", "--rdzv-backend=c10d"]
        launcher += [f"--rdzv-conf=is_host={int(node == 0)}", f"--rdzv-endpoint=127.0.0.1:{port}"]
        argv = [*launcher, "-m", "attncheck", *DOCTOR, "--lane", "static"]
        processes.append(start(argv, tmp_path, **({"PYTHONPATH": other} if node == 1 else {})))
        time.sleep(1)  # so that the first is node 0
    outputs = [process.communicate(timeout=90) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    documents = [out for out, _ in outputs if out]
    assert len(documents) == 1
    report = json.loads(documents[0])
    assert (report["cluster"]["launcher"], report["cluster"]["size"]) == ("torchrun", 2)
    assert set(facts_by_subject(report)["flash-attn"]) == {"2.7.4", "not installed"}
    assert sum(err.count("node 0 reports") for _, err in outputs) == 1
    assert all_processes_gone(marker)


def ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0


@pytest.fixture
def hosts() -> Iterator[tuple[str, ...]]:
    """Network namespaces behind one bridge, itself in a namespace: hosts, as far as a network goes."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    names = tuple(f"atnn{index}" for index in range(HOSTS))
    if not ip("netns", "add", "atnswitch"):
        pytest.skip("no network namespace can be made here")
    try:
        made = ip("-n", "atnswitch", "link", "add", "bridge", "type", "bridge")
        made = made and ip("-n", "atnswitch", "link", "set", "bridge", "up")
        for index, name in enumerate(names):
            port = f"port{index}"
            made = made and ip("netns", "add", name)
            made = made and ip(
                *("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", "atnswitch")
            )
            made = made and ip("-n", "atnswitch", "link", "set", port, "master", "bridge", "up")
            made = made and ip("-n", name, "addr", "add", f"{SUBNET}.{index + 1}/24", "dev", "eth0")
            made = made and ip("-n", name, "link", "set", "eth0", "up") and ip("-n", name, "link", "set", "lo", "up")
        assert made
        yield names
    finally:
        for name in (*names, "atnswitch"):
            ip("netns", "del", name)


@pytest.mark.nightly
def test_torchrun_over_hosts_of_which_one_differs_and_three_are_lost(
    hosts: tuple[str, ...], tmp_path: Path, marker: str
) -> None:
    """Node 1 has a real transformers 4.57.1; 2 is cut off while it examines, 3 hangs, 4's processes are killed."""
    wheel = fetch_wheel("transformers", "4.57.1")
    wheel.archive.extractall(tmp_path / "other")
    slow = add_distribution(tmp_path / "slow", "ring-flash-attn", "0.1.8", SLOW_PACKAGE)
    paths = {1: f"{tmp_path / 'other'}:{os.environ.get('PYTHONPATH', '')}", 2: slow, 3: slow, 4: slow}
    processes = {}
    try:
        for node, host in enumerate(hosts):
            launcher = [*TORCHRUN, f"--nnodes={HOSTS}", "--nproc-per-node=1", f"--node-rank={node}"]
            launcher += [f"--master-addr={SUBNET}.1", "--master-port=29471", "-m", "attncheck"]
            options = ["--lane", "import", "--timeout", "200", "--nodes-timeout", "60"]
            argv = ["ip", "netns", "exec", host, *launcher, *DOCTOR, *options]
            processes[node] = start(argv, tmp_path, **({"PYTHONPATH": paths[node]} if node in paths else {}))
        wait_for_children(processes[2].pid, processes[4].pid)
        assert ip("-n", hosts[2], "link", "set", "eth0", "down")
        os.killpg(processes[4].pid, signal.SIGKILL)
        kill_descendants(processes[4].pid, marker, "GROUP_RANK=4")
        out, err = processes[0].communicate(timeout=150)
        assert processes[0].returncode == 1, err  # torchrun's own, of rank 0's 3
    finally:
        for process in processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for pid in find_marked_processes(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    report = json.loads(out)
    reasons = {node["node"]: node["reason"] for node in report["cluster"]["silent"]}
    assert set(reasons) == {2, 3, 4}, reasons
    assert reasons[2].startswith("it connected, but did not answer within")
    assert reasons[3].startswith("it connected, but did not answer within")
    assert reasons[4] == "it connected, but the connection broke before it answered"
    assert facts_by_subject(report)["transformers"] == {"5.17.0": "0", "4.57.1": "1"}
    assert "exit_code" in report and report["exit_code"] == 3


def wait_for_children(*pids: int) -> None:
    """Wait until nodes import their slow package: a child of theirs has it in its environment for good."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if all(_count_session_members(pid) for pid in pids):
            time.sleep(3)
            return
    raise AssertionError("the nodes did not begin")


def _count_session_members(pid: int) -> int:
    """Return how many processes below `pid` are attncheck's children, which lead sessions of their own."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = (int(fields[1]), int(fields[3]))
    count = 0
    for child, (parent, session) in parents.items():
        ancestor = parent
        while ancestor in parents and ancestor not in (0, 1, pid):
            ancestor = parents[ancestor][0]
        count += ancestor == pid and session == child
    return count


def kill_descendants(pid: int, marker: str, variable: str) -> None:
    """Kill the processes of one node, which are in sessions of their own."""
    for other in find_marked_processes(marker):
        with contextlib.suppress(OSError):
            environ = Path(f"/proc/{other}/environ").read_bytes().split(b"\0")
            if variable.encode() in environ:
                os.kill(other, signal.SIGKILL)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a throwaway environment needs Linux")
def test_the_faults_of_selftest_are_caught_and_healthy_nodes_are_not(marker: str) -> None:
    selected = (*selftest.select_faults(("ATN58",)), *nodes.FAULTS)
    result = selftest.run_faults(selected, None, "cpu", 60.0, lambda text: None)
    assert [fault.status for fault in result.results] == ["caught", "caught"], table.as_text(result)
    assert [control.status for control in result.controls] == ["silent", "silent"], table.as_text(result)
