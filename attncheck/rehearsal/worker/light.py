"""Makes and reads what `labels` needs without torch, and without transformers if possible: their imports take seconds.

The model is a small qwen2, because labels do not depend on the model.
"""

import array
import json
import math
import random
import struct
from pathlib import Path
from typing import Any

from attncheck.rehearsal.worker import materials

LAYERS, HEADS, HEAD_DIM, INNER = 2, 4, 8, 64
SPARE_TOKENS = 64  # rows of the embedding for tokens that a framework adds
NAMES = ("eos_token", "bos_token", "pad_token")  # as tokenizer_config.json names them


class FileTokenizer:
    """A tokenizer's files, with the part of transformers' interface that reading labels takes."""

    def __init__(self, folder: Path) -> None:
        """Read a folder. Raises `OSError`, `ValueError` or `KeyError` if its files do not say enough."""
        from tokenizers import Tokenizer

        settings = json.loads((folder / "tokenizer_config.json").read_text())
        self._tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text())
        texts = {name: settings[name] for name in NAMES if settings.get(name)}
        ids = {
            name: self._tokenizer.token_to_id(text["content"] if isinstance(text, dict) else text)
            for name, text in texts.items()
        }
        self.eos_token_id, self.bos_token_id, self.pad_token_id = (ids.get(name) for name in NAMES)
        if self.eos_token_id is None:
            raise KeyError("eos_token")
        self.all_special_ids = {*self._tokenizer.get_added_tokens_decoder(), *ids.values()}

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        """Return the tokens of a text."""
        return {"input_ids": self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Return the text of tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder's files, or what transformers loads if they do not say enough."""
    from attncheck.rehearsal.worker import own_model

    try:
        return FileTokenizer(folder)
    except (OSError, ValueError, KeyError):
        return own_model.load_tokenizer("the model", folder)


def make_tokenizer(folder: Path) -> FileTokenizer:
    """Save the synthetic tokenizer, and return it."""
    folder.mkdir()
    materials.make_word_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": materials.UNKNOWN,
        "eos_token": materials.END,
        "bos_token": materials.BEGIN,
        "pad_token": materials.PAD,
        "model_max_length": materials.MAX_TOKENS,
        "chat_template": materials.CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return FileTokenizer(folder)


def save_model(tokenizer: Any, seed: int, folder: Path) -> None:
    """Save a model for a tokenizer, with random weights in float32."""
    size, rows = HEADS * HEAD_DIM, len(tokenizer) + SPARE_TOKENS
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "torch_dtype": "float32",
        "hidden_size": size,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": materials.MAX_TOKENS,
        "vocab_size": rows,
        "tie_word_embeddings": True,
        **{f"{name}_id": getattr(tokenizer, f"{name}_id") for name in NAMES},
    }
    (folder / "config.json").write_text(json.dumps(config))
    layer: dict[str, tuple[int, ...]] = {f"self_attn.{name}_proj.weight": (size, size) for name in "qkvo"}
    layer |= {f"self_attn.{name}_proj.bias": (size,) for name in "qkv"}
    layer |= {f"mlp.{name}_proj.weight": (INNER, size) for name in ("gate", "up")}
    layer |= {"mlp.down_proj.weight": (size, INNER), "input_layernorm.weight": (size,)}
    layer |= {"post_attention_layernorm.weight": (size,)}
    shapes = {f"layers.{number}.{name}": shape for number in range(LAYERS) for name, shape in layer.items()}
    shapes |= {"embed_tokens.weight": (rows, size), "norm.weight": (size,)}
    _save_safetensors({f"model.{name}": shape for name, shape in shapes.items()}, seed, folder / "model.safetensors")


def _save_safetensors(shapes: dict[str, tuple[int, ...]], seed: int, path: Path) -> None:
    """Save tensors of random numbers: the header's length, the header, the values (safetensors' documented format)."""
    chance = random.Random(seed)
    some = array.array("f", (chance.gauss(0, 0.1) for _ in range(1000)))  # repeated, because they only must differ
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    stop = 0
    for name, shape in shapes.items():
        start, stop = stop, stop + math.prod(shape) * some.itemsize
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (start, stop)}
    encoded = json.dumps(header).encode()
    values = some.tobytes() * (stop // len(some.tobytes()) + 1)
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + values[:stop])
