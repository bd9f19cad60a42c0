"""Engines that attncheck drives: SGLang by its interface, and what is left of one that fails or is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from attncheck.agree.worker.engines import SglangEngine, VllmEngine
from attncheck.core.agreement import Rollout, Scoring
from tests.agree import sglang_stand_in, vllm_stand_in
from tests.agree.staging import compare, make_model, names
from tests.conftest import Run, all_processes_gone, find_marked_processes, without_progress


def test_sglang_by_its_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of the same signature computes: its log-probabilities are those before top_p, unless they are raw."""
    monkeypatch.setitem(sys.modules, "sglang", sglang_stand_in)
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "")  # restored afterwards
    model = make_model(tmp_path, "qwen2")
    rollout = Rollout("sglang", temperature=0.8, top_p=0.9)
    healthy = compare(model, rollout, Scoring(temperature=0.8), make_engine=SglangEngine)
    assert names(healthy) == []
    assert not healthy.differs
    assert healthy.engine_version == "sglang 0.5.23"
    raw = Rollout("sglang", temperature=0.8, log_probabilities="raw")
    result = compare(model, raw, Scoring(temperature=0.8), make_engine=SglangEngine)
    assert names(result) == [("engine", "raw-log-probabilities")]


def test_vllm_by_its_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its floor is measured by scoring responses as prompts, if the sampling changes no log-probability."""
    monkeypatch.setitem(sys.modules, "vllm", vllm_stand_in)
    monkeypatch.setattr(os, "environ", os.environ.copy())  # the engine sets variables
    model = make_model(tmp_path, "qwen2")
    healthy = compare(model, Rollout("vllm"), Scoring(), make_engine=VllmEngine)
    assert names(healthy) == []
    assert healthy.engine_version == "vllm 0.32.0"
    floor = healthy.find_distance("engine")
    assert floor is not None and floor.rms < healthy.limit and floor.tokens > 40
    raw = compare(
        model,
        Rollout("vllm", temperature=0.8, log_probabilities="raw"),
        Scoring(temperature=0.8),
        make_engine=VllmEngine,
    )
    assert names(raw) == [("engine", "raw-log-probabilities")]
    assert raw.find_distance("engine") is not None
    truncated = compare(model, Rollout("vllm", top_k=5), Scoring(), make_engine=VllmEngine)
    assert truncated.find_distance("engine") is None


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_an_engine_that_is_not_installed_is_one_line(attncheck: Run, name: str) -> None:
    done = attncheck("agree", "llama", "--engine", name)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines() == [
        f"attncheck: llama: {name} is not installed: install it, or pass --engine transformers"
    ]


BROKEN = """\
__version__ = "0.32.0"
class LLM:
    def __init__(self, **options):
        raise RuntimeError("Engine core initialization failed. See root cause above.")
"""
SLOW = """\
import os, subprocess, sys, time
__version__ = "0.32.0"
class LLM:
    def __init__(self, **options):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        open(os.environ["STARTED"], "w").close()
        time.sleep(300)
"""


def write_vllm(folder: Path, text: str) -> dict[str, str]:
    """Write a package in the place of vllm; return the environment of a command that finds it."""
    for path, content in (
        ("vllm/__init__.py", text),
        ("vllm-0.32.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n"),
    ):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(content)
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_an_engine_that_cannot_start_is_exit_3_with_its_own_error(attncheck: Run, tmp_path: Path) -> None:
    done = attncheck("agree", "llama", "--engine", "vllm", env=write_vllm(tmp_path / "packages", BROKEN))
    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 1
    assert "Engine core initialization failed" in done.stderr


def test_ctrl_c_leaves_no_engine_behind(tmp_path: Path, marker: str) -> None:
    started, scratch = tmp_path / "started", tmp_path / "scratch"
    scratch.mkdir()
    environment = {**write_vllm(tmp_path / "packages", SLOW), "STARTED": str(started), "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "attncheck", "agree", "llama", "--engine", "vllm"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 120
    while not started.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(find_marked_processes(marker)) >= 3  # attncheck, its worker, what the engine started
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert without_progress(stderr).splitlines() == ["attncheck: interrupted; nothing is left running"]
    assert all_processes_gone(marker)
    assert not list(scratch.glob("attncheck-*"))
