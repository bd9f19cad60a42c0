"""Makes and loads the models: a small one of the job's architecture, or the user's own, in the requested precision."""

import contextlib
import json
import math
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attncheck.core.agreement import Overrides
from attncheck.core.plan import Precision
from attncheck.doctor.probes.payload.model import files
from attncheck.rehearsal.worker import materials, own_model
from attncheck.rehearsal.worker.vocabulary import WordsNotFound
from attncheck.smoke.worker.data.language import Language
from attncheck.smoke.worker.models.build import Unbuildable
from attncheck.smoke.worker.models.randomness import find_rates

PROMPTS = 10
PROMPT_TOKENS = (4, 56)  # the longest prompt exceeds the window of small models
NEW_TOKENS = 40
GENERATION = "generation_config.json"
NORM_SPREAD = 0.3
VISIBLE_ROPE = ("llama3", "yarn")  # their scaling changes only wavelengths near the trained length and above
TRAINED_LENGTH = 32
VISIBLE_CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 8.0}  # released models have 50 and 30
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # in the user's generation config


@dataclass(frozen=True)
class Sample:
    """A prompt and the engine's response as token ids; `log_probabilities` has the engine's value for each token."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    log_probabilities: tuple[float, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens of the document."""
        return self.prompt + self.response


def prepare_small(name: str, folder: Path, seed: int) -> int:
    """Make a small model and its tokenizer in `folder`; return its number of parameters. Raises `Unbuildable`."""
    parameters, _, _ = materials.make_small_model(
        {"model": name, "has_padding_token": True, "dtype": "float32", "seed": seed}, folder.parent
    )
    if folder.name != "model":
        shutil.move(str(folder.parent / "model"), folder)
    _copy_own(name, folder)
    _make_visible(folder, seed, _is_tied(name, folder))
    return parameters


def _is_tied(name: str, folder: Path) -> bool:
    """Return whether the job's model, or its class by default, embeds tokens and predicts them by one matrix."""
    source = files.find_model_folder(name).get("known")
    config = read_config(str(source)) if source else type(read_config(folder))()
    return bool(getattr(config, "tie_word_embeddings", False))


def _make_visible(folder: Path, seed: int, is_tied: bool) -> None:
    """Change a small model so that an engine without one of its features computes something else.

    Newly made norms and biases are all ones or zeros, and new scores are far below the soft-caps of released models.
    Small models are not tied; vLLM's classes of some architectures, such as gemma2, load no other.
    """
    from safetensors.torch import load_file, save_file

    path, config_path = folder / "model.safetensors", folder / "config.json"
    if path.exists():
        generator = torch.Generator().manual_seed(seed)
        tensors = load_file(path)
        for name, tensor in tensors.items():
            if tensor.dim() == 1 and len(tensor) > 1 and bool((tensor == tensor[0]).all()):
                tensors[name] = tensor + NORM_SPREAD * torch.randn(len(tensor), generator=generator)
        if is_tied:
            tensors.pop("lm_head.weight", None)
        save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads(config_path.read_text())
    visible: dict[str, Any] = {name: cap for name, cap in VISIBLE_CAPS.items() if config.get(name)}
    visible |= {"tie_word_embeddings": True} if is_tied else {}
    for name in ("rope_parameters", "rope_scaling"):
        table = config.get(name) or {}
        if table.get("rope_type", table.get("type")) in VISIBLE_ROPE:
            visible[name] = {**table, "original_max_position_embeddings": TRAINED_LENGTH}
    _update(config_path, visible)


def _copy_own(name: str, folder: Path) -> None:
    """Copy the sampling fields of the user's generation_config.json, which engines use as defaults, and the rates of
    dropout, with which a trainer may score."""
    source = Path(str(files.find_model_folder(name).get("known") or ""))
    with contextlib.suppress(OSError, ValueError):
        fields = json.loads((source / GENERATION).read_text())
        _update(folder / GENERATION, {key: fields[key] for key in SAMPLING_FIELDS if key in fields})
    with contextlib.suppress(OSError, ValueError):
        _update(folder / "config.json", {rate: own for (_, rate), own in find_rates(read_config(source)).items()})


def _update(path: Path, fields: Mapping[str, Any]) -> None:
    own = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**own, **fields}))


def make_prompts(folder: Path, is_small: bool, seed: int) -> list[list[int]]:
    """Return prompts of different lengths as token ids, each starting with the BOS token if the model has one."""
    chance = random.Random(seed)
    language = Language(seed)
    lengths = [chance.randint(*PROMPT_TOKENS) for _ in range(PROMPTS - 2)] + list(PROMPT_TOKENS)
    documents = [language.next_document(max(length, 16)).tolist()[:length] for length in lengths]
    if is_small:
        return [[materials_begin(folder), *document] for document in documents]
    try:
        vocabulary, _ = own_model.read_vocabulary(str(folder), folder)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return [tokenizer(vocabulary.write(document))["input_ids"] for document in documents]
    except (Unbuildable, WordsNotFound, OSError, ValueError):  # without a tokenizer, any tokens serve
        size = read_config(folder).vocab_size
        return [[word * 7919 % size for word in document] for document in documents]


def materials_begin(folder: Path) -> int:
    """Return the id of the BOS token of the tokenizer that was made."""
    return int(read_config(folder).bos_token_id)


def read_config(folder: str | Path) -> Any:
    """Return a folder's configuration, or the decoder's if the model is multimodal."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def load_model(
    folder: str | Path, dtype: torch.dtype, implementation: str = "", overrides: Overrides = (), device: str = "cpu"
) -> Any:
    """Return a folder's model in eval mode, with keys of its configuration overridden."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    for key, text in overrides:
        apply_override(config, key, json.loads(text))
    options = {"attn_implementation": implementation} if implementation else {}
    if dtype == torch.float64 and hasattr(config, "_experts_implementation"):
        options["experts_implementation"] = "eager"  # torch's grouped product does not support float64
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, config=config, local_files_only=True, trust_remote_code=False, dtype=dtype, **options
    )
    return model.to(device).eval()


def apply_override(config: Any, key: str, value: Any) -> None:
    """Set a configuration key, nested by dots; `rope_scaling` is merged with the table of newer releases."""
    *parents, name = key.split(".")
    for parent in parents:
        config = getattr(config, parent)
    if name == "rope_scaling" and hasattr(config, "rope_parameters"):  # transformers 5 keeps theta in the same table
        name, held = "rope_parameters", config.rope_parameters or {}
        value = {**{k: v for k, v in held.items() if k == "rope_theta"}, "rope_type": "default", **(value or {})}
        value["rope_type"] = value.pop("type", value["rope_type"])
    setattr(config, name, value)


@contextlib.contextmanager
def computing(precision: Precision, device: str = "cpu") -> Iterator[None]:
    """Compute without gradients, under autocast to bfloat16 if that is the precision."""
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=precision == "autocast"):
        yield


def rms(difference: Tensor) -> float:
    """Return the root mean square of differences in nats; NaN counts as infinite."""
    return float(difference.square().mean().sqrt().nan_to_num(math.inf))


def gather(logits: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Return log p of each token, shape (tokens,), from logits (tokens, vocabulary), in at least their precision."""
    scores = logits if logits.dtype == torch.float64 else logits.float()
    return scores.log_softmax(-1).gather(-1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
