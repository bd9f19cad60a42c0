"""`attncheck agree`: planted differences of engine and trainer are named, and healthy pairs have no finding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from attncheck.agree.run import _iter_findings
from attncheck.agree.worker import models, scoring
from attncheck.agree.worker.judging import measure_distance
from attncheck.agree.worker.routes import score_shifted
from attncheck.core import codec
from attncheck.core.agreement import Rollout, Scoring
from attncheck.core.results.agree import AgreedModel
from tests.agree.staging import compare, make_model, names

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


def codes(result: AgreedModel) -> list[str]:
    return [finding.code for finding in _iter_findings(result)]


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


def reverse(tensors: Weights) -> None:
    for name in tensors:
        if "up_proj" in name:
            tensors[name] = tensors[name].flip(0).contiguous()


def unmerge(tensors: Weights) -> None:
    torch.manual_seed(0)
    for name in tensors:
        if "q_proj.weight" in name:
            rows, columns = tensors[name].shape
            tensors[name] = tensors[name] + 0.05 * torch.randn(rows, 4) @ torch.randn(4, columns)


def leave_stale(tensors: Weights) -> None:
    """TRL #5312: the engine keeps the weights that it began with."""
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
    [
        (transpose, "transposed"),
        (reverse, "permuted"),
        (unmerge, "adapter"),
        (leave_stale, "stale"),
        (tie, "tied"),
        (swap, "renamed"),
    ],
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
    model, eager = small(name), "eager"  # sdpa drops gemma2's other soft-cap on both sides
    engine = copy(model, tmp_path, config=config)
    result = compare(model, Rollout(attn_implementation=eager), Scoring(attn_implementation=eager), engine_model=engine)
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
    assert names(cut) == [("engine", "prompt-truncated:left:16")]
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
    assert names(sinks) == [("engine", "parameters:sinks=-10000")]
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


def shift(sample: models.Sample) -> list[float]:
    """ms-swift #8196: log-probabilities of the trainer one place to the left of the engine's."""
    return [*sample.log_probabilities[1:], sample.log_probabilities[0]]


def test_the_own_code_of_a_launch_scores(small: Callable[[str], Path]) -> None:
    """Its scores are judged, not those of the reproduction; tokens that it did not score are left out."""
    model = small("qwen2")
    healthy = compare(model, Rollout(), Scoring(), score=lambda sample: sample.log_probabilities)
    assert healthy.own_code
    assert healthy.distance is not None and healthy.distance.bitwise
    assert codes(healthy) == []
    result = compare(model, Rollout(), Scoring(), score=shift)
    assert names(result) == [("trainer", "one-token-off")]
    assert codes(result) == ["ATN461"]
    assert any("differs from a reproduction" in note for note in result.notes)


@pytest.mark.nightly
def test_a_scorer_that_multiplies_by_the_temperature(small: Callable[[str], Path]) -> None:
    model = small("llama")
    twin = models.load_model(model, torch.float32)

    def score(sample: models.Sample) -> list[float]:
        with torch.no_grad():
            logits = twin(torch.tensor([sample.tokens])).logits[0, len(sample.prompt) - 1 : -1]
        return [float(own) for own in models.gather(logits * 0.8, sample.response)]

    result = compare(model, Rollout(temperature=0.8), Scoring(temperature=0.8), score=score)
    assert names(result) == [("trainer", "another-temperature")]


MIXTRAL = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 160,
    "num_experts_per_tok": 2,
    "bos_token_id": 158,
    "eos_token_id": 157,
    "pad_token_id": 159,
    "max_position_embeddings": 256,
}


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that sends each token to two of eight experts."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("routed")
    torch.manual_seed(0)
    fields: dict[str, Any] = {"initializer_range": 0.2, **MIXTRAL}
    config = AutoConfig.for_model(**fields)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("is_padding", [False, True])
def test_routes_that_padding_shifts(is_padding: bool, routed: Path) -> None:
    """SkyRL #1908, slime #1052: replayed routes are those of other tokens, by a row's padding or by one."""
    model = models.load_model(routed, torch.float32, "eager")
    prompts = models.make_prompts(routed, True, 0)
    batch = Scoring().batch
    widths = [max(len(prompt) for prompt in prompts[start : start + batch]) for start in range(0, len(prompts), batch)]
    padding = {tuple(own): widths[place // batch] - len(own) for place, own in enumerate(prompts)}

    def score(sample: models.Sample) -> list[float]:
        places = padding[sample.prompt] if is_padding else 1
        (scored,) = score_shifted(model, lambda: scoring.score_each(model, [sample]), places)
        return [float(own) for own in models.gather(scored.logits, sample.response)]

    result = compare(routed, Rollout(precision="fp32"), Scoring("fp32", layout="left"), score=score)
    assert names(result) == [("trainer", f"routes-shifted:{'padding' if is_padding else 1}")]
    assert result.routed_layers[1] == 2


@pytest.mark.nightly
def test_routes_of_the_two_sides_are_compared(routed: Path) -> None:
    healthy = compare(routed, Rollout(precision="fp32"), Scoring("fp32", layout="left"))
    assert codes(healthy) == []
    assert (healthy.routes_differ, healthy.routed_layers) == (0.0, (0, 2))

    def roll(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith("gate.weight"):
                parameter.data.copy_(parameter.data.roll(1, 0))

    rolled = compare(routed, Rollout(precision="fp32"), Scoring("fp32", layout="left"), change_engine=roll)
    assert rolled.differs
    assert rolled.routes_differ > 0.5
    assert rolled.routed_layers == (2, 2)


def cut(tensor: torch.Tensor) -> torch.Tensor:
    """FP8 (e5m2) is the first 8 bits of float16; vllm 0.32.0 drops the others on a CPU."""
    return (tensor.half().view(torch.int16) & -256).view(torch.float16).to(tensor.dtype)


@pytest.mark.nightly
def test_engines_of_fewer_bits(small: Callable[[str], Path]) -> None:
    cache_class = DynamicCache

    def keep_fp8(model: Any, keep: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        original, generate = cache_class.update, model.generate

        def update(self: Any, keys: torch.Tensor, values: torch.Tensor, *rest: Any, **options: Any) -> Any:
            keep_so = keep or (lambda own: own.float().to(torch.float8_e4m3fn).to(own.dtype))
            keys, values = map(keep_so, (keys, values))
            return original(self, keys, values, *rest, **options)

        def generate_so(*arguments: Any, **options: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(cache_class, "update", update)
                return generate(*arguments, **options)

        model.generate = generate_so

    cached = compare(small("llama"), Rollout(), Scoring(), change_engine=keep_fp8)
    assert names(cached) == [("engine", "fp8-cache:e4m3")]
    shorter = compare(small("llama"), Rollout(), Scoring(), change_engine=partial(keep_fp8, keep=cut))
    assert names(shorter) == [("engine", "fp8-cache:e5m2-cut")]

    def quantise(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "layers" in name:
                scale = parameter.data.float().abs().amax(1, keepdim=True) / 7
                parameter.data.copy_((parameter.data.float() / scale).round() * scale)

    assert names(compare(small("qwen2"), Rollout(), Scoring(), change_engine=quantise)) == [
        ("engine", "weights-in-int4")
    ]


@pytest.mark.nightly
def test_another_batch_shape_is_the_floor(small: Callable[[str], Path]) -> None:
    """verl #6280: the same trainer scores the same tokens in another batch shape; it is rounding, and no finding."""
    half = compare(small("llama"), Rollout(), Scoring(batch=8))
    full = compare(small("llama"), Rollout(precision="fp32"), Scoring("fp32", batch=8))
    floors = [result.find_distance("trainer") for result in (half, full)]
    assert codes(half) == codes(full) == []
    assert floors[0] is not None and floors[1] is not None
    assert floors[0].rms > 100 * floors[1].rms > 0


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
