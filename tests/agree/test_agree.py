"""`attncheck agree`: planted differences of engine and trainer are named, and healthy pairs have no finding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file

from attncheck.agree.run import _iter_findings
from attncheck.agree.worker import models
from attncheck.agree.worker.judging import measure_distance
from attncheck.core import codec
from attncheck.core.agreement import Rollout, Scoring
from attncheck.core.results.agree import AgreedModel
from tests.agree.staging import compare, make_model

Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            folders[name] = make_model(tmp_path_factory.mktemp(name), name)
        return folders[name]

    return get


def copy(
    model: Path,
    folder: Path,
    config: dict[str, Any] | None = None,
    weights: Callable[[Weights], None] | None = None,
    generation: dict[str, Any] | None = None,
) -> Path:
    """Return a changed copy of a model, as a user's engine may load it."""
    target = folder / "engine"
    shutil.copytree(model, target)
    for name, fields in (("config.json", config), ("generation_config.json", generation)):
        if fields:
            path = target / name
            path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **fields}))
    if weights:
        path = target / "model.safetensors"
        tensors = load_file(path)
        weights(tensors)
        save_file(tensors, path, metadata={"format": "pt"})
    return target


def names(result: AgreedModel) -> list[tuple[str, str]]:
    return [(cause.side, cause.name) for cause in result.causes]


def codes(result: AgreedModel) -> list[str]:
    return [finding.code for finding in _iter_findings(result, {})]


def test_the_distance_of_log_probabilities() -> None:
    actual, expected = torch.tensor([-1.0, -2.0, -3.0, -4.0]), torch.tensor([-1.0, -2.0, -3.3, -3.85])
    distance = measure_distance(actual, expected, (0.2, 0.3))
    assert (distance.tokens, distance.bitwise) == (4, False)
    assert distance.mean == pytest.approx(0.1125)
    assert distance.bias == pytest.approx(0.0375)
    assert distance.largest == pytest.approx(0.3)
    assert distance.beyond_tenth == 0.5
    assert distance.beyond_clip == 0.25
    assert measure_distance(actual, actual, (0.2, 0.2)).bitwise


def transpose(tensors: Weights) -> None:
    for name in tensors:
        if "o_proj" in name:
            tensors[name] = tensors[name].T.contiguous()


def unmerge(tensors: Weights) -> None:
    torch.manual_seed(0)
    for name in tensors:
        if "q_proj.weight" in name:
            rows, columns = tensors[name].shape
            tensors[name] = tensors[name] + 0.05 * torch.randn(rows, 4) @ torch.randn(4, columns)


def leave_stale(tensors: Weights) -> None:
    torch.manual_seed(0)
    for name in tensors:
        if "layers.1.mlp" in name:
            tensors[name] = tensors[name] + 0.02 * torch.randn_like(tensors[name])


def tie(tensors: Weights) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()


def swap(tensors: Weights) -> None:
    keys, values = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "kv")
    tensors[keys], tensors[values] = tensors[values], tensors[keys]


@pytest.mark.parametrize(
    ("change", "kind"),
    [(transpose, "transposed"), (unmerge, "adapter"), (leave_stale, "stale"), (tie, "tied"), (swap, "renamed")],
)
@pytest.mark.nightly
def test_weights_that_the_engine_does_not_have(
    change: Callable[[Weights], None], kind: str, small: Callable[[str], Path], tmp_path: Path
) -> None:
    model = small("llama")
    result = compare(model, Rollout(), Scoring(), engine_model=copy(model, tmp_path, weights=change))
    assert names(result) == [("engine", f"weights:{kind}")]
    assert codes(result) == ["ATN463"]
    assert result.causes[0].closes


@pytest.mark.parametrize(
    ("name", "config", "key"),
    [
        ("mistral", {"sliding_window": None}, "sliding_window"),
        ("mistral", {"sliding_window": 25}, "sliding_window"),
        ("gemma2", {"final_logit_softcapping": 2.0}, "final_logit_softcapping"),
    ],
)
@pytest.mark.nightly
def test_an_engine_with_another_configuration(
    name: str, config: dict[str, Any], key: str, small: Callable[[str], Path], tmp_path: Path
) -> None:
    model = small(name)
    result = compare(model, Rollout(), Scoring(), engine_model=copy(model, tmp_path, config=config))
    assert names(result) == [("engine", f"configuration:{key}")]


ROPE = (("rope_scaling", '{"rope_type": "linear", "factor": 2.0}'),)


@pytest.mark.parametrize(
    ("rollout", "scoring", "expected"),
    [
        (
            Rollout(temperature=0.7, log_probabilities="raw"),
            Scoring(temperature=0.7),
            ("engine", "raw-log-probabilities"),
        ),
        (Rollout(temperature=0.8, top_p=0.9), Scoring(temperature=0.8), ("engine", "truncated-distribution")),
        (Rollout(top_k=20), Scoring(layout="right"), ("engine", "truncated-distribution")),
        (Rollout(temperature=0.9), Scoring(layout="left"), ("trainer", "temperature-not-applied")),
        (Rollout(temperature=0.8), Scoring(temperature=0.64), ("trainer", "temperature-applied-twice")),
        (Rollout(overrides=ROPE), Scoring(), ("engine", "engine-overrides")),
        (Rollout(), Scoring(overrides=ROPE), ("engine", "trainer-overrides")),
    ],
)
@pytest.mark.nightly
def test_settings_of_the_launch(
    rollout: Rollout, scoring: Scoring, expected: tuple[str, str], small: Callable[[str], Path]
) -> None:
    assert names(compare(small("llama"), rollout, scoring)) == [expected]


def test_raw_log_probabilities_are_named(small: Callable[[str], Path]) -> None:
    rollout = Rollout(temperature=0.7, log_probabilities="raw")
    result = compare(small("qwen2"), rollout, Scoring(temperature=0.7))
    assert names(result) == [("engine", "raw-log-probabilities")]
    assert codes(result) == ["ATN463"]
    assert codec.read(AgreedModel, codec.to_plain(result)) == result


@pytest.mark.nightly
def test_what_an_engine_is_given_and_returns(small: Callable[[str], Path]) -> None:
    model = small("llama")
    doubled = compare(model, Rollout(), Scoring(), change_prompts=lambda prompt: [prompt[0], *prompt])
    assert names(doubled) == [("engine", "bos-doubled")]
    missing = compare(model, Rollout(), Scoring(), change_prompts=lambda prompt: prompt[1:])
    assert names(missing) == [("engine", "bos-missing")]
    cut = compare(model, Rollout(), Scoring(), change_prompts=lambda prompt: prompt[-16:])
    assert names(cut) == [("engine", "prompt-truncated:16")]
    shifted = compare(
        model,
        Rollout(),
        Scoring(),
        change_output=lambda sample: replace(
            sample, log_probabilities=(*sample.log_probabilities[1:], sample.log_probabilities[0])
        ),
    )
    assert names(shifted) == [("engine", "one-token-off")]


class PaddedHead(torch.nn.Module):
    """A head whose vocabulary is padded by rows of zeros."""

    def __init__(self, head: Any) -> None:
        """Wrap a model's head."""
        super().__init__()
        self.weight = head.weight
        self.head = head

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return logits (…, vocabulary + 32)."""
        return torch.nn.functional.pad(self.head(states), (0, 32))


@pytest.mark.nightly
def test_features_that_an_engine_lacks(small: Callable[[str], Path], tmp_path: Path) -> None:
    def pad(model: Any) -> None:
        model.lm_head = PaddedHead(model.lm_head)
        rows = torch.nn.functional.pad(model.model.embed_tokens.weight.data, (0, 0, 0, 32))
        model.model.embed_tokens = torch.nn.Embedding.from_pretrained(rows)

    def leave_sinks(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith(".sinks"):
                parameter.data.fill_(-1e4)

    assert names(compare(small("llama"), Rollout(), Scoring(), change_engine=pad)) == [("engine", "vocabulary-padding")]
    sinks = compare(small("gpt_oss"), Rollout(), Scoring(layout="left"), change_engine=leave_sinks)
    assert names(sinks) == [("engine", "sinks")]
    model = small("qwen2")
    engine = copy(model, tmp_path, generation={"repetition_penalty": 1.1})
    assert names(compare(model, Rollout(), Scoring(), engine_model=engine)) == [("engine", "sampling-defaults")]


@pytest.mark.nightly
def test_packed_documents_that_attend_to_each_other(small: Callable[[str], Path]) -> None:
    """gpt_oss of transformers 5.17 passes no position_ids to its mask: eager attention does not separate documents."""
    result = compare(small("gpt_oss"), Rollout(), Scoring(layout="packed"))
    assert names(result) == [("trainer", "packed-documents-leak")]
    assert codes(result) == ["ATN461"]


@pytest.mark.nightly
def test_padding_that_positions_count(tmp_path: Path) -> None:
    """TRL passes no position_ids with prompts padded on the left: gpt2's positions are absolute."""
    config = {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 1024, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["GPT2LMHeadModel"]}))
    model = make_model(tmp_path / "small", str(tmp_path))
    result = compare(model, Rollout(), Scoring(layout="left", passes_positions=False))
    assert names(result) == [("trainer", "padding-counted-as-positions")]
    assert codes(compare(model, Rollout(), Scoring(layout="left"))) == []


def test_a_16_bit_engine_and_a_float32_trainer_are_a_note(small: Callable[[str], Path]) -> None:
    result = compare(small("llama"), Rollout(), Scoring("fp32"))
    assert not result.differs
    assert codes(result) == ["ATN462"]


HEALTHY = [
    ("llama", Rollout(precision="fp32", temperature=0.8), Scoring("fp32", layout="left", temperature=0.8)),
    ("llama", Rollout(temperature=0.7), Scoring(temperature=0.7)),
    ("qwen2", Rollout(temperature=1.2), Scoring("autocast", layout="left", passes_positions=False, temperature=1.2)),
    ("qwen2", Rollout(), Scoring(layout="right", batch=2)),
    ("qwen3", Rollout(precision="fp16"), Scoring("fp16")),
    ("qwen3", Rollout(temperature=0.6), Scoring("autocast", divides_float32=False, temperature=0.6)),
    ("mistral", Rollout(), Scoring()),
    ("mistral", Rollout(precision="fp32"), Scoring("fp32", layout="left")),
    ("gemma2", Rollout(), Scoring()),
    ("gemma2", Rollout(precision="fp32"), Scoring("fp32", layout="right")),
    ("gemma3", Rollout(), Scoring(layout="left", passes_positions=False)),
    ("mixtral", Rollout(), Scoring()),
    ("gpt_oss", Rollout(), Scoring(layout="left")),
    ("deepseek_v3", Rollout(), Scoring(layout="left")),
    ("gpt_oss", Rollout(precision="fp32"), Scoring("fp32", layout="right", batch=3)),
]


@pytest.mark.parametrize(("name", "rollout", "scoring"), HEALTHY)
@pytest.mark.nightly
def test_healthy_pairs_have_no_finding(
    name: str, rollout: Rollout, scoring: Scoring, small: Callable[[str], Path]
) -> None:
    result = compare(small(name), rollout, scoring)
    assert codes(result) == []
    assert not result.causes
    assert result.first_layer == ""


def test_healthy_packed_rows_have_no_finding(small: Callable[[str], Path]) -> None:
    result = compare(small("qwen2"), Rollout(temperature=0.9), Scoring("autocast", temperature=0.9))
    assert codes(result) == []
    assert result.layers == 3
    assert result.kl_tokens == 256
    assert 0 < result.kl < 0.01
    assert [distance.of for distance in result.distances] == ["both", "engine", "trainer"]


def test_prompts_are_of_unlike_lengths_and_begin_with_bos(small: Callable[[str], Path]) -> None:
    model = small("qwen2")
    prompts = models.make_prompts(model, True, 0)
    assert len(prompts) == models.PROMPTS
    assert len({len(prompt) for prompt in prompts}) > 5
    assert {prompt[0] for prompt in prompts} == {models.materials_begin(model)}
