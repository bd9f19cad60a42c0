"""Models as users have them: a tokenizer that learnt English by byte pairs, weights; cases of launches with them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from attncheck.rehearsal.worker.vocabulary import NOUNS

PACKED = "--packing"
POSITIONS = f"{PACKED} --isolation positions"
END = "<|endoftext|>"
SENTENCES = (
    "The {0} and a {1} are near the {0}.\n{1} {0}\nUser: which {0}?\nAssistant: the {1} of that {0}, by the {1}.\n"
)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Case:
    """A fault in the script, "" for none, and what must be said of it."""

    fault: str
    options: str = ""
    code: str = ""
    pattern: str = ""
    ranks: int = 1
    full_model: bool = False


def make_tokenizer(words: Sequence[str] = tuple(NOUNS.split()[:48]), template: str = "") -> Any:
    """Return a byte-level BPE tokenizer whose merges are learnt from sentences of words; it pads with its eos_token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [END, "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4000, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(
        [SENTENCES.format(word, words[-1 - number]) for number, word in enumerate(words)] * 3, trainer
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = template or None
    return fast


def save_model(folder: Path, template: str = "", **changes: Any) -> Path:
    """Save a model of two layers with its own tokenizer in a folder, and return it."""
    tokenizer = make_tokenizer(template=template)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 8, num_key_value_heads=2, initializer_range=0.1, **{**sizes, **changes}
    )
    config.eos_token_id = config.bos_token_id = tokenizer.eos_token_id
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_data(path: Path, count: int = 400, seed: int = 0) -> Path:
    """Write rows of a question and an answer, as a user's data have them, and return the file."""
    chance, words = random.Random(seed), NOUNS.split()[:48]
    with path.open("w") as stream:
        for number in range(count):
            texts = [" ".join(chance.choices(words, k=chance.randint(*span))) for span in ((12, 30), (20, 60))]
            messages = [{"role": "user", "content": texts[0]}, {"role": "assistant", "content": texts[1]}]
            row = {"id": number, "prompt": texts[0], "completion": f" {texts[1]}", "messages": messages}
            stream.write(f"{json.dumps(row)}\n")
    return path


def change_json(path: Path, **values: Any) -> None:
    """Write values into a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def describe_files(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the digest and the time of the last change of each file and folder of a folder."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in (folder, *folder.rglob("*"))
    }
