"""Trainers of frameworks that build their own from settings, stopped where they would begin to train.

It runs in a child of the examined interpreter, knows nothing of attncheck, and writes to a temporary folder alone. A
folder holds the model and its tokenizer in `model`, in which "w7" is the token 7.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

Maker = Callable[..., Any]  # of folder, documents, layout, attention, rows of a micro-batch, micro-batches of a step
MAX_LENGTH = 64
STEPS = 2  # the second step shows whether gradients are cleared
MODULES = (
    "transformers.trainer", "trl", "trl.trainer.dpo_trainer", "llamafactory.train.tuner",
    "llamafactory.train.sft.workflow", "swift.pipelines", "swift.llm", "liger_kernel.transformers.monkey_patch",
)  # fmt: skip
PROMPT = "w1 w2"
# of pipelines, in ms-swift 4 and 3
DATA: dict[Any, Any] = {}  # of ms-swift, which reads the same rows for each trainer
SWIFT_MODULES = ("swift.pipelines", "swift.pipelines.train.rlhf", "swift.llm", "swift.llm.train.rlhf")


def list_makers() -> dict[str, Maker]:
    """Return a function that makes a trainer for each installed framework, by the name of its distribution."""
    makers = {"llamafactory": make_llamafactory_trainer, "ms-swift": make_swift_trainer}
    return {name: make for name, make in makers.items() if _is_installed(name)}


def import_frameworks() -> None:
    """Import what the makers import, so that forks of this process share it."""
    import torch

    torch.set_num_threads(1)  # a pool of threads would not survive a fork
    for module in MODULES:
        with contextlib.suppress(Exception):  # not installed, or broken: making its trainer says so
            importlib.import_module(module)
    with contextlib.suppress(ImportError):  # nothing is taken from datasets' cache: no function needs to be hashed
        fingerprint: Any = importlib.import_module("datasets.fingerprint")
        fingerprint.update_fingerprint = lambda *_: fingerprint.generate_random_fingerprint()


def make_llamafactory_trainer(
    folder: str, documents: list[list[int]], layout: str, attention: str, per_device: int, steps: int
) -> Any:
    """Return LLaMA-Factory's trainer; only its collator is set to flash attention, so nothing is computed with it."""
    if layout == "padding_free" or attention not in ("sdpa", "flash_attention_2"):
        raise ValueError(f"LLaMA-Factory has no {layout} rows under {attention}")
    rows = [{"instruction": PROMPT, "input": "", "output": _write(document)} for document in documents]
    settings = {**list_arguments(folder, per_device, steps), "neat_packing": layout == "packing"}
    trainer = start_llamafactory(folder, rows, {}, settings)
    trainer.data_collator.attn_implementation = attention
    return trainer


def start_llamafactory(
    folder: str, rows: list[dict[str, Any]], dataset: dict[str, Any], settings: dict[str, Any]
) -> Any:
    """Return the trainer that LLaMA-Factory makes for rows, whose columns `dataset` describes."""
    trainer = importlib.import_module("transformers.trainer").Trainer
    run_exp = importlib.import_module("llamafactory.train.tuner").run_exp
    Path(folder, "rows.json").write_text(json.dumps(rows), "utf-8")
    Path(folder, "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json", **dataset}}), "utf-8")
    made: list[Any] = []

    class Stop(Exception):
        pass

    def train(trainer: Any, **_: object) -> None:
        made.append(trainer)
        raise Stop

    settings = {
        "model_name_or_path": f"{folder}/model", "stage": "sft", "do_train": True, "finetuning_type": "full",
        "dataset": "rows", "dataset_dir": folder, "template": "empty", "cutoff_len": MAX_LENGTH,
        "overwrite_cache": True, "disable_gradient_checkpointing": True, "flash_attn": "sdpa", **settings,
    }  # fmt: skip
    with mock.patch.object(trainer, "train", train), _map_here(), contextlib.suppress(Stop):
        run_exp(settings)
    return made[0]


def make_swift_trainer(
    folder: str, documents: list[list[int]], layout: str, attention: str, per_device: int, steps: int
) -> Any:
    """Return ms-swift's trainer; its model is loaded with SDPA, since nothing is computed with flash attention."""
    rows = [
        {"messages": [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": _write(document)}]}
        for document in documents
    ]
    layouts = {"packing": layout == "packing", "padding_free": layout == "padding_free"}
    return start_swift("SwiftSft", folder, rows, attention, {**list_arguments(folder, per_device, steps), **layouts})


def find_swift_pipeline(name: str) -> Any:
    """Return a pipeline of ms-swift."""
    for module in SWIFT_MODULES:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise ImportError(f"ms-swift has no {name}")


def start_swift(name: str, folder: str, rows: list[dict[str, Any]], attention: str, settings: dict[str, Any]) -> Any:
    """Return the trainer that a pipeline of ms-swift makes for rows; its models are loaded with SDPA."""
    pipeline = find_swift_pipeline(name)
    Path(folder, "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    made: list[Any] = []

    class Pipeline(pipeline):  # type: ignore[misc, valid-type]
        def _prepare_model_tokenizer(self, **options: object) -> None:
            self.args.attn_impl = "sdpa"
            super()._prepare_model_tokenizer(**options)
            self.args.attn_impl = self.model.config._attn_implementation = attention

        def _get_dataset(self, *arguments: Any, **options: Any) -> Any:
            key = (name, settings.get("rlhf_type"), settings.get("task_type"), json.dumps(rows))
            if key not in DATA:
                DATA[key] = super()._get_dataset(*arguments, **options)
            return DATA[key]

        def train(self, trainer: Any) -> None:
            made.append(trainer)

    settings = {
        "model": f"{folder}/model", "model_type": "mistral", "template": "dummy", "dataset": f"{folder}/rows.jsonl",
        "tuner_type": "full", "train_type": "full", "torch_dtype": "float32", "max_length": MAX_LENGTH,
        "attn_impl": attention, "split_dataset_ratio": 0, "gradient_checkpointing": False, "check_model": False,
        "dataset_num_proc": 1, "dataloader_num_workers": 0, "dataloader_persistent_workers": False,
        "load_from_cache_file": False, **settings,
    }  # fmt: skip
    known = pipeline.args_class.__dataclass_fields__  # `train_type` is `tuner_type` since 4.1
    given = {
        name: [value] if "List" in str(known[name].type) else value for name, value in settings.items() if name in known
    }
    with _map_here():
        Pipeline(pipeline.args_class(**given)).main()  # a parser of its 400 options takes 50 ms
    return made[0]


def _map_here() -> Any:
    """Return a context in which a data set is mapped in this process: starting another takes a second."""
    if importlib.util.find_spec("datasets") is None:
        return contextlib.nullcontext()
    dataset = importlib.import_module("datasets").Dataset
    plain = dataset.map

    def map_here(self: Any, *arguments: Any, **options: Any) -> Any:
        return plain(self, *arguments, **{**options, "num_proc": None})

    return mock.patch.object(dataset, "map", map_here)


def list_arguments(folder: str, per_device: int, steps: int) -> dict[str, Any]:
    """Return the arguments that both frameworks share with transformers, under transformers' names."""
    return {
        "output_dir": f"{folder}/out", "per_device_train_batch_size": per_device, "gradient_accumulation_steps": steps,
        "max_steps": STEPS, "logging_steps": 1, "report_to": "none", "use_cpu": True, "save_strategy": "no",
        "max_grad_norm": 1e9,
    }  # fmt: skip


def _is_installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def _write(document: list[int]) -> str:
    return " ".join(f"w{token}" for token in document)
