"""A trainer that embeds tokens itself: the record has the tokens, if their embeddings are all that the model gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.rehearsal.watcher.recorder import Recorder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_tokens_of_embeddings_are_recorded(tmp_path: Path, shift: float) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.LlamaForCausalLM(config).train()
    recorder = Recorder(str(tmp_path))
    recorder.watch(model)
    tokens = torch.tensor([[1, 2, 3]])
    model(inputs_embeds=model.get_input_embeddings()(tokens) + shift, labels=tokens)
    tensors = recorder.calls[-1]["tensors"]
    assert ("input_ids" in tensors) == (shift == 0.0) != ("inputs_embeds" in tensors)
    assert not recorder.faults
