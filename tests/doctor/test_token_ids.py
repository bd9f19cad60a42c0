"""The numbers of tokens are read from a model's files; an id without a row breaks the model, and the fix fixes it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Known
from attncheck.core.model import Model
from attncheck.doctor.probes.model import read_model

CONFIG = {"model_type": "llama", "vocab_size": 12, "pad_token_id": 12, "eos_token_id": [2, 13], "bos_token_id": -1}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": 0, "content": "<unk>"}, {"id": 2, "content": "</s>"}, {"id": 11, "content": "<tool>"}],
    "model": {"type": "BPE", "vocab": {"<unk>": 0, "a": 1, "</s>": 2, "b": 3}},
}


def read_tokens(folder: Path, settings: dict[str, Any], **files: Any) -> Model:
    """Return the model in `folder`, whose tokenizer_config.json holds `settings`, with further files by stem."""
    written = {"config": CONFIG, "tokenizer_config": settings, **files}
    for name, document in written.items():
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    model = read_model(str(folder))
    assert isinstance(model, Known)
    return model.value


def test_ids_of_the_configuration_and_of_generation_are_read(tmp_path: Path) -> None:
    model = read_tokens(tmp_path, {}, generation_config={"eos_token_id": 7})
    assert model.vocab_size == Known(12)
    assert model.token_ids == {
        "config.json: pad_token_id": (12,),
        "config.json: eos_token_id": (2, 13),
        "generation_config.json: eos_token_id": (7,),
    }


def test_special_tokens_have_their_numbers(tmp_path: Path) -> None:
    model = read_tokens(tmp_path, {"pad_token": "<unk>", "eos_token": "</s>", "bos_token": "a"}, tokenizer=TOKENIZER)
    assert isinstance(model.tokenizer, Known)
    tokenizer = model.tokenizer.value
    assert tokenizer.token_ids == {"pad_token": 0, "eos_token": 2}
    assert (tokenizer.added_token, tokenizer.added_token_id) == (Known("<tool>"), Known(11))
    assert tokenizer.appended == {}, "every token is in the vocabulary"


def test_a_token_of_no_vocabulary_is_appended(tmp_path: Path) -> None:
    model = read_tokens(tmp_path, {"pad_token": "[PAD]", "eos_token": "</s>"}, tokenizer=TOKENIZER)
    assert isinstance(model.tokenizer, Known)
    assert model.tokenizer.value.appended == {"pad_token": 12}


@pytest.mark.parametrize("text", ["", "{", '{"added_tokens": {', '{"added_tokens": [{"id": "x"}, 3, {}]}', "[" * 9999])
def test_a_damaged_tokenizer_gives_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    model = read_tokens(
        tmp_path, {"pad_token": "[PAD]", "added_tokens_decoder": {"x": {}, "-1": 3, "4": {"content": 5}}}
    )
    assert isinstance(model.tokenizer, Known)
    assert not model.tokenizer.value.appended and not isinstance(model.tokenizer.value.added_token_id, Known)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed here")
def test_an_id_without_a_row_breaks_the_model_and_resizing_fixes_it() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: Any = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=12, **sizes))
    padded = torch.tensor([[1, 2, 12]])
    with pytest.raises(IndexError):
        model(input_ids=padded)
    model.resize_token_embeddings(13)
    assert model(input_ids=padded).logits.shape[-1] == 13
