"""doctor --ray: what is refused, what a driver's answer becomes; nightly, a real cluster of local raylets.

The cluster needs an interpreter with ray: that of the tests, or the one that ATTNCHECK_RAY_PYTHON names.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attncheck.cluster import over_ray, ray_driver
from attncheck.cluster.packing import Unpacker
from attncheck.core import codec
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.probes import bundle
from attncheck.doctor.probes.collect import join_answers, make_request
from attncheck.workers.child import BOOTSTRAP
from tests.cluster.test_exchange import free_port
from tests.cluster.test_launched import SLOW_PACKAGE, add_distribution, facts_by_subject
from tests.conftest import Run
from tests.doctor.venvs import site_packages

HERE = importlib.util.find_spec("ray") is not None
RAY_PYTHON = os.environ.get("ATTNCHECK_RAY_PYTHON") or (sys.executable if HERE else "")
DOCTOR = ("doctor", "--format", "json", "--profile", "all", "--fail-on", "never")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--ray", "local"), "--ray takes auto, HOST:PORT or ray://HOST:PORT"),
        (("--ray", ""), "--ray takes auto"),
        (("--ray", "auto", "--nodes"), "--nodes and --ray are two ways"),
        (("--ray-runtime-env", "{}"), "--ray-runtime-env is for --ray"),
        (("--nodes-port", "1"), "--nodes-port is for --nodes"),
        (("--gpus-per-node", "8"), "--gpus-per-node is for --nodes or --ray"),
        (("--ray", "auto", "--ray-runtime-env", "{"), "--ray-runtime-env is neither JSON nor YAML"),
        (("--ray", "auto", "--ray-runtime-env", "/nowhere.yaml"), "/nowhere.yaml"),
        (("--ray", "auto", "--facts", "x.json"), "--facts is about one machine"),
        (("--nodes", "--ring-size", "2"), "--ring-size is about one machine"),
        (("--nodes",), "no launcher started this process"),
    ],
)
def test_a_mistake_is_one_clear_line(attncheck: Run, argv: tuple[str, ...], message: str) -> None:
    result = attncheck("doctor", *argv)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.skipif(HERE, reason="ray is installed here")
def test_without_ray_it_says_what_to_install(attncheck: Run) -> None:
    result = attncheck("doctor", "--ray", "auto")
    assert result.returncode == 3
    assert "ray cannot be imported" in result.stderr and "attncheck[ray]" in result.stderr


def test_a_runtime_environment_is_json_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "env.yaml"
    path.write_text("pip: [transformers==5.3.0]\nenv_vars:\n  A: '1'\n")
    expected = {"pip": ["transformers==5.3.0"], "env_vars": {"A": "1"}}
    assert over_ray.read_runtime_env(str(path)) == over_ray.read_runtime_env(json.dumps(expected)) == expected
    assert over_ray.read_runtime_env(None) == {}
    path.write_text("- a")
    with pytest.raises(BadUsage, match="is not a mapping"):
        over_ray.read_runtime_env(str(path))


def test_a_reason_names_no_host() -> None:
    text = "RuntimeEnvSetupError: node 10.1.2.3:6379 (ip=gpu-host) at ray://head.example:10001 failed"
    assert over_ray.clean_reason(text) == "RuntimeEnvSetupError: node … (… at … failed"


def test_the_probe_runs_in_children_of_the_task(tmp_path: Path) -> None:
    """What the task does on a node, without Ray: real children, a deadline, an answer packed for the driver."""
    message = bundle.build_message("static", make_request((), None, None, 60))
    packed = ray_driver.examine(BOOTSTRAP, {"static": message}, {}, 60)
    node = {"id": "ab" * 28, "gpus": 2.0, "packed": packed}
    gathered = over_ray.unpack_nodes({"nodes": [node, {"id": "cd" * 28, "gpus": 0, "failure": "x"}]})
    assert gathered.names == ("abababababab", "cdcdcdcdcdcd") and gathered.silent == {1: "x"}
    snapshot = Unpacker().unpack(gathered.documents[0])
    assert isinstance(snapshot, Snapshot) and snapshot.host.selection.selected_by == "ray"
    assert codec.to_plain(snapshot)["host"]["python_version"] == ".".join(map(str, sys.version_info[:3]))


def test_a_probe_that_hangs_or_dies_is_told_apart() -> None:
    hanging, dying = "import time; time.sleep(60)", "import os; os.abort()"
    for bootstrap, outcome in ((hanging, "timed_out"), (dying, "died")):
        answers = json.loads(zlib.decompress(base64.b64decode(ray_driver.examine(bootstrap, {"static": {}}, {}, 1))))
        assert answers["static"]["outcome"] == outcome
        result = over_ray.read_result(answers["static"])
        with pytest.raises((Unanswered, BadUsage)):
            join_answers({"static": result})


def test_hidden_gpus_are_those_of_the_raylet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES" not in ray_driver.visible_environment()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert ray_driver.visible_environment()["CUDA_VISIBLE_DEVICES"] == "1,2"


def start_node(python: str, folder: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a raylet, and wait until it says that it runs."""
    log = folder / f"{name}.log"
    environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": ""}
    argv = [python, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--block", *options]
    with log.open("wb") as stream:
        process = subprocess.Popen(argv, cwd=folder, env=environ, stdout=stream, stderr=stream, start_new_session=True)
    deadline = time.monotonic() + 90
    while b"--block" not in log.read_bytes():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    return process


def make_environment(folder: Path, name: str) -> tuple[str, Path]:
    """Return the interpreter of an environment that has all that RAY_PYTHON's has, and its own site-packages."""
    subprocess.run([RAY_PYTHON, "-m", "venv", "--without-pip", str(folder / name)], check=True)
    script = "import json, sys; print(json.dumps([p for p in sys.path if p.endswith('site-packages')]))"
    output = subprocess.run([RAY_PYTHON, "-c", script], check=True, capture_output=True, env={"PATH": os.defpath})
    (site_packages(folder / name) / "base.pth").write_text("\n".join(json.loads(output.stdout)))
    return str(folder / name / "bin" / "python"), site_packages(folder / name)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A head and three more raylets: one with another transformers, one whose flash_attn hangs, one like the head."""
    if not RAY_PYTHON:
        pytest.skip("ray is not installed here; ATTNCHECK_RAY_PYTHON names an interpreter that has it")
    folder = tmp_path_factory.mktemp("ray")
    port, nodes = free_port(), {}
    other, other_site = make_environment(folder, "other")
    slow, slow_site = make_environment(folder, "slow")
    add_distribution(other_site, "transformers", "4.57.1")
    add_distribution(slow_site, "ring-flash-attn", "0.1.8", SLOW_PACKAGE)
    try:
        # Its sockets' paths must be short.
        head = [
            "--head",
            f"--port={port}",
            "--num-gpus=2",
            "--include-dashboard=false",
            f"--temp-dir=/tmp/atnray{port}",
        ]
        nodes["head"] = start_node(RAY_PYTHON, folder, "head", *head)
        for name, python in (("other", other), ("slow", slow), ("like", RAY_PYTHON)):
            gpus = "--num-gpus=1" if name == "like" else "--num-gpus=2"
            nodes[name] = start_node(python, folder, name, f"--address=127.0.0.1:{port}", gpus)
        yield {"address": f"127.0.0.1:{port}", **nodes}
    finally:
        for process in reversed(nodes.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in nodes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def examine(cluster: dict[str, Any], *options: str, timeout: float = 240) -> tuple[int, dict[str, Any], str]:
    argv = [sys.executable, "-m", "attncheck", *DOCTOR, "--ray", cluster["address"], "--python", RAY_PYTHON, *options]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=timeout)
    return result.returncode, json.loads(result.stdout) if result.stdout else {}, result.stderr


def kill_session(pid: int) -> None:
    """Kill a raylet with all that it started."""
    pids = {pid}
    for _ in range(6):  # generations
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                pids |= {int(path.parent.name)} if parent in pids else set()
    for number in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def nodes_of(report: dict[str, Any], subject: str, value: str) -> str:
    return facts_by_subject(report)[subject][value]


@pytest.mark.nightly
def test_raylets_of_differing_environments(cluster: dict[str, Any]) -> None:
    code, report, err = examine(cluster, "--lane", "static", "--gpus-per-node", "2")
    assert code == 0, err
    section = report["cluster"]
    assert (section["launcher"], section["size"], section["silent"]) == ("Ray", 4, [])
    other = nodes_of(report, "transformers", "4.57.1")
    assert other != "0" and other.isdecimal()
    messages = [finding["message"] for finding in report["findings"]]
    assert f"node {other} differs from the other 3 in transformers" in messages
    lacking = next(message for message in messages if "fewer than the 2 GPUs" in message)
    assert re.fullmatch(r"node [1-3] has fewer than the 2 GPUs that --gpus-per-node names", lacking)
    assert all(re.fullmatch("[0-9a-f]{12}", name) for name in section["names"])
    assert "127.0.0.1" not in json.dumps(report)


@pytest.mark.nightly
def test_a_runtime_environment_is_what_is_examined(cluster: dict[str, Any], tmp_path: Path) -> None:
    path = add_distribution(tmp_path, "flash-attn", "2.8.3").partition(":")[0]
    runtime_env = json.dumps({"env_vars": {"PYTHONPATH": path, "NCCL_ALGO": "Ring"}})
    code, report, err = examine(cluster, "--lane", "static", "--ray-runtime-env", runtime_env)
    assert code == 0, err
    names = {package["name"] for package in report["snapshot"]["distributions"]}
    assert "flash-attn" in names and report["snapshot"]["environ"]["NCCL_ALGO"] == "Ring"


@pytest.mark.nightly
def test_a_runtime_environment_that_cannot_be_made_is_each_nodes_reason(cluster: dict[str, Any]) -> None:
    runtime_env = json.dumps({"py_executable": "/nowhere/python"})
    code, report, err = examine(cluster, "--lane", "static", "--ray-runtime-env", runtime_env, "--nodes-timeout", "20")
    assert (code, report) == (3, {}), report
    assert err.startswith("attncheck: no node answered: ") and len(err.splitlines()) == 1


@pytest.mark.nightly
def test_no_cluster_at_that_address_is_one_line(attncheck: Run) -> None:
    result = attncheck("doctor", "--ray", f"127.0.0.1:{free_port()}")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == "attncheck: the address given to --ray did not respond: Connection refused\n"


@pytest.mark.nightly
def test_a_node_that_hangs_and_one_that_dies_are_named(cluster: dict[str, Any]) -> None:
    """One imports for ever, and its raylet is killed near the end: the last test, for the node no longer exists."""
    options = ["--lane", "import", "--timeout", "300", "--nodes-timeout", "90"]
    argv = [sys.executable, "-m", "attncheck", *DOCTOR, "--ray", cluster["address"], "--python", RAY_PYTHON, *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 3, err
    assert out, err
    reasons = [node["reason"] for node in json.loads(out)["cluster"]["silent"]]
    assert reasons == ["it did not respond within 90 s"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(10)
    kill_session(cluster["slow"].pid)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 3 and out, err
    (reason,) = [node["reason"] for node in json.loads(out)["cluster"]["silent"]]
    assert "no answer within" not in reason and "127.0.0.1" not in reason
