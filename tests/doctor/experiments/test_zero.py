"""How a step of DeepSpeed takes accumulated micro-batches: engines of our own, and real releases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.experiments import AccumulationMeasurement
from attncheck.doctor.experiments.worker import zero

HELPERS = ("einops", "hjson", "msgpack", "ninja", "psutil", "py-cpuinfo", "pydantic", "tqdm")  # that DeepSpeed imports


class Engine:
    """An engine that accumulates the micro-batches of `kept`, and no others."""

    def __init__(self, model: Any, optimizer: Any, kept: Iterable[int]) -> None:
        self.module, self.optimizer, self.kept, self.step_count = model, optimizer, set(kept), 0

    def __call__(self, rows: Any) -> Any:
        return self.module(rows)

    def backward(self, loss: Any) -> None:
        if self.step_count in self.kept:
            (loss / zero.MICRO_BATCHES).backward()

    def step(self) -> None:
        self.step_count += 1
        if self.step_count == zero.MICRO_BATCHES:
            self.optimizer.step()


def measure(kept: Iterable[int]) -> AccumulationMeasurement:
    """Return what is measured of such an engine."""

    def initialize(model: Any, optimizer: Any, config: Any) -> tuple[Engine]:
        assert config["zero_optimization"]["stage"] == 2
        return (Engine(model, optimizer, kept),)

    utils = SimpleNamespace(safe_get_full_fp32_param=lambda parameter: parameter.detach().float())
    deepspeed = SimpleNamespace(initialize=initialize, utils=utils)
    return AccumulationMeasurement(2, "", tuple(zero.measure_weights(deepspeed, 2, "")["weights"]))


def test_a_step_that_takes_every_micro_batch() -> None:
    measured = measure(range(zero.MICRO_BATCHES))
    assert measured.weights == (1, 1, 1, 1) and not measured.loses_gradients


@pytest.mark.parametrize(("kept", "weights"), [((3,), (0, 0, 0, 1)), ((0, 3), (1, 0, 0, 1))])
def test_a_step_that_leaves_micro_batches_out(kept: tuple[int, ...], weights: tuple[float, ...]) -> None:
    measured = measure(kept)
    assert measured.weights == weights and measured.loses_gradients


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("release", "lossy"),
    [("0.18.2", {(2, ""): (0, 0, 0, 1), (2, "cpu"): (1, 0, 0, 1)}), ("0.19.0", {})],
)
def test_real_releases(
    release: str, lossy: dict[tuple[int, str], tuple[float, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deepspeedai/DeepSpeed#7718 and PR #7967, in the releases themselves."""
    environment = {**os.environ, "DS_BUILD_OPS": "0"}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path)]
    subprocess.run([*pip, *HELPERS], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", f"deepspeed=={release}"], check=True, env=environment)
    program = (
        "import json, sys, tempfile; from attncheck.doctor.experiments.worker.main import measure_accumulation;"
        "items = list(measure_accumulation(tempfile.mkdtemp())); json.dump(items, sys.stderr)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = json.loads(subprocess.run([sys.executable, "-c", program], stderr=-1, check=True).stderr.splitlines()[-1])
    measured = [AccumulationMeasurement(**item) for _, item in answer]
    assert [(item.stage, item.offload) for item in measured] == list(zero.CONFIGURATIONS)
    found = {(item.stage, item.offload): tuple(item.weights) for item in measured if item.loses_gradients}
    assert found == lossy and all(item.weights for item in measured)
