"""The machine is described as this process may use it; the build tools as a build would find them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.environment import BuildTools, Host, Hub
from attncheck.doctor.probes.payload import environ, files, host, hub
from attncheck.doctor.probes.payload.packages import build_tools, pip_config

GIB = 1 << 30


def test_this_interpreter() -> None:
    answer = codec.read(Host, host.collect_host())
    assert answer.python_version.startswith(".".join(map(str, sys.version_info[:3])))
    assert answer.python_abi.startswith("cp3")
    assert (answer.executable, answer.prefix, answer.platform) == (sys.executable, sys.prefix, sys.platform)
    assert 1 <= answer.cpu_count <= (os.cpu_count() or 1)
    assert codec.read(BuildTools, build_tools.collect_build_tools([])).externally_managed in (True, False)
    codec.read(Hub, hub.collect_hub_cache())


def fake_cgroup(patch: pytest.MonkeyPatch, membership: str, contents: dict[str, str]) -> None:
    """Make /proc and the cgroup files appear to hold `contents`."""
    contents = {"/proc/self/cgroup": membership, **contents}
    folders = {os.path.dirname(path) for path in contents}
    patch.setattr(files, "read_text", lambda path, limit=0: contents.get(path, ""))
    patch.setattr(os.path, "isdir", lambda path: any((folder + "/").startswith(path + "/") for folder in folders))
    patch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


MEMINFO = {"/proc/meminfo": "MemTotal: 536870912 kB\nMemFree: 1 kB\nMemAvailable: 268435456 kB\n"}


def test_cgroup_version_2_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = "/sys/fs/cgroup/kubepods/pod1"
    limits = {
        f"{folder}/cpu.max": "150000 100000\n",
        f"{folder}/memory.max": f"{16 * GIB}\n",
        f"{folder}/memory.current": f"{10 * GIB}\n",
        f"{folder}/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
        "/sys/fs/cgroup/kubepods/memory.max": "max\n",
    }
    fake_cgroup(monkeypatch, "0::/kubepods/pod1\n", {**limits, **MEMINFO})
    assert host.count_cpus() == 2
    assert host.measure_memory() == ({"known": 16 * GIB}, {"known": 8 * GIB})


def test_cgroup_version_1_limits_at_the_mounts_root(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(32 * GIB),
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
    }
    membership = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n"
    fake_cgroup(monkeypatch, membership, {**limits, **MEMINFO})
    assert host.count_cpus() == 4
    assert host.measure_memory() == ({"known": 32 * GIB}, {"known": 31 * GIB})


def test_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"/sys/fs/cgroup/cpu.max": "max 100000", "/sys/fs/cgroup/memory.limit_in_bytes": "9223372036854771712"}
    fake_cgroup(monkeypatch, "0::/../..\n", {**limits, **MEMINFO})
    assert host.count_cpus() == 64
    assert host.measure_memory() == ({"known": 512 * GIB}, {"known": 256 * GIB})


def test_garbage_in_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cgroup(monkeypatch, ":::\nx\n0::relative\n", {"/proc/meminfo": "MemTotal: lots\nx", "/x/cpu.max": "-1 0 0"})
    assert host.count_cpus() == 64
    assert "unreadable" in host.measure_memory()[1]


def test_musl_has_no_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", unknown)
    assert "absent" in host.collect_host()["glibc"]


def write_toolkit(folder: Path, version: str = "", header: str = "", answer: str = "") -> Path:
    """Write a CUDA toolkit whose nvcc prints `answer`."""
    (folder / "bin").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "bin/nvcc").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (folder / "bin/nvcc").chmod(0o755)
    if version:
        (folder / "version.json").write_text(version)
    if header:
        (folder / "include/cuda_runtime_api.h").write_text(header)
    return folder


@pytest.mark.parametrize(
    ("toolkit_files", "expected"),
    [
        ({"version": '{"cuda_nvcc": {"version": "12.8.93"}}'}, {"known": "12.8"}),
        ({"version": "[1, 2", "header": "#define CUDART_VERSION  13000"}, {"known": "13.0"}),
        ({"answer": "Cuda compilation tools, release 12.4, V12.4.131"}, {"known": "12.4"}),
    ],
)
def test_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toolkit_files: dict[str, str], expected: Any) -> None:
    monkeypatch.setenv("CUDA_HOME", str(write_toolkit(tmp_path / "cuda", **toolkit_files)))
    answer = build_tools.collect_build_tools([])
    assert (answer["nvcc"], answer["cuda_home"]) == (expected, {"known": str(tmp_path / "cuda")})


def test_nvcc_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(write_toolkit(tmp_path / "cuda", answer="hello")))
    assert "unreadable" in build_tools.collect_build_tools([])["nvcc"]


def test_cuda_home_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/nowhere/cuda")
    answer = build_tools.collect_build_tools([])
    assert "absent" in answer["cuda_home"] and "absent" in answer["nvcc"]


def test_nothing_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = build_tools.collect_build_tools([str(tmp_path)])
    assert all("absent" in answer[name] for name in ("gcc", "ninja", "uv", "pip"))
    (tmp_path / "pip-25.3.dist-info").mkdir()
    assert build_tools.collect_build_tools([str(tmp_path)])["pip"] == {"known": "25.3"}


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Use an empty home, and an environment without pip settings."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    return monkeypatch


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_pip_settings_override_each_other_as_in_pip(no_pip: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_file(tmp_path / "xdg/pip/pip.conf", "[global]\nindex-url = https://a:b@one.example/simple\ntimeout = 60\n")
    write_file(
        tmp_path / ".pip/pip.conf", "[global]\nextra_index_url =\n    https://x.example/1\n    https://x.example/2\n"
    )
    write_file(tmp_path / ".config/pip/pip.conf", "[install]\nno-deps: true\n; note\n[list]\npre = yes\n")
    write_file(tmp_path / "env/pip.conf", "[global]\nno-deps = false\n--user = 1\nempty =\n")
    no_pip.setenv("PIP_NO_BUILD_ISOLATION", "0")
    no_pip.setenv("PIP_INDEX_URL", "")
    settings = pip_config.collect_pip_settings()
    assert settings.pop("index-url", "").startswith("https://one.example")
    assert settings == {
        "extra-index-url": "https://x.example/1 https://x.example/2",
        "no-deps": "true",
        "user": "1",
        "no-build-isolation": "0",
    }


def test_pip_config_file_replaces_the_users(no_pip: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_file(tmp_path / ".config/pip/pip.conf", "[global]\nuser = 1\n")
    write_file(tmp_path / "mine.conf", "[global]\nno-index = 1\n")
    no_pip.setenv("PIP_CONFIG_FILE", str(tmp_path / "mine.conf"))
    assert "user" not in pip_config.collect_pip_settings() and pip_config.collect_pip_settings()["no-index"] == "1"
    no_pip.setenv("PIP_CONFIG_FILE", os.devnull)
    assert pip_config.collect_pip_settings() == {}


def test_environ_shows_the_allowed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "MASTER_ADDR", "NCCL_UNHEARD_OF"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("NCCL_ALGO", "Ring" * 1000)
    answer = environ.collect_variables()
    assert len(answer["NCCL_ALGO"]) == 500
    assert not {"HF_TOKEN", "WANDB_API_KEY", "MASTER_ADDR", "NCCL_UNHEARD_OF"} & set(answer)
    assert not [
        name for name in environ.ALLOWED_VARIABLES if any(word in name for word in ("TOKEN", "KEY", "SECRET", "PASSW"))
    ]


@pytest.mark.parametrize(
    ("hub_offline", "transformers_offline", "expected"),
    [("1", "", True), ("on", "", True), ("Yes", "", True), ("2", "", False), ("", "TRUE", True), ("0", "1", False)],
)
def test_offline(monkeypatch: pytest.MonkeyPatch, hub_offline: str, transformers_offline: str, expected: bool) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", hub_offline)
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", transformers_offline)
    assert hub.is_offline() is expected


def test_cached_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KERNELS_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("kernels--kernels-community--flash-attn2", "models--kernels-community--vllm-flash-attn3"):
        (tmp_path / "hub" / name / "snapshots/abc").mkdir(parents=True)
    (tmp_path / "hub/kernels--me--unfinished/refs").mkdir(parents=True)
    (tmp_path / "hub/models--Qwen--Qwen3-8B/snapshots/abc").mkdir(parents=True)
    assert hub.collect_hub_cache()["kernels"] == ["kernels-community/flash-attn2", "kernels-community/vllm-flash-attn3"]
