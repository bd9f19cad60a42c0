"""The differences between a trainer's model and its engine's model: keys and weights, by kind."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attncheck.agree.worker.models import load_model

IGNORED_KEYS = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures", "use_cache")
LOW_RANK = 0.25  # a difference whose rank is below this share of the smaller dimension is an adapter's
NEGLIGIBLE = 1e-4  # singular values below this share of the largest count as zero
NAMED = 4  # the most parameters named in a message
LAYER = re.compile(r"\.\d+\.")


@dataclass(frozen=True)
class Differences:
    """Keys of config.json with both values, and groups of parameters: (name, text, remedy, parameter names)."""

    keys: tuple[tuple[str, str, str], ...]
    weights: tuple[tuple[str, str, str, tuple[str, ...]], ...]

    @property
    def summary(self) -> str:
        """The differing keys and weights in one line."""
        texts = [f"{key} {other} instead of {own}" for key, own, other in self.keys]
        return "; ".join([*texts, *(text for _, text, _, _ in self.weights)])


def name_differences(own: str, other: str) -> Differences:
    """Return the differences between two folders, as far as both can be loaded."""
    return Differences(tuple(_iter_keys(own, other)), tuple(_iter_groups(own, other)))


def _iter_keys(own: str, other: str) -> Iterator[tuple[str, str, str]]:
    first, second = (json.loads((Path(folder) / "config.json").read_text()) for folder in (own, other))
    for key in sorted({*first, *second}):
        if key not in IGNORED_KEYS and first.get(key) != second.get(key):
            yield key, json.dumps(first.get(key)), json.dumps(second.get(key))


def _iter_groups(own: str, other: str) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield the parameters that differ, grouped by the kind of difference."""
    first, second = (read_weights(folder) for folder in (own, other))
    groups: dict[str, list[str]] = {}
    for name, tensor in first.items():
        kind = _name_kind(name, tensor, second.get(name), first)
        if kind:
            groups.setdefault(kind, []).append(name)
    texts = {
        "transposed": ("are transposed", "store them in the layout of the trainer's class"),
        "permuted": ("have the same values in another order", "write each row where the engine's class expects it"),
        "adapter": (
            "differ by a matrix of low rank",
            "merge the LoRA adapter, with its scaling, before weights are synchronised with the engine",
        ),
        "padded": ("have more rows, which pad the vocabulary", "mask or remove the rows that pad the vocabulary"),
        "rounded": ("are rounded to 16 bits", "load and sync weights in the same dtype on both sides"),
        "zero": ("are zero", "sync these parameters"),
        "renamed": ("are another parameter's", "correct the names of the parameters synchronised with the engine"),
        "tied": ("are the input embedding", "synchronise lm_head too, because the trainer does not tie it"),
        "missing": ("are missing", "write these parameters into the engine's checkpoint"),
        "stale": ("have other values", "synchronise these parameters after the trainer's step"),
    }
    for kind, names in groups.items():
        text, remedy = texts[kind]
        shown = list(dict.fromkeys(LAYER.sub(".*.", name) for name in names))
        more = f" and {len(shown) - NAMED} more" if len(shown) > NAMED else ""
        listed = ", ".join(shown[:NAMED])
        yield (
            kind,
            f"{len(names)} of {len(first)} parameters of the engine {text}: {listed}{more}",
            remedy,
            tuple(names),
        )


def _name_kind(name: str, own: Tensor, other: Tensor | None, all_own: Mapping[str, Tensor]) -> str:
    """Return how an engine's parameter differs from the trainer's, "" if it does not."""
    if other is None:
        return "tied" if name.endswith("lm_head.weight") else "missing"
    if own.shape == other.shape and torch.equal(own, other):
        return ""
    if own.dim() == 2 and torch.equal(own.T, other):
        return "transposed"
    if own.shape != other.shape:
        return "padded" if torch.equal(own, other[: len(own)]) else "stale"
    if not other.any():
        return "zero"
    if any(torch.equal(own.to(dtype).float(), other) for dtype in (torch.bfloat16, torch.float16)):
        return "rounded"
    if torch.equal(own.flatten().sort().values, other.flatten().sort().values):
        return "permuted"
    twin = next((key for key, tensor in all_own.items() if key != name and _is_same(tensor, other)), "")
    if twin:
        return "tied" if "embed" in twin and "head" in name else "renamed"
    if own.dim() == 2 and min(own.shape) > 4:
        values = torch.linalg.svdvals((own - other).double())
        rank = int((values > values[0] * NEGLIGIBLE).sum())
        if rank <= LOW_RANK * min(own.shape):
            return "adapter"
    return "stale"


def _is_same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)


def read_weights(folder: str) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors files in float32, by name."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensors |= {name: tensor.float() for name, tensor in load_file(path).items()}
    return tensors


def load_from(model: Any, folder: str, names: Sequence[str]) -> None:
    """Load the parameters with these names from another folder's model."""
    other = load_model(folder, next(model.parameters()).dtype, "eager").state_dict()
    own = model.state_dict()
    for name in names:
        for key in (name, name.removeprefix("model."), f"model.{name}"):
            if key in own and key in other:
                own[key].copy_(other[key])
                break
        else:
            raise KeyError(name)
