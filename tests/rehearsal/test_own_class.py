"""Scripts whose model is of a class of their own: the job's process answers for it, and the judge imports no code."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from attncheck.core import codec
from attncheck.core.rehearsal import Objective
from attncheck.core.results.smoke import judge_result
from attncheck.rehearsal.execution import list_noted
from attncheck.rehearsal.watcher import towers
from attncheck.rehearsal.watcher.parameters import read_frequencies
from attncheck.rehearsal.worker import answering, reading
from attncheck.rehearsal.worker.checks import documents
from attncheck.rehearsal.worker.truth import TruthModel
from tests.rehearsal.staging import SCRIPTS, ForkServer, judge, list_failures, make_materials, nightly

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
        nightly("", "--bf16", "", ""),
        nightly("mask", "", "ATN432", "depend on the rest of their batch"),
        ("mask", "--bf16", "ATN432", "layers.0"),
        nightly("shift", "", "ATN433", "shift"),
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
    assert list_noted(str(tmp_path), "class") == ["OwnModel"]
    asked = ("batch", "documents", "update", "loss", "gradients")
    assert code or {judge_result(results[name]) for name in asked} == {"pass"}, results


def test_rows_of_a_stream_are_no_error(server: ForkServer, stages: dict[int, Path], tmp_path: Path) -> None:
    watch = run(server, stages, tmp_path, "stream", "--accum 4")
    results = judge(stages[0], watch, replace(OBJECTIVE, is_documented=False))
    assert not list_failures(results)
    assert documents.AS_STREAM in results["documents"].warnings[0]


@pytest.mark.parametrize(
    ("fault", "name", "text", "warned"),
    [
        ("copy", "", "", ""),
        nightly("copy leak", "", "layers.0.self_attn", ""),
        (
            "scaled",
            "OwnLlama",
            "",
            "OwnLlama computes other values than transformers' LlamaForCausalLM .*layers.0.self",
        ),
        nightly("scaled leak", "OwnLlama", "depend on the rest of their batch", ""),
    ],
)
def test_a_copy_of_a_known_class_is_its_own_reference_if_it_computes_other_values(
    server: ForkServer, stages: dict[int, Path], tmp_path: Path, fault: str, name: str, text: str, warned: str
) -> None:
    watch = run(server, stages, tmp_path, fault)
    results = judge(stages[0], watch, OBJECTIVE)
    failures = list_failures(results)
    assert list(failures) == (["ATN432"] if text else []) and text in failures.get("ATN432", ""), failures
    assert list_noted(str(tmp_path), "class") == [name] * bool(name)
    assert text or judge_result(results["documents"]) == ("warn" if warned else "pass")
    assert re.search(warned, str(results["documents"].warnings))


@pytest.mark.parametrize("fault", ["built", "built leak"])
def test_a_model_that_a_script_builds_is_cut_and_is_its_own_reference(
    fault: str, server: ForkServer, stages: dict[int, Path], tmp_path: Path
) -> None:
    """The judge cannot make it, although its class is transformers'; its sizes are those of a small model."""
    watch = run(server, stages, tmp_path, fault)
    results = judge(stages[0], watch, OBJECTIVE)
    failures = list_failures(results)
    assert list(failures) == ["ATN432"] * ("leak" in fault), failures
    assert list_noted(str(tmp_path), "class") == ["LlamaForCausalLM"]
    assert list_noted(str(tmp_path), "sizes")[0].startswith("LlamaForCausalLM ")
    asked = ("batch", "update", "loss", "gradients")
    answers = {name: judge_result(results[name]) for name in asked}
    assert failures or {*answers.values()} == {"pass"}, answers


def test_a_process_that_computes_without_the_other_ranks_waits_for_none() -> None:
    group = dist.distributed_c10d
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())  # type: ignore[attr-defined]
    try:
        with answering.without_ranks():
            assert not dist.is_initialized()
            with pytest.raises(NotImplementedError, match="other ranks"):
                dist.all_reduce(torch.ones(1), group=group.GroupMember.WORLD)
        dist.all_reduce(torch.ones(1))
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_without_an_answer_nothing_is_an_error(server: ForkServer, stages: dict[int, Path], tmp_path: Path) -> None:
    watch = run(server, stages, tmp_path, "mask")
    whole = (watch / reading.REFERENCE).read_bytes()
    torch.save({}, watch / reading.REFERENCE)
    results = judge(stages[0], watch, OBJECTIVE)
    assert "only the job's own process" in results["documents"].reason and not list_failures(results)
    (watch / reading.REFERENCE).unlink()
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


def test_scaled_positions_of_one_kind_of_layers_bring_their_factor() -> None:
    """As the job's own configuration gives them; Gemma 3 has frequencies and a factor for each kind of layers."""
    import transformers

    if not hasattr(transformers.Gemma3TextConfig(), "rope_parameters"):
        pytest.skip("before transformers 5 each kind of layers has its own module")
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32}
    config = transformers.Gemma3TextConfig(**sizes, layer_types=["sliding_attention", "full_attention"])
    reference = transformers.Gemma3ForCausalLM(config)
    scaled = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 64}
    config.rope_parameters = {**(config.rope_parameters or {}), "full_attention": scaled}
    model = transformers.Gemma3ForCausalLM(config)
    truth: Any = SimpleNamespace(model=reference)
    assert TruthModel.compare_frequencies(truth, read_frequencies(model), False) == []
    kinds = ("full_attention", "sliding_attention")
    own, right = (
        [getattr(made.model.rotary_emb, f"{kind}_attention_scaling") for kind in kinds] for made in (model, reference)
    )
    assert own == right and own[0] > own[1] == 1.0
