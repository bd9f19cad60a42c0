"""Whether a multimodal model computes for padded and packed documents of pictures what it computes for each alone.

It knows nothing of attncheck: tiny configurations, pictures and documents are written by hand for each type, in float32
with eager attention. `python -m tests.smoke.types.pictures_judge` prints a line a type.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

IMAGE, PAD, VOCABULARY = 90, 99, 100
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16,
        "num_key_value_heads": 2, "vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": 97,
        "eos_token_id": 98, "initializer_range": 0.2, "max_position_embeddings": 512}  # fmt: skip
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 24, "intermediate_size": 32, "num_attention_heads": 2,
          "num_hidden_layers": 2, "patch_size": 4, "image_size": 16, "vision_use_head": False}  # fmt: skip
CLIP = {**SIGLIP, "model_type": "clip_vision_model"}
GRID = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "initializer_range": 0.2}  # fmt: skip
OTHER = {"video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
MROPE = {"rope_type": "default", "mrope_section": [2, 3, 3]}
# Of each type: its configuration, the tensors of a picture by name with their shapes, the tokens of a picture.
FLAT = {"pixel_values": (16, 96), "image_grid_thw": [[1, 4, 4]]}
WHOLE, NESTED = {"pixel_values": (1, 3, 16, 16)}, {"pixel_values": (1, 1, 3, 16, 16)}
TYPES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "qwen2_vl": ({"text_config": {**TEXT, "rope_scaling": {**MROPE, "type": "mrope"}}, "image_token_id": IMAGE, **OTHER,
                  "vision_config": {**GRID, "embed_dim": 24, "hidden_size": 32}}, FLAT, 4),
    "qwen2_5_vl": ({"text_config": {**TEXT, "rope_scaling": {**MROPE, "type": "mrope"}}, "image_token_id": IMAGE,
                    **OTHER, "vision_config": {**GRID, "hidden_size": 24, "intermediate_size": 32, "window_size": 16,
                                               "out_hidden_size": 32, "fullatt_block_indexes": [1]}}, FLAT, 4),
    "qwen3_vl": ({"text_config": {**TEXT, "rope_scaling": MROPE}, "image_token_id": IMAGE, **OTHER,
                  "vision_config": {**GRID, "hidden_size": 24, "intermediate_size": 32, "out_hidden_size": 32,
                                    "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}}, FLAT, 4),
    "glm4v": ({"text_config": {**TEXT, "rope_scaling": {**MROPE, "mrope_section": [1, 1, 2],
                                                        "partial_rotary_factor": 0.5}},
               "image_token_id": IMAGE, "vision_config": {**GRID, "hidden_size": 24, "intermediate_size": 32,
                                                          "out_hidden_size": 32, "image_size": 16}}, FLAT, 4),
    "gemma3": ({"text_config": {**TEXT, "sliding_window": 16}, "vision_config": SIGLIP, "image_token_index": IMAGE,
                "mm_tokens_per_image": 4}, WHOLE, 4),
    "paligemma": ({"text_config": {**TEXT, "model_type": "gemma", "num_image_tokens": 16}, "projection_dim": 32,
                   "vision_config": {**SIGLIP, "projection_dim": 32}, "image_token_index": IMAGE}, WHOLE, 16),
    "llava": ({"text_config": {**TEXT, "model_type": "llama"}, "vision_config": CLIP, "image_token_index": IMAGE},
              WHOLE, 16),
    "internvl": ({"text_config": {**TEXT, "model_type": "qwen2"}, "image_token_id": IMAGE,
                  "vision_config": {**SIGLIP, "model_type": "internvl_vision", "image_size": [16, 16],
                                    "patch_size": [4, 4]}}, WHOLE, 4),
    "idefics3": ({"text_config": {**TEXT, "model_type": "llama"}, "image_token_id": IMAGE, "scale_factor": 2,
                  "vision_config": {**SIGLIP, "model_type": "idefics3_vision"}}, NESTED, 4),
    "smolvlm": ({"text_config": {**TEXT, "model_type": "llama"}, "image_token_id": IMAGE, "scale_factor": 2,
                 "vision_config": {**SIGLIP, "model_type": "smolvlm_vision"}}, NESTED, 4),
    "mistral3": ({"text_config": {**TEXT, "model_type": "mistral"}, "image_token_index": IMAGE,
                  "spatial_merge_size": 2, "vision_config": {**SIGLIP, "model_type": "pixtral", "head_dim": 12}},
                 {**WHOLE, "image_sizes": [[16, 16]]}, 4),
    "llava_onevision": ({"text_config": {**TEXT, "model_type": "qwen2"}, "vision_config": SIGLIP,
                         "image_token_index": IMAGE, "image_grid_pinpoints": [[16, 16]]},
                        {"pixel_values": (1, 2, 3, 16, 16), "image_sizes": [[16, 16]]}, 36),
}  # fmt: skip
TYPED = {"gemma3": ("token_type_ids", 1), "paligemma": ("token_type_ids", 0)} | dict.fromkeys(
    ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v"), ("mm_token_type_ids", 1)
)
Document = tuple[Tensor, dict[str, Tensor]]  # tokens, and its pictures' tensors


def build_model(name: str) -> Any:
    """Return the tiny model of a type, in float32, with its zeros filled."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[name].from_dict({"model_type": name, "pad_token_id": PAD, **TYPES[name][0]})
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def make_document(name: str, parts: tuple[int, int, int], seed: int) -> Document:
    """Return a document of text, a number of pictures, text."""
    _, picture, tokens = TYPES[name]
    generator = torch.Generator().manual_seed(seed)
    before, pictures, after = parts
    ids = torch.cat(
        [
            torch.randint(80, (before,), generator=generator),
            *([torch.full((tokens,), IMAGE), torch.randint(80, (1,), generator=generator)] * pictures),
            torch.randint(80, (after,), generator=generator),
        ]
    )
    tensors: dict[str, Tensor] = {}
    for key, value in picture.items() if pictures else ():
        each = [
            torch.randn(value, generator=generator) if isinstance(value, tuple) else torch.tensor(value)
            for _ in range(pictures)
        ]
        tensors[key] = torch.cat(each)
    return ids, tensors


def run(name: str, model: Any, rows: list[Tensor], pictures: list[dict[str, Tensor]], **more: Any) -> Tensor:
    """Return the logits (rows, tokens, vocabulary) of rows, padded on the right."""
    width = max(map(len, rows))
    ids = torch.stack([torch.cat([row, torch.full((width - len(row),), PAD)]) for row in rows])
    mask = torch.stack([(torch.arange(width) < len(row)).long() for row in rows])
    tensors = [tensors for tensors in pictures if tensors]
    inputs = {key: torch.cat([t[key] for t in tensors]) for key in (tensors[0] if tensors else ())}
    if name in TYPED:
        key, value = TYPED[name]
        inputs[key] = torch.where(ids == IMAGE, value, 1 - value)
    if "position_ids" not in more:
        inputs["attention_mask"] = mask
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids, use_cache=False, **inputs, **more).logits
    return logits


def positions_of(name: str, model: Any, document: Document) -> Tensor:
    """Return the positions of a document: (1, tokens), or plain, time, height, width (4, tokens)."""
    ids, tensors = document
    plain = torch.arange(len(ids))
    if not hasattr(model.model, "get_rope_index"):
        return plain[None]
    if not tensors:
        return plain.expand(4, -1)
    types = (ids == IMAGE).long()[None]
    grid = tensors["image_grid_thw"]
    rows, _ = model.model.get_rope_index(ids[None], mm_token_type_ids=types, image_grid_thw=grid)
    return torch.cat([plain[None], rows[:, 0]])


def judge(name: str) -> dict[str, float]:
    """Return the largest relative error of a document's logits in padded and in packed rows."""
    model = build_model(name)
    documents = [make_document(name, parts, seed) for seed, parts in enumerate(((4, 1, 5), (9, 0, 0), (3, 2, 4)))]
    alone = [run(name, model, [ids], [tensors])[0] for ids, tensors in documents]
    rows, pictures = [ids for ids, _ in documents], [tensors for _, tensors in documents]
    padded = run(name, model, rows, pictures)
    positions = torch.cat([positions_of(name, model, document) for document in documents], 1)
    positions = positions if len(positions) == 1 else positions[:, None]
    packed = run(name, model, [torch.cat(rows)], pictures, position_ids=positions)[0].split([len(row) for row in rows])
    return {
        "padded": max(error(padded[i, : len(row)], alone[i]) for i, row in enumerate(rows)),
        "packed": max(error(piece, expected) for piece, expected in zip(packed, alone, strict=True)),
    }


def error(actual: Tensor, expected: Tensor) -> float:
    """Return the relative error of logits."""
    return float((actual - expected).norm() / expected.norm())


if __name__ == "__main__":
    print("transformers", transformers.__version__)
    for name in sys.argv[1:] or TYPES:
        print(name, {question: f"{value:.1e}" for question, value in judge(name).items()}, flush=True)
