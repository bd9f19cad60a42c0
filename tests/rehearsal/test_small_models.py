"""The small models that rehearsals train, of types whose sizes hang together: each is made, read again, and trained.

If transformers' own defaults make no model, the fields that released checkpoints set are given.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from attncheck.core.results.smoke import deciding_reason, judge_result
from attncheck.rehearsal.watcher.recorder import Recorder
from attncheck.smoke.worker.models import build, shrink, towers
from tests.rehearsal.staging import LABELLED, ForkServer, ask_for_materials, make_materials, rehearse

MAX_SMALL = 30_000_000  # parameters
QSA = {
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [2, 6],
    "eos_token_id": 248044,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
GROUPS_OF_EXPERTS = {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 6, "first_k_dense_replace": 1}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "blenderbot": {},
    "codegen": {},
    "cohere_compass_text": {"num_attention_heads": 16, "rope_parameters": {"full_attention": ROPE}},
    "cwm": {},
    "dbrx": {
        "d_model": 6144,
        "n_heads": 48,
        "n_layers": 40,
        "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    },
    "deepseek_v2": {**GROUPS_OF_EXPERTS, "num_attention_heads": 16, "num_key_value_heads": 16},
    "dots1": {**GROUPS_OF_EXPERTS, "n_routed_experts": 128, "n_shared_experts": 2},
    "emu3": {},
    "falcon_h1": {
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "mamba_d_ssm": 1536,
        "mamba_n_heads": 24,
        "mamba_d_head": 64,
    },
    "granitemoehybrid": {},
    "hrm_text": {},
    "jais2": {},
    "kimi_linear": {},
    "lfm2_moe": {"num_hidden_layers": 6, "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "conv"]},
    "mamba2": {},
    "marian": {},
    "minicpm3": {},
    "mllama": {},
    "nemotron": {"num_key_value_heads": 8},
    "olmo_hybrid": {},
    "qwen3_next": {},
    "qwen4_exp": {"text_config": {"model_type": "qwen4_exp_text", **QSA}},
    "qwen4_exp_text": QSA,
    "xlstm": {},
    "zamba": {},
    "zamba2": {},
    "zaya": {},
}
EVERY_TIME = ("dbrx", "hrm_text", "jais2", "mamba2", "qwen4_exp_text", "zaya")
# What the user is told where transformers 5.17.0's defaults make no model.
REFUSED = {
    "blt": r"it has no decoder sizes",
    "cohere_compass_text": r"cannot build a language model from .*: KeyError: 'full_attention'; correct "
    "its config.json",
    "musicgen": r"refuses the configuration of .*: TypeError: Field 'text_encoder' with value None .*; correct",
    "nemotron": r"cannot build a language model from .*: TypeError: unsupported operand .*; correct its config.json",
    "qwen4_exp": r"cannot build a language model from .*: TypeError: unsupported operand .*; correct its config.json",
}
NIGHTLY = pytest.mark.nightly
# Why the small model of a type is not read again, by its defaults.
_NOT_MADE = """
    blt cohere_compass_text dbrx dots1 gemma4_assistant gemma4_unified_assistant lfm2_moe musicgen
    musicgen_melody nemotron prophetnet qwen4_exp qwen4_exp_text xlnet
"""
NOT_MADE = frozenset(_NOT_MADE.split())


def prepare(folder: Path, model_type: str, fields: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return a folder of materials for a model of a configuration, and the last answer."""
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {model_type}")
    (folder / "configuration").mkdir()
    document = {"model_type": model_type, "is_decoder": True, **fields}
    (folder / "configuration" / "config.json").write_text(json.dumps(document))
    stage = folder / "materials"
    return stage, ask_for_materials(stage, model=str(folder / "configuration"), documents=300)


def read_again(folder: Path) -> Any:
    """Return a folder's model as a job reads it, with all its weights from the folder; only a tower may be left."""
    config = transformers.AutoConfig.from_pretrained(folder)
    is_causal = type(config) in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    auto_class: Any = transformers.AutoModelForCausalLM if is_causal else transformers.AutoModelForImageTextToText
    model, report = auto_class.from_pretrained(folder, output_loading_info=True)
    towers = {name for name in report["unexpected_keys"] if name.startswith(("vision_model.", "multi_modal_"))}
    assert not any({**report, "unexpected_keys": report["unexpected_keys"] - towers}.values()), report
    return model


@pytest.mark.parametrize("name", [n if n in EVERY_TIME else pytest.param(n, marks=NIGHTLY) for n in CHECKPOINTS])
def test_a_model_is_made_and_read_again(name: str, tmp_path: Path) -> None:
    folder, answer = prepare(tmp_path, name, CHECKPOINTS[name])
    assert "answer" in answer, answer
    model = read_again(folder / "model")
    assert sum(parameter.numel() for parameter in model.parameters()) < MAX_SMALL


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - NOT_MADE))
def test_every_type_is_made_and_read_again(name: str, tmp_path: Path) -> None:
    folder, answer = prepare(tmp_path, name, {})
    assert "answer" in answer, answer
    read_again(folder / "model")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_is_one_line(name: str, tmp_path: Path) -> None:
    _, answer = prepare(tmp_path, name, {})
    assert "\n" not in answer["unanswered"] and re.search(REFUSED[name], answer["unanswered"]), answer


def test_a_cut_that_is_refused_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "fit_validators", lambda *arguments: None)
    _, answer = prepare(tmp_path, "zaya", {})
    assert re.fullmatch(r"smoke cannot scale .* down: ValueError: ZAYA currently supports .*", answer["unanswered"])


def test_a_cut_that_does_not_run_is_said() -> None:
    """Uncut the configuration makes a model that runs: the cut is at fault, and what to do is said."""
    source = build.Architecture("small", {"model_type": "llama", "num_hidden_layers": 1})
    model: Any = build.build_model(source, "eager", torch.float32, "cpu", 200, 0, False)
    build.check_cut(source, model)
    model.model.layers[0].mlp.up_proj = torch.nn.Linear(3, 3)
    with pytest.raises(build.Unbuildable, match=r"^smoke cannot scale small down: RuntimeError: .*; --full-model uses"):
        build.check_cut(source, model)


def test_a_model_that_never_runs_is_left_to_the_launch(tmp_path: Path) -> None:
    """Its own launch ends with the same error, which the rehearsal then names."""
    _, answer = prepare(tmp_path, "deepseek_v2", {})  # num_experts_per_tok has no default
    assert "answer" in answer


@pytest.mark.nightly
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_model_is_rehearsed(name: str, server: ForkServer, tmp_path: Path) -> None:
    folder, _ = prepare(tmp_path, name, CHECKPOINTS[name])
    config = transformers.AutoConfig.from_pretrained(folder / "model")
    model = transformers.AutoModelForCausalLM.from_config(config)
    implementation = "sdpa" if type(model)._supports_sdpa else "eager"
    results = rehearse(server, folder, tmp_path / "watch", f"--attn_implementation {implementation}", "", 1, LABELLED)
    answers = {check: (judge_result(result), deciding_reason(result)) for check, result in results.items()}
    assert {answer for answer, _ in answers.values()} == {"pass"}, answers


def test_a_call_of_a_models_part_is_no_call_of_a_model(tmp_path: Path) -> None:
    """The decoder of mllama is its own model, made by `_from_config` as all models are that are watched."""
    folder, _ = prepare(tmp_path, "mllama", {})
    model = read_again(folder / "model").train()
    recorder = Recorder(str(tmp_path))
    for watched in (model.model, model):
        recorder.watch(watched)
    for calls in (1, 2):
        model(input_ids=torch.arange(10).reshape(2, 5) + calls)  # rows that a step has passed already are a second pass
        assert [call["model"] for call in recorder.calls] == [1] * calls and len(recorder.rows) == 2 * calls
        assert "hidden" in recorder.calls[-1] and not recorder.faults


def test_tokens_that_a_framework_embeds_itself_are_known(tmp_path: Path) -> None:
    """As ms-swift's templates of images do: the model gets their embeddings. A tower's pixels are no tokens."""
    folder, _ = prepare(tmp_path, "mllama", {})
    model = read_again(folder / "model").train()
    recorder = Recorder(str(tmp_path))
    recorder.watch(model)
    tokens = torch.arange(10).reshape(2, 5)
    embedded = model.get_input_embeddings()(tokens)
    recorder._keep_embedded(model, (torch.zeros(2, 3, 4, 4),), torch.zeros(2, 5))
    pictured = embedded.clone()
    pictured[:, 1] = 3.0
    for given in (embedded, embedded[:, :3], pictured):
        model(inputs_embeds=given)
    assert recorder.calls[0]["tensors"]["input_ids"].equal(tokens) and not recorder.faults
    assert recorder.rows == [(True, row) for row in tokens.tolist()]
    assert all("input_ids" not in call["tensors"] for call in recorder.calls[1:])


def test_only_placeholders_may_have_embeddings_of_images(tmp_path: Path) -> None:
    folder, _ = prepare(tmp_path, "mllama", {})
    model = read_again(folder / "model").train()
    recorder = Recorder(str(tmp_path))
    recorder.watch(model)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    model.config.image_token_id = 2
    for place in (1, 2):
        given = model.get_input_embeddings()(tokens).detach().clone()
        given[:, place] = 3.0
        model(inputs_embeds=given)
    assert ["input_ids" in call["tensors"] for call in recorder.calls] == [True, False]


def test_heads_are_kept_where_the_width_is_cut(tmp_path: Path) -> None:
    folder, _ = prepare(tmp_path, "minicpm3", {})
    whole = transformers.CONFIG_MAPPING["minicpm3"]()
    config = shrink.decoder_config(transformers.AutoConfig.from_pretrained(folder / "model"))
    assert config.hidden_size % config.num_attention_heads == 0
    for name in ("num_attention_heads", "num_key_value_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        assert getattr(config, name) == getattr(whole, name)


def test_a_rotary_base_of_the_script_is_taken_if_the_configuration_is_guessed(tmp_path: Path) -> None:
    """A base that a script fixes is the model's own or a mistake; no stand-in has it."""
    from attncheck.rehearsal.worker.truth import TruthModel

    ask_for_materials(tmp_path / "made", stand_in_for="mine/Qwen2.5-0.5B")
    names = ("model.rotary_emb.inv_freq",)
    reference = TruthModel(tmp_path / "made" / "model")
    own = {name: dict(reference.model.named_buffers())[name].clone() for name in names}
    steps = torch.arange(0, 2 * own[names[0]].numel(), 2) / (2 * own[names[0]].numel())
    other = {names[0]: 1.0 / 10000.0**steps}
    assert torch.allclose(own[names[0]], 1.0 / towers.OWN_BASE**steps)
    assert reference.compare_frequencies(own, True) == reference.compare_frequencies(other, False) == []
    [text] = reference.compare_frequencies(other, True)
    assert "its rotary base is 10000: " in text and reference.compare_frequencies(other, True) == []
    assert len(reference.compare_frequencies({names[0]: torch.zeros_like(other[names[0]])}, True)) == 1
    assert len(reference.compare_frequencies(other, True)) == 1
    [text] = reference.compare_frequencies({names[0]: other[names[0]].bfloat16()}, False)
    assert "is rounded to torch.bfloat16" in text


@pytest.mark.parametrize("added", [0, 9, -9])
def test_the_reference_has_the_tokens_that_a_launch_adds_or_cuts_off(tmp_path: Path, added: int) -> None:
    """They are in every softmax; without them the loss of a model with random weights is too small."""
    from attncheck.rehearsal.worker.truth import TruthModel

    folder = make_materials(tmp_path) / "model"
    model, job = TruthModel(folder).model, TruthModel(folder).model
    job.resize_token_embeddings(len(job.get_input_embeddings().weight) + added, mean_resizing=False)
    reference = TruthModel(folder)
    weights = {name: parameter.detach() for name, parameter in job.named_parameters()}
    changed = reference.load(weights)
    assert reference.can_load(weights) and not changed
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    logits = [each(tokens).logits for each in (reference.model, job, model)]
    assert torch.equal(logits[0], logits[1]) and (logits[0].shape == logits[2].shape) == (not added)
    losses = [float(each(tokens, labels=tokens).loss) for each in (reference.model, job)]
    assert losses[0] == losses[1]
    parts = {name: value.flatten()[:0] for name, value in weights.items()}  # of a rank that holds none
    parts |= {name: value[:0] for name, value in weights.items() if "embed_tokens" in name}
    assert reference.load(parts) == [] and torch.equal(reference.model(tokens).logits, logits[1])


@pytest.mark.parametrize(("name", "value", "cut"), [("top_k", 50, 50), ("top_k", 6, 4), ("moe_topk", 8, 4)])
def test_the_sampling_of_older_configurations_is_no_number_of_experts(name: str, value: int, cut: int) -> None:
    """Before transformers 5 every configuration has top_k=50, which saving refuses if it is another number."""
    config = SimpleNamespace(num_experts=128, **{name: value})
    shrink._cut_experts(config)
    assert (config.num_experts, getattr(config, name)) == (4, cut)
