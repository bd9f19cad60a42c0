"""Faults of engine and trainer in the places where a user has them: each is found and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file

from attncheck.agree.worker import models
from attncheck.core.agreement import Rollout, Scoring
from attncheck.core.results.agree import AgreedModel
from tests.agree.staging import compare, make_model, names

SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 1024}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
DROPPING = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
# Architectures that have no small model by their name alone.
OWN: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 1024, "vocab_size": 512},
    "llama3": {**SHAPE, "model_type": "llama", "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 8192}},
    "granite": {**SHAPE, "model_type": "granite", "attention_multiplier": 0.05, "logits_scaling": 8.0},
    "gpt_neox": {**SHAPE, "model_type": "gpt_neox"},
    "olmo2": {**SHAPE, "model_type": "olmo2"},
    "phi3": {**SHAPE, "model_type": "phi3", "pad_token_id": 0},
    "cohere": {**SHAPE, "model_type": "cohere"},
    "starcoder2": {**SHAPE, "model_type": "starcoder2"},
    "qwen3_moe": {**SHAPE, "model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 64},
    "smollm3": {**SHAPE, "model_type": "smollm3"},
}
OWN["dropping"] = {**OWN["gpt2"], **DROPPING}
CLASSES = {"gpt2": "GPT2LMHeadModel", "gpt_neox": "GPTNeoXForCausalLM", "smollm3": "SmolLM3ForCausalLM"}
FP32 = (Rollout(precision="fp32"), Scoring("fp32"))
BF16 = (Rollout(), Scoring())
EAGER = (Rollout(attn_implementation="eager"), Scoring(attn_implementation="eager"))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a small model by its name."""
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            folder, source = tmp_path_factory.mktemp(name), name
            if name in OWN:
                kind = OWN[name]["model_type"]
                default = "".join(map(str.title, kind.split("_"))) + "ForCausalLM"
                config = {**OWN[name], "architectures": [CLASSES.get(kind, default)]}
                (folder / "config.json").write_text(json.dumps(config))
                source = str(folder)
            folders[name] = make_model(folder / "small", source)
        return folders[name]

    return get


def score_with(
    model: Path,
    precision: torch.dtype = torch.bfloat16,
    change: Callable[[Any], object] | None = None,
    trains: bool = False,
    prompt: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda prompt: prompt,
    options: Callable[[torch.Tensor], dict[str, torch.Tensor]] = lambda tokens: {},
    start: int = -1,
    read: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor] = models.gather,
) -> Callable[[models.Sample], Sequence[float]]:
    """Return a trainer's scorer with a fault: in its model, its inputs, or in what it makes of logits."""
    twin = models.load_model(model, precision, "eager")
    if change is not None:
        change(twin)
    twin.train(trains)
    torch.manual_seed(3)

    def score(sample: models.Sample) -> list[float]:
        given = prompt(sample.prompt)
        tokens = torch.tensor([given + sample.response])
        with torch.no_grad():
            logits = twin(tokens, **options(tokens)).logits[0].float()
        first = len(given) + start
        values = read(logits[first : first + len(sample.response)], sample.response)
        return [float(value) for value in values]

    return score


def fill(ending: str, value: float) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith(ending):
                parameter.data.fill_(value)

    return change


def set_in(name: str, value: Any) -> Callable[[Any], None]:
    """Return a change of an attribute of each layer's modules that have it."""

    def change(model: Any) -> None:
        for module in model.modules():
            if hasattr(module, name):
                setattr(module, name, value)

    return change


def set_config(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model.config, name, value)


def scale_rope(folder: Path, value: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        other = models.load_model(folder, torch.bfloat16, "eager", (("rope_scaling", json.dumps(value)),))
        model.model.rotary_emb = other.model.rotary_emb

    return change


def skip_layer(model: Any) -> None:
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:-1], 1


def take_layer(model: Any) -> None:
    model.model.layers[1].load_state_dict(model.model.layers[0].state_dict())


def tie(model: Any) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight


def round_weights(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()


def share_in_turns(model: Any) -> None:
    """Query head h uses key head h % n, and not h // (heads of a group)."""
    heads, shared, size = model.config.num_attention_heads, model.config.num_key_value_heads, model.config.head_dim
    order = sorted(range(heads), key=lambda head: (head % shared, head // shared))
    for layer in model.model.layers:
        queries, output = layer.self_attn.q_proj.weight, layer.self_attn.o_proj.weight
        queries.data = queries.data.view(heads, size, -1)[order].reshape(queries.shape).contiguous()
        output.data = output.data.view(-1, heads, size)[:, order].reshape(output.shape).contiguous()


def rotate_neighbours(model: Any) -> None:
    """Positions rotate values 2i and 2i + 1 of a head, as in models whose weights were not converted."""
    size = model.config.head_dim
    order = [*range(0, size, 2), *range(1, size, 2)]
    for layer in model.model.layers:
        for module in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            weight = module.weight
            weight.data = weight.data.view(-1, size, weight.shape[1])[:, order].reshape(weight.shape).contiguous()


def leave_out_shared_experts(model: Any) -> None:
    for name, module in model.named_modules():
        if name.endswith("shared_experts"):
            module.register_forward_hook(lambda module, given, output: torch.zeros_like(output))


def move_windows(model: Any) -> None:
    """The window is in the odd layers instead of the even ones."""
    config = model.config
    config.layer_types = [*config.layer_types[1:], config.layer_types[0]]
    for layer, kind in zip(model.model.layers, config.layer_types, strict=True):
        layer.attention_type = layer.self_attn.layer_type = kind
        layer.self_attn.is_sliding = kind == "sliding_attention"
        layer.self_attn.sliding_window = config.sliding_window if layer.self_attn.is_sliding else None


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
ENGINES: list[tuple[str, str, tuple[Rollout, Scoring], Callable[[Any], None] | Any]] = [
    ("llama", "weights-in-bf16", FP32, round_weights),
    ("qwen3", "rope-scaling", BF16, YARN),
    ("llama3", "rope-scaling", (Rollout(), Scoring("autocast", layout="left")), None),
    ("llama", "layers-shifted:-1", BF16, take_layer),
    ("llama", "layers:num_hidden_layers", BF16, skip_layer),
    ("qwen3", "tied-embeddings", BF16, tie),
    ("gpt_oss", "parameters:sinks=0", (Rollout(), Scoring(layout="left")), fill(".sinks", 0.0)),
    ("qwen2", "parameters:bias=0", (Rollout(), Scoring("autocast", layout="left")), fill(".bias", 0.0)),
    ("gemma2", "configuration:final_logit_softcapping", EAGER, set_config("final_logit_softcapping", None)),
    ("granite", "softmax-scale", FP32, set_in("scaling", 32**-0.5)),
    ("mistral", "window:sliding_window=25", (Rollout(attn_implementation="eager"), Scoring()), ("sliding_window", 25)),
    ("qwen3", "heads-shared", BF16, share_in_turns),
    ("llama", "rope-pairs", BF16, rotate_neighbours),
    ("deepseek_v3", "modules:mlp.shared_experts", (Rollout(), Scoring(layout="left")), leave_out_shared_experts),
    ("gemma2", 'window:layer_types=["full_attention", "sliding_attention"]', EAGER, move_windows),
    ("cohere", "configuration:logit_scale", BF16, lambda model: setattr(model, "logit_scale", 1.0)),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "cause", "pair", "change"), ENGINES)
def test_an_engine_with_a_fault(
    name: str, cause: str, pair: tuple[Rollout, Scoring], change: Any, small: Callable[[str], Path]
) -> None:
    model = small(name)
    if isinstance(change, tuple):
        change = set_config(*change)
    elif not callable(change):
        change = scale_rope(model, change)
    check(compare(model, *pair, change_engine=change), "engine", cause)


def check(result: AgreedModel, side: str, cause: str) -> None:
    """Check that a cause is named which begins with these words, and explains the difference."""
    ((found, name),) = names(result)
    assert found == side
    assert name.startswith(cause), name
    assert result.causes[0].explained > 0.85


def double_begin(prompt: tuple[int, ...]) -> tuple[int, ...]:
    return (prompt[0], *prompt)


def scaled(logits: torch.Tensor, response: tuple[int, ...]) -> torch.Tensor:
    return models.gather(logits, response) / 0.8


def pad(logits: torch.Tensor, response: tuple[int, ...]) -> torch.Tensor:
    return models.gather(torch.nn.functional.pad(logits, (0, -logits.shape[-1] % 128)), response)


def in_bf16(logits: torch.Tensor, response: tuple[int, ...]) -> torch.Tensor:
    return logits.bfloat16().log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]


def move(logits: torch.Tensor, response: tuple[int, ...]) -> torch.Tensor:
    return torch.cat([torch.zeros(1), models.gather(logits, response)[:-1]])


def drop_last(logits: torch.Tensor, response: tuple[int, ...]) -> torch.Tensor:
    return torch.cat([models.gather(logits, response)[:-1], torch.zeros(1)])


def see_all(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"attention_mask": torch.zeros(1, 1, tokens.shape[1], tokens.shape[1], dtype=torch.bfloat16)}


def count_from_1(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"position_ids": torch.arange(1, tokens.shape[1] + 1)[None]}


FULL = {"precision": torch.float32}
AT_08 = (Rollout(temperature=0.8), Scoring(temperature=0.8))


def lose_chunk(logits: torch.Tensor, tokens: tuple[int, ...]) -> torch.Tensor:
    """The sum of the softmax is over whole chunks of 128 rows: the rest of the vocabulary is lost."""
    own = logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    return own - logits[:, : logits.shape[-1] // 128 * 128].logsumexp(-1)


TRAINERS: list[tuple[str, str, tuple[Rollout, Scoring], dict[str, Any]]] = [
    ("dropping", "dropout", FP32, {**FULL, "trains": True}),
    ("qwen3", "log-probabilities-scaled", AT_08, {"read": scaled}),
    ("granite", "vocabulary-padding", FP32, {**FULL, "read": pad}),
    ("llama", "softmax-in-bf16", FP32, {**FULL, "read": in_bf16}),
    ("mistral", "one-token-off", BF16, {"read": move}),
    ("qwen3", "token-masked:last", BF16, {"read": drop_last}),  # pytorch/rl #3578: EOS is the padding token, masked
    ("mistral", "vocabulary-cut", BF16, {"read": lose_chunk}),
    ("qwen2", "logits-shifted:after", BF16, {"start": 0}),
    ("llama", "not-causal", BF16, {"options": see_all}),
    ("gpt2", "positions-shifted", FP32, {**FULL, "options": count_from_1}),
    ("llama", "bos-doubled", BF16, {"prompt": double_begin}),
    ("mistral", "prompt-truncated:left:30", BF16, {"prompt": lambda prompt: prompt[-30:]}),
    ("qwen2", "prompt-end-missing:3", BF16, {"prompt": lambda prompt: prompt[:-3]}),
    ("gpt_oss", "parameters:sinks=-10000", (Rollout(), Scoring(layout="left")), {"change": fill(".sinks", -1e4)}),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "cause", "pair", "fault"), TRAINERS)
def test_a_trainer_with_a_fault(
    name: str, cause: str, pair: tuple[Rollout, Scoring], fault: dict[str, Any], small: Callable[[str], Path]
) -> None:
    model = small(name)
    check(compare(model, *pair, score=score_with(model, **fault)), "trainer", cause)


def test_dropout_and_masked_tokens_are_named(small: Callable[[str], Path], tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(small("qwen2"), model)
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attention_dropout": 0.1, "pad_token_id": 5}))
    check(compare(model, *BF16, score=score_with(model, trains=True)), "trainer", "dropout")
    masked = score_with(model, options=lambda tokens: {"attention_mask": (tokens != 5).long()})
    check(compare(model, *BF16, score=masked), "trainer", "mask-from-tokens")


def test_rows_of_another_order_and_other_tokens_are_named(small: Callable[[str], Path]) -> None:
    """Batches by length give rows back in another order; the engine's text is tokenised again to other tokens."""
    model = small("qwen3")
    samples: list[models.Sample] = []

    def keep(sample: models.Sample) -> Sequence[float]:
        samples.append(sample)
        return sample.log_probabilities

    compare(model, *BF16, score=keep)
    order = sorted(samples, key=lambda sample: len(sample.tokens))
    moved = dict(zip(samples, order, strict=True))

    def reorder(sample: models.Sample) -> Sequence[float]:
        return (moved[sample].log_probabilities + (0.0,) * models.NEW_TOKENS)[: len(sample.response)]

    check(compare(model, *BF16, score=reorder), "trainer", "rows-reordered")
    cut = [own.log_probabilities[:20] + (0.0,) * (len(own.response) - 20) for own in samples]
    cut_rows = dict(zip(samples, cut, strict=True))
    check(compare(model, *BF16, score=lambda sample: cut_rows[sample]), "trainer", "token-masked:response-cut")
    other = compare(model, *BF16, score=lambda sample: sample.log_probabilities, write=lambda tokens: (7, *tokens[1:]))
    assert names(other) == [("trainer", "other-tokens")]
    shorter = compare(
        model, *BF16, score=lambda sample: sample.log_probabilities[:-1], write=lambda tokens: tokens[:-1]
    )
    assert names(shorter) == []


@pytest.mark.nightly
def test_prompts_of_other_rows(small: Callable[[str], Path]) -> None:
    model = small("qwen2")
    prompts = models.make_prompts(model, True, 0)
    turned = dict(zip(map(tuple, prompts), [*prompts[1:], prompts[0]], strict=True))
    mixed = compare(model, *BF16, change_prompts=lambda prompt: turned[tuple(prompt)])
    check(mixed, "engine", "prompts-mixed")
    block = prompts[-1][:16]
    reused = compare(model, *BF16, change_prompts=lambda prompt: block + prompt[16:] if len(prompt) > 16 else prompt)
    check(reused, "engine", "prefix-of-another-prompt")


@pytest.mark.nightly
def test_left_padding_of_qwen2(small: Callable[[str], Path]) -> None:
    """transformers #29419, OpenRLHF #217: padding on the left without position_ids is rounding, without a mask a fault.

    Positions of RoPE are relative: only absolute ones, as in gpt2, need position_ids.
    """
    model, batch = small("qwen2"), Scoring().batch
    healthy = compare(model, Rollout(), Scoring(layout="left", passes_positions=False))
    assert not healthy.differs
    prompts = models.make_prompts(model, True, 0)
    widths = [max(map(len, prompts[place - place % batch :][:batch])) for place in range(len(prompts))]
    padding = {tuple(own): width - len(own) for own, width in zip(prompts, widths, strict=True)}
    score = score_with(model, prompt=lambda prompt: (0,) * padding[prompt] + prompt)
    check(compare(model, Rollout(), Scoring(layout="left"), score=score), "trainer", "padding-attended")


@pytest.mark.nightly
def test_rates_that_functions_read_are_not_those_of_modules(small: Callable[[str], Path], tmp_path: Path) -> None:
    """TRL's disable_dropout switches modules off (trainer/utils.py): phi3 has them, qwen2 has a rate."""
    for name, rate, is_found in (("phi3", "resid_pdrop", False), ("qwen2", "attention_dropout", True)):
        model = tmp_path / name
        shutil.copytree(small(name), model)
        path = model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), rate: 0.1}))
        check(compare(model, Rollout(), Scoring(dropout="on")), "trainer", "dropout")
        assert compare(model, Rollout(), Scoring(dropout="functional")).differs == is_found


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["rounded", "padded", "tied", "adapter"])
def test_an_export_with_a_fault(kind: str, small: Callable[[str], Path], tmp_path: Path) -> None:
    model = small("llama")
    shutil.copytree(model, tmp_path / "export")
    path, config = tmp_path / "export" / "model.safetensors", tmp_path / "export" / "config.json"
    tensors = load_file(path)
    torch.manual_seed(0)
    fields: dict[str, Any] = {}
    if kind == "rounded":
        tensors = {name: own.half().float() for name, own in tensors.items()}
    elif kind == "tied":
        del tensors["lm_head.weight"]
        fields["tie_word_embeddings"] = True
    elif kind == "adapter":  # merged without its scaling
        for name in tensors:
            if "v_proj" in name:
                rows, columns = tensors[name].shape
                tensors[name] = tensors[name] + 0.04 * torch.randn(rows, 4) @ torch.randn(4, columns)
    else:
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            more = tensors[name].std() * torch.randn(32, tensors[name].shape[1])
            tensors[name] = torch.cat([tensors[name], more])
        fields["vocab_size"] = len(tensors["lm_head.weight"])
    save_file(tensors, path, metadata={"format": "pt"})
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
    pair = FP32 if kind == "rounded" else BF16
    result = compare(model, *pair, engine_model=tmp_path / "export")
    check(result, "engine", "other-model" if kind == "padded" else f"weights:{kind}")
    assert kind != "padded" or "pad the vocabulary" in result.causes[0].text


ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss", "mixtral", "deepseek_v3")
PAIRS = {
    "packed": (Rollout(temperature=0.8), Scoring(temperature=0.8)),
    "trl": (
        Rollout(temperature=0.9),
        Scoring("autocast", layout="left", passes_positions=False, temperature=0.9, batch=8),
    ),
    "openrlhf": (Rollout(), Scoring(layout="left", batch=3)),
    "right": (Rollout(precision="fp32", temperature=1.2), Scoring("fp32", layout="right", temperature=1.2)),
}
REAL = {  # tests of their own show that these differ
    ("gpt_oss", "packed"),  # transformers 5.17 passes no position_ids to its mask
    ("gpt2", "trl"),  # prompts padded on the left without position_ids
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*ARCHITECTURES, *(name for name in OWN if name != "dropping")])
def test_healthy_pairs_of_many_architectures_have_no_finding(name: str, small: Callable[[str], Path]) -> None:
    """Four pairs each of 19 architectures, less two that are known to differ: 74 runs."""
    for kind, pair in PAIRS.items():
        if (name, kind) not in REAL:
            result = compare(small(name), *pair)
            assert not result.differs, kind
            assert (result.causes, result.first_layer) == ((), ""), kind
