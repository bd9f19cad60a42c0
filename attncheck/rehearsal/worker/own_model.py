"""Copies the user's own model for a rehearsal: small files are copied, weights linked; the original is unchanged.

The copy differs only in this: dropout and jitter are off, as in the small models, and a tokenizer without a chat
template gets a plain one.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attncheck.rehearsal.worker.vocabulary import Vocabulary, WordsNotFound, find_vocabulary
from attncheck.smoke.worker.models.architectures import Unbuildable

WEIGHTS = (".safetensors", ".bin")
LARGE = (*WEIGHTS, ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack", ".ckpt")  # files that are linked
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ 'Assistant: ' }}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ message['role'] | capitalize + ': ' + message['content'] + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
ROW_TOKENS = 4096  # the most in a step: two rows of 256 in two batches on each of a few ranks
MAX_COPIED_BYTES = 1 << 26  # larger files are linked
FOLDERS = ("additional_chat_templates",)  # folders of a model's tokenizer
GIB = 2**30


def lay_model(name: str, folder: Path, keeps_code: bool = False) -> None:
    """Fill `folder` with the model `name`: a folder on this machine, or a Hub name in the local cache.

    The model's own code is left out, unless `keeps_code`. Raises `Unbuildable` if the model is incomplete here, or
    cannot be read without its code.
    """
    shutil.copytree(find_folder(name), folder, copy_function=_copy_or_link, ignore=_ignore_others)
    if not keeps_code:
        _forget_code(folder)
    document = json.loads((folder / "config.json").read_text())
    if document.get("quantization_config"):
        raise Unbuildable(
            f"the weights of {name} are quantised, so there is no float32 reference: name the model from which they "
            f"were quantised, or remove --full-model"
        )


def find_folder(name: str) -> Path:
    """Return the folder of a model's configuration and weights. Raises `Unbuildable` if it is not available here."""
    from attncheck.doctor.probes.payload.model import files

    fact = files.find_model_folder(name)
    folder = fact.get("known")
    repair = "--full-model downloads nothing: name the model's folder, download it first, or remove --full-model"
    if folder is None:
        raise Unbuildable(f"{fact.get('absent') or fact.get('unreadable')}; {repair}")
    if not (Path(folder) / "config.json").is_file():
        raise Unbuildable(f"{folder} has no config.json; {repair}")
    names = [path.name for path in Path(folder).iterdir() if path.suffix in WEIGHTS and path.exists()]
    indexes = sorted(Path(folder).glob("*.index.json"))
    missing = sorted({part for path in indexes for part in _list_parts(path) if not (Path(folder) / part).exists()})
    whole = [path for path in indexes if all((Path(folder) / part).exists() for part in _list_parts(path))]
    if not names or (indexes and not whole and not {"model.safetensors", "pytorch_model.bin"} & set(names)):
        lacking = f": {missing[0]} is missing" if missing else ""
        raise Unbuildable(f"{folder} does not hold the weights of {name}{lacking}; {repair}")
    return Path(folder)


def _forget_code(folder: Path) -> None:
    """Remove Python files from a copy of a model, and `auto_map`, by which a trainer finds them."""
    for path in folder.glob("*.py"):
        path.unlink()
    for path in folder.glob("*.json"):
        try:
            document = json.loads(path.read_text()) if not path.is_symlink() else None
        except (OSError, ValueError):
            continue
        if isinstance(document, dict) and document.pop("auto_map", None) is not None:
            path.write_text(json.dumps(document, indent=2))


def _list_parts(index: Path) -> set[str]:
    try:
        parts = json.loads(index.read_text())["weight_map"].values()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return set()
    return {str(part) for part in parts}


def _copy_or_link(source: str, target: str) -> None:
    """Copy a small file; link weights and any large file, also through a link in the cache."""
    if source.endswith(LARGE) or os.path.getsize(source) > MAX_COPIED_BYTES:
        os.symlink(os.path.realpath(source), target)
    else:
        shutil.copyfile(source, target)


def _copy_small(source: str, target: str) -> None:
    if not source.endswith(LARGE):
        _copy_or_link(source, target)


def _ignore_others(folder: str, names: list[str]) -> set[str]:
    """Return the entries of a model's folder that do not belong to it: hidden files, other folders, broken links."""
    paths = {name: os.path.join(folder, name) for name in names}
    return {
        name
        for name, path in paths.items()
        if name.startswith(".") or not os.path.exists(path) or (os.path.isdir(path) and name not in FOLDERS)
    }


def lay_tokenizer(name: str, folder: Path, keeps_code: bool = False) -> None:
    """Fill `folder` with the small files of the model `name`; its own code is left out, unless `keeps_code`.

    Raises `Unbuildable` if it is not found.
    """
    from attncheck.doctor.probes.payload.model import files

    fact = files.find_model_folder(name)
    if "known" not in fact:
        raise Unbuildable(
            f"{fact.get('absent') or fact.get('unreadable')}; --real-data uses the model's tokenizer and "
            "downloads nothing: name the model's folder, download it first, or remove --real-data"
        )
    shutil.copytree(fact["known"], folder, copy_function=_copy_small, ignore=_ignore_others)
    if not keeps_code:
        _forget_code(folder)


def load_tokenizer(name: str, folder: Path, from_file: bool = False) -> Any:
    """Return the tokenizer in a folder. Raises `Unbuildable` if there is none, or if it has no EOS token.

    With `from_file` it is of the class that reads `tokenizer.json`, if that knows the EOS token, instead of the class
    that a job gets. Its import does not import torch.
    """
    import transformers

    is_file = from_file and (folder / "tokenizer.json").exists()
    try:
        chosen = transformers.PreTrainedTokenizerFast if is_file else transformers.AutoTokenizer
        tokenizer = chosen.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise Unbuildable(f"the tokenizer of {name} cannot be read: {_first_line(error)}") from None
    if is_file and tokenizer.eos_token_id is None:
        return load_tokenizer(name, folder)
    if tokenizer.eos_token_id is None:
        raise Unbuildable(f"the tokenizer of {name} has no eos_token, which documents need")
    return tokenizer


def read_vocabulary(name: str, folder: Path) -> tuple[Vocabulary, list[str]]:
    """Return the words of the model's tokenizer for documents, and remarks. Raises `Unbuildable`.

    If the copy has no chat template, one is written into it.
    """
    tokenizer = load_tokenizer(name, folder)
    remarks: list[str] = []
    if not getattr(tokenizer, "chat_template", None):
        path = folder / "tokenizer_config.json"
        document = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**document, "chat_template": TEMPLATE}, indent=2))
        remarks.append("the tokenizer has no chat template: a plain one is used instead")
    try:
        return find_vocabulary(tokenizer), remarks
    except WordsNotFound as error:
        raise Unbuildable(f"no documents can be made for {name}: {error}") from None


def read_configuration(name: str, folder: Path) -> tuple[Any, list[str]]:
    """Return the model's configuration without dropout and jitter, as in the copy, and remarks.

    Raises `Unbuildable` if transformers does not know the model without the model's own code.
    """
    from transformers import AutoConfig

    from attncheck.smoke.worker.models.randomness import find_rates

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise Unbuildable(f"transformers cannot read {name}: {_first_line(error)}") from None
    rates = find_rates(config)
    if rates:
        path = folder / "config.json"
        document = json.loads(path.read_text())
        for (part, rate), _ in rates.items():
            (document if not part else document.setdefault(part, {}))[rate] = 0.0
            setattr(config if not part else getattr(config, part), rate, 0.0)
        path.write_text(json.dumps(document, indent=2))
    names = ", ".join(f"{rate} {value:g}" for (_, rate), value in rates.items())
    return config, [f"layers that draw random numbers are turned off: {names}"] if rates else []


def check_memory(name: str, config: Any, is_float32: bool) -> int:
    """Return the model's number of parameters. Raises `Unbuildable` if the references do not fit in memory.

    The judge holds the weights in float32; if the job computes in 16 bits, a second model of at most that size; one
    document's gradients, from which adapters' follow; and the log-probabilities of a step's tokens over the vocabulary.
    """
    from attncheck.doctor.probes.payload import host

    parameters, vocabulary_size = count_parameters(name, config)
    needed = parameters * 4 * (2 if is_float32 else 3) + ROW_TOKENS * vocabulary_size * 4
    available = host.measure_memory()[1].get("known")
    if isinstance(available, int) and needed > available:
        raise Unbuildable(
            f"the float32 reference of {name} ({parameters / 1e9:.3g} billion parameters) needs {needed / GIB:.1f} GiB "
            f"of memory, and {available / GIB:.1f} are free: use a larger machine, or remove --full-model"
        )
    return parameters


def count_parameters(name: str, config: Any) -> tuple[int, int]:
    """Return a model's number of parameters, and of words, without using memory for them. Raises `Unbuildable`."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise Unbuildable(
            f"transformers cannot build a causal language model from {name}: {_first_line(error)}"
        ) from None
    return sum(parameter.numel() for parameter in model.parameters()), model.get_input_embeddings().weight.shape[0]


def _first_line(error: Exception) -> str:
    lines: Iterator[str] = (line.strip() for line in str(error).splitlines() if line.strip())
    return f"{type(error).__name__}: {next(lines, '')}"[:300]
