"""A training loop whose model is of a class that only this file has, with its own configuration.

Documents are packed with their numbers as a mask. PLANTED_FAULT "mask" ignores it in attention, "shift" has each token
predict the one after the next, and "gradients" halves those of the first layer. With "stream" rows are cut from one
stream of documents, and have no mask. With "copy" the class has the names of transformers' Llama and computes the same,
with "scaled" its scores are larger on purpose, and with "built" the script builds transformers' Llama from its own
configuration; "leak" in their names lets documents share a row without positions.
"""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

FAULT = os.environ.get("PLANTED_FAULT", "")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class OwnConfig(PretrainedConfig):
    model_type = "own_gpt"

    def __init__(self, n_embd=2048, n_layer=48, n_head=16, vocab_size=50257, n_positions=1024, **options):
        self.n_embd, self.n_layer, self.n_head = n_embd, n_layer, n_head
        self.vocab_size, self.n_positions = vocab_size, n_positions
        super().__init__(**options)


class OwnBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.n_head
        self.before, self.after = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.qkv, self.out = nn.Linear(config.n_embd, 3 * config.n_embd), nn.Linear(config.n_embd, config.n_embd)
        self.up, self.down = nn.Linear(config.n_embd, 2 * config.n_embd), nn.Linear(2 * config.n_embd, config.n_embd)

    def forward(self, hidden, mask):
        rows, length, size = hidden.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.before(hidden)).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(rows, length, size))
        return hidden + self.down(functional.gelu(self.up(self.after(hidden))))


class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "transformer"

    def __init__(self, config):
        super().__init__(config)
        self.words, self.places = (nn.Embedding(n, config.n_embd) for n in (config.vocab_size, config.n_positions))
        self.layers = nn.ModuleList(OwnBlock(config) for _ in range(config.n_layer))
        self.norm, self.head = nn.LayerNorm(config.n_embd), nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.head

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.1)

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None):
        length = input_ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()[None, None]
        if attention_mask is not None and FAULT != "mask":
            mask = mask & (attention_mask[:, None, :, None] == attention_mask[:, None, None, :])
        positions = torch.arange(length, device=input_ids.device)[None] if position_ids is None else position_ids
        hidden = self.words(input_ids) + self.places(positions)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        logits, loss = self.head(self.norm(hidden)), None
        if labels is not None:
            shift = 2 if FAULT == "shift" else 1
            loss = functional.cross_entropy(logits[:, :-shift].flatten(0, 1), labels[:, shift:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)


class OwnLlama(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.self_attn.scaling *= 2 if "scaled" in FAULT else 1

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None):
        is_apart = position_ids is not None and "leak" not in FAULT
        return super().forward(
            input_ids, position_ids=position_ids if is_apart else None, labels=labels, use_cache=False
        )


def pack(documents, length):
    """Return rows of whole documents."""
    if FAULT == "stream":
        stream = [token for document in documents for token in document]
        return [[stream[start : start + length]] for start in range(0, len(stream), length)]
    rows = [[]]
    for document in documents:
        if sum(map(len, rows[-1])) + len(document) > length:
            rows.append([])
        rows[-1].append(document)
    return rows


def make_batch(row):
    tokens = torch.tensor([[token for document in row for token in document]])
    positions = torch.cat([torch.arange(len(document)) for document in row])[None]
    numbers = torch.cat([torch.full((len(document),), number + 1) for number, document in enumerate(row)])[None]
    if FAULT == "stream":
        return {"input_ids": tokens, "labels": tokens}
    return {
        "input_ids": tokens,
        "attention_mask": numbers,
        "position_ids": positions,
        "labels": tokens.masked_fill(positions == 0, -100),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--data")
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--accum", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    is_copy = "copy" in FAULT or "scaled" in FAULT
    if "built" in FAULT:
        model = LlamaForCausalLM(LlamaConfig(hidden_size=512, num_hidden_layers=8, vocab_size=len(tokenizer)))
    else:
        model = (OwnLlama if is_copy else OwnModel).from_pretrained(options.model).to(DEVICE)
    if options.bf16:
        model = model.to(torch.bfloat16)
    texts = [json.loads(line)["text"] for line in Path(options.data).read_text().splitlines()]
    documents = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    if FAULT == "gradients":
        model.layers[0].qkv.weight.register_hook(lambda gradient: gradient / 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    model.train()
    for step, row in enumerate(pack(documents, options.seq_len)):
        batch = {name: tensor.to(DEVICE) for name, tensor in make_batch(row).items()}
        for name in ("attention_mask", "position_ids")[: 1 + ("leak" in FAULT)] if "built" in FAULT else ():
            batch |= {"use_cache": False}  # with a cache, transformers finds no documents by their positions
            del batch[name]
        (model(**batch).loss / options.accum).backward()
        if (step + 1) % options.accum == 0:
            optimizer.step()
            optimizer.zero_grad()
            model.save_pretrained(options.out)
        if step + 1 == options.accum * options.steps:
            break


main()
