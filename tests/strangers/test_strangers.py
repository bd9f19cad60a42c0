"""Faults of other people's lists: each is found and named in its broken half, and nothing is said about its fixed half.

The lists: TrainCheck's (OSDI 2025, `OrderLab/TrainCheck-Evaluation-Workloads`), NVIDIA/Megatron-LM#7452, and threads of
2025 and 2026. Each case (`cases/`) is a reproduction of our own; its docstring cites the place. docs/found-bugs.md has
the figures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attncheck.core.results.smoke import CheckResult, deciding_reason, judge_result
from tests.rehearsal.staging import ForkServer, make_materials, rehearse
from tests.smoke.multimodal_configs import CONFIGS
from tests.strangers.cases import find_case
from tests.strangers.pairs import OPEN, PAIRS, SIZES, Pair

SCRIPT = Path(__file__).parent / "train.py"
Stages = dict[str, Path]
NAMES = [pytest.param(name, marks=[pytest.mark.nightly] * (not pair.is_quick)) for name, pair in PAIRS.items()]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def models() -> Stages:
    """Return the folders of materials by the model's type, empty at first."""
    return {}


def prepare(models: Stages, pair: Pair, factory: pytest.TempPathFactory) -> Path:
    """Return the materials of a pair's model, made once."""
    if pair.model not in models:
        job = factory.mktemp("job")
        (job / "config.json").write_text(json.dumps((CONFIGS | SIZES).get(pair.model, {"model_type": pair.model})))
        name = str(job) if pair.model != "llama" else pair.model
        models[pair.model] = make_materials(factory.mktemp(pair.model), model=name)
    return models[pair.model]


def describe(results: dict[str, CheckResult], verdicts: tuple[str, ...]) -> dict[str, str]:
    """Return what is said by each check with one of these verdicts."""
    return {
        name: "\n".join((deciding_reason(result), *result.violations, *result.warnings))
        for name, result in results.items()
        if judge_result(result) in verdicts
    }


@pytest.mark.parametrize("half", ["broken", "fixed"])
@pytest.mark.parametrize("name", NAMES)
def test_a_strangers_fault(
    name: str, half: str, server: ForkServer, models: Stages, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    pair = PAIRS[name]
    folder = prepare(models, pair, tmp_path_factory)
    options = f"--case {name}"
    results = rehearse(
        server, folder, tmp_path / "watch", options, half, pair.ranks, pair.objective, pair.steps, SCRIPT
    )
    told = describe(results, ("fail", "warn"))
    if half == "fixed":
        assert describe(results, ("fail",)) == {} and pair.check not in told, told
    else:
        assert pair.check in told, describe(results, ("fail", "warn", "skipped", "pass"))
        assert re.search(pair.pattern, told[pair.check]), told


def test_each_case_cites_where_its_fault_was_met() -> None:
    for name in (*PAIRS, *OPEN):
        assert re.search(r"TrainCheck \S+-\w+|\w+/[\w.-]+#\d+", find_case(name).__doc__ or ""), name
