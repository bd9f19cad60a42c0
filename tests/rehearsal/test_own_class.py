"""Scripts whose model is of a class of their own: the job's process answers for it, and the judge imports no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attncheck.core import codec
from attncheck.core.rehearsal import Objective
from attncheck.core.results.smoke import judge_result
from attncheck.rehearsal.execution import name_own_class
from attncheck.rehearsal.watcher import towers
from attncheck.rehearsal.worker import judging
from tests.rehearsal.staging import SCRIPTS, ForkServer, judge, list_failures, make_materials

SCRIPT = SCRIPTS / "own_class.py"
OBJECTIVE = Objective("labelled", ("batch_tokens",), "the test")


def run(server: ForkServer, stages: dict[int, Path], folder: Path, fault: str, options: str = "") -> Path:
    """Run the script with a fault, and return the folder of its records."""
    if 0 not in stages:
        stages[0] = make_materials(folder / "stage")
    stage, watch = stages[0], folder / "watch"
    watch.mkdir()
    message = {"stage": str(stage), "objective": codec.to_plain(OBJECTIVE), "full_model": False, "real_data": False}
    (folder / "questions.json").write_text(json.dumps(message))
    rows = stage / "data" / "train.jsonl"
    argv = [str(SCRIPT), "--model", str(stage / "model"), "--data", str(rows), "--out", str(folder / "out")]
    environ = {
        "PLANTED_FAULT": fault,
        "ATTNCHECK_JUDGING": str(folder / "questions.json"),
        "ATTNCHECK_ROWS": str(rows),
        "ATTNCHECK_MODEL": str(stage / "model"),
        "ATTNCHECK_SETTINGS": "{}",
        "ATTNCHECK_WATCH": str(watch),
    }
    sizes = "--lr 5e-3 --accum 2 --seq-len 256 --steps 4"
    ended = server.run([*argv, *sizes.split(), *options.split()], environ, watch, 1)
    assert ended["statuses"] == [0], ended
    return watch


@pytest.mark.parametrize(
    ("fault", "options", "code", "text"),
    [
        ("", "", "", ""),
        ("", "--bf16", "", ""),
        ("mask", "", "ATN432", "depend on the rest of their batch"),
        ("mask", "--bf16", "ATN432", "layers.0"),
        ("shift", "", "ATN433", "shift"),
        ("gradients", "", "ATN434", "layers.0.qkv.weight"),
    ],
)
def test_a_class_of_the_script_is_its_own_reference(
    server: ForkServer, stages: dict[int, Path], tmp_path: Path, fault: str, options: str, code: str, text: str
) -> None:
    watch = run(server, stages, tmp_path, fault, options)
    results = judge(stages[0], watch, OBJECTIVE)
    failures = list_failures(results)
    assert list(failures) == ([code] if code else []), failures
    assert text in failures.get(code, "")
    assert name_own_class(str(tmp_path)) == "OwnModel"
    asked = ("batch", "documents", "update", "loss", "gradients")
    assert code or {judge_result(results[name]) for name in asked} == {"pass"}, results


def test_without_an_answer_nothing_is_an_error(server: ForkServer, stages: dict[int, Path], tmp_path: Path) -> None:
    watch = run(server, stages, tmp_path, "mask")
    whole = (watch / judging.REFERENCE).read_bytes()
    torch.save({}, watch / judging.REFERENCE)
    results = judge(stages[0], watch, OBJECTIVE)
    assert "only the job's own process" in results["documents"].reason and not list_failures(results)
    (watch / judging.REFERENCE).unlink()
    (tmp_path / "watch-stage").rename(tmp_path / "earlier-stage")
    results = judge(stages[0], watch, OBJECTIVE)
    assert "did not compute" in results["documents"].reason and not list_failures(results)
    assert whole


def test_sizes_under_other_names_are_cut() -> None:
    class Config:
        n_embd, n_layer, n_head, vocab_size, hidden_size = 2048, 48, True, 50257, 512
        vision_config: Any = None

    config = Config()
    assert towers.cut_sizes(config, {"n_embd": 64, "n_layer": 2, "n_head": 4}) == "n_embd,n_layer"
    assert (config.n_embd, config.n_layer, config.vocab_size, config.hidden_size) == (64, 2, 50257, 512)
