"""Makes the trainers that are compared with their twins: TRL's classes, and what ms-swift and LLaMA-Factory build.

It runs in a child of the examined interpreter, knows nothing of attncheck, and writes to a temporary folder alone.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .frameworks import find_swift_pipeline, list_arguments, start_llamafactory, start_swift
from .twins import (
    ANSWERS,
    COLUMN,
    IMPORT_FAILED,
    LENGTHS,
    MESSAGES,
    ON_POLICY,
    PAD_IS_END,
    Make,
    attempt,
    give_answers,
    list_parameters,
    list_trainers,
    measure_twins,
    write_rows,
)

SPREAD = 0.3  # a standard deviation of weights with which tokens have different losses
OTHERS = ("grpo", "ppo", "pt", "sft")  # of ms-swift and LLaMA-Factory: they generate, or their gradients are measured
ROWS = range(MESSAGES + 1)
NOT_OF_CONFIG = ("liger_kernel_config", PAD_IS_END)
BASE: dict[str, Any] = {
    "learning_rate": 0.0, "max_length": 1024, "disable_dropout": False, "lmbda": 0.0, "gradient_checkpointing": False,
}  # fmt: skip
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
CAUSAL = "ForCausalLM"
HEADS = {"ForTokenClassification": 2, "ForSequenceClassification": 1}  # labels
SCORER = "scorer/model"  # with attention, because a row's score is that of its last token
NO_DROPOUT = {"classifier_dropout": 0.0}  # heads of classification have dropout by default


def save_models(folder: str, make_model: Callable[..., Any], make_tokenizer: Callable[[], Any]) -> None:
    """Write a model whose attention adds nothing, its reference, one that attends, and their tokenizer, to folders."""
    import torch

    for name in ("model", "reference", SCORER):
        torch.manual_seed(len(name))
        model = make_model(initializer_range=SPREAD, tie_word_embeddings=True, **NO_DROPOUT)  # as small models are
        if name != SCORER:
            with torch.no_grad():
                model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.save_pretrained(f"{folder}/{name}")
        make_tokenizer().save_pretrained(f"{folder}/{name}")


def measure_framework(
    framework: str, folder: str, make_arguments: Callable[..., Any], make_tokenizer: Callable[[], Any], is_liger: bool
) -> Iterator[dict[str, Any]]:
    """Yield what a neutral change changes, for each trainer, loss and option of a framework."""
    if framework == "transformers":
        config = importlib.import_module("transformers.trainer").TrainingArguments
        for head in HEADS:
            make_head = functools.partial(make_head_trainer, folder, head, config, make_arguments, make_tokenizer)
            yield from measure_trainer(framework, head, [make_head], config, False)
    elif framework == "trl":
        for name, (trainer, config) in list_trainers().items():
            make = functools.partial(make_trl_trainer, folder, trainer, config, make_arguments, make_tokenizer)
            makers: list[Make] = [functools.partial(make, kind) for kind in ROWS]
            yield from measure_trainer(framework, name, makers, config, is_liger)
    elif framework == "ms-swift":
        for name, config, makers in list_swift_makers(folder):
            yield from measure_trainer(framework, name, makers, config, False)
    else:
        config = importlib.import_module("llamafactory.hparams.finetuning_args").FinetuningArguments
        stages = typing.get_args(typing.get_type_hints(config)["stage"])
        for stage in (stage for stage in stages if stage not in OTHERS):
            makers = [functools.partial(make_llamafactory_twin, folder, stage, kind) for kind in (0, 1)]
            yield from measure_trainer(framework, stage, makers, config, False)


def measure_trainer(
    trainer: str, variant: str, makers: Iterable[Make], config: Any, is_liger: bool
) -> list[dict[str, Any]]:
    """Return the twins of the first maker whose rows the trainer takes; without one, why it takes none."""
    named, error = {"trainer": trainer, "variant": variant}, "it takes none of the known kinds of rows"
    for make in makers:
        seen = attempt(make, LENGTHS, 4, 1, {})
        if not isinstance(seen, str) and len(seen.trainer.train_dataset) == len(LENGTHS):  # else it made others
            return [{**named, **item} for item in measure_twins(make, seen, config, is_liger)]
        error = seen if isinstance(seen, str) and seen.startswith(IMPORT_FAILED) else error
    return [{**named, "error": error}]


def make_head_trainer(
    folder: str,
    head: str,
    config: Any,
    make_arguments: Callable[..., Any],
    make_tokenizer: Callable[[], Any],
    lengths: Any,
    per_device: int,
    steps: int,
    settings: dict[str, Any],
) -> Any:
    """Return transformers' Trainer of a head that classifies tokens or rows."""
    import torch

    transformers = importlib.import_module("transformers")
    if not set(settings) <= list_parameters(config):
        raise ValueError(f"unknown: {sorted(settings)}")
    torch.manual_seed(0)
    tokens = [make_tokenizer()(row["completion"])["input_ids"] for row in write_rows(lengths)[ANSWERS]]
    labels = [[token % 2 for token in row] if "Token" in head else number % 2 for number, row in enumerate(tokens)]
    collator = "DataCollatorForTokenClassification" if "Token" in head else "DataCollatorWithPadding"
    return importlib.import_module("transformers.trainer").Trainer(
        load_copy(f"Mistral{head}", f"{folder}/{SCORER}", 2),
        make_arguments(config, folder, per_device, steps, learning_rate=0.0, **settings),
        getattr(transformers, collator)(make_tokenizer()),
        [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels)],
    )


def make_trl_trainer(
    folder: str,
    trainer: Any,
    config: Any,
    make_arguments: Callable[..., Any],
    make_tokenizer: Callable[[], Any],
    kind: int,
    lengths: Any,
    per_device: int,
    steps: int,
    settings: dict[str, Any],
) -> Any:
    """Return one of TRL's trainers on one kind of rows."""
    import torch
    from datasets import Dataset

    known = list_parameters(config)
    is_end = PAD_IS_END in settings
    settings = {name: value for name, value in settings.items() if name in known or name not in NOT_OF_CONFIG}
    parameters, own = list_parameters(trainer), {"ref_model": "reference", "teacher_model": "reference"}
    models = {name: folder_name for name, folder_name in own.items() if name in parameters and name not in settings}
    options = {name: value for name, value in settings.items() if name not in own and value != COLUMN}
    if not set(options) <= known:
        raise ValueError(f"unknown: {sorted(set(options) - known)}")
    source = inspect.getsource(importlib.import_module(trainer.__module__))
    head = next((head for head in HEADS if f"AutoModel{head}" in source and CAUSAL not in source), None)
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE if kind == MESSAGES else None
    tokenizer.pad_token = tokenizer.eos_token if is_end else tokenizer.pad_token
    columns = [name for name, value in settings.items() if value == COLUMN]
    path = Path(folder, f"rows-{lengths[0][0]}-{lengths[-1][0]}-{len(lengths)}-{kind}{'-'.join(columns)}")
    if not path.exists():
        Dataset.from_list(write_rows(lengths, settings)[kind]).save_to_disk(path)
    rows = Dataset.load_from_disk(path)  # some write next to it what they computed
    made = trainer(
        model=load_copy(f"Mistral{head or CAUSAL}", f"{folder}/{SCORER if head else 'model'}", HEADS.get(head or "")),
        args=make_arguments(config, folder, per_device, steps, **{**BASE, **options}),
        processing_class=tokenizer,
        train_dataset=rows,
        **{name: load_copy(f"Mistral{CAUSAL}", f"{folder}/{path}") for name, path in models.items()},
    )
    made.given_rows = rows
    if settings.get(ON_POLICY):
        give_answers(made)
    return made


def load_copy(name: str, path: str, labels: int | None = None) -> Any:
    """Return a copy of a saved model of a class of transformers, which is read once."""
    return copy.deepcopy(_load(name, path, labels))


@functools.cache
def _load(name: str, path: str, labels: int | None) -> Any:
    options = {} if labels is None else {"num_labels": labels}
    return getattr(importlib.import_module("transformers"), name).from_pretrained(path, **options)


def list_swift_makers(folder: str) -> Iterator[tuple[str, Any, list[Make]]]:
    """Yield the trainers of ms-swift with their configuration: of its kinds of RLHF, and of classification."""
    pipeline = find_swift_pipeline("SwiftRLHF")
    for kind in typing.get_args(typing.get_type_hints(pipeline.args_class)["rlhf_type"]):
        own: dict[str, Any] = {"rlhf_type": kind}
        referred = {**own, "ref_model": f"{folder}/reference", "ref_model_type": "mistral"}
        makers: list[Make] = [functools.partial(make_swift_twin, "SwiftRLHF", folder, item) for item in (referred, own)]
        if kind not in OTHERS:
            yield str(kind), pipeline.args_class, makers
    options: dict[str, Any] = {"task_type": "seq_cls", "num_labels": 2}
    yield (
        "seq_cls",
        find_swift_pipeline("SwiftSft").args_class,
        [functools.partial(make_swift_twin, "SwiftSft", folder, options)],
    )


def make_swift_twin(
    pipeline: str,
    folder: str,
    options: dict[str, Any],
    lengths: Any,
    per_device: int,
    steps: int,
    settings: dict[str, Any],
) -> Any:
    """Return a trainer that a pipeline of ms-swift makes."""
    import torch

    torch.manual_seed(0)
    is_scorer = "task_type" in options or options["rlhf_type"] == "rm"
    if is_scorer:
        folder = f"{folder}/scorer"
        if settings.get("padding_free"):
            raise ValueError("without a kernel that separates rows, its rows attend to each other")
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(write_rows(lengths, settings)[0]):
        answered = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["chosen"]}]
        if "task_type" in options:
            rows.append({"messages": [{"role": "user", "content": row["chosen"]}], "label": number % 2})
        elif options["rlhf_type"] == "kto":
            rows.append({"messages": answered, "label": not number % 2})
        else:
            rows.append({"messages": answered, "rejected_response": row["rejected"]})
        rows[-1] |= {name: row[name] for name in settings if name in row}
    given = {
        **list_arguments(folder, per_device, steps),
        **options,
        **{name: value for name, value in settings.items() if value != COLUMN},
        "learning_rate": settings.get("learning_rate", 0.0),
    }
    if {"ref_model", PAD_IS_END} & {*settings}:
        raise ValueError("it always has a reference and a pad token")
    trainer = start_swift(
        pipeline, folder, rows, "flash_attention_2" if settings.get("padding_free") else "sdpa", given
    )
    for model in (trainer.model, getattr(trainer, "ref_model", None)):
        if model is not None:
            model.config._attn_implementation = "sdpa"
    return trainer


def make_llamafactory_twin(
    folder: str, stage: str, kind: int, lengths: Any, per_device: int, steps: int, settings: dict[str, Any]
) -> Any:
    """Return the trainer of a stage of LLaMA-Factory on preferences, or on answers with a label."""
    import torch

    torch.manual_seed(0)
    if PAD_IS_END in settings:
        raise ValueError("its template chooses the pad token")
    rows = [{**row, "query": ""} for row in write_rows(lengths)[kind]]
    columns = {"prompt": "prompt", "query": "query", "chosen": "chosen", "rejected": "rejected"}
    if kind:
        columns = {"prompt": "prompt", "query": "query", "response": "completion", "kto_tag": "label"}
    folder = f"{folder}/scorer" if stage == "rm" else folder
    options = {name: value for name, value in settings.items() if name != "ref_model"}
    if "max_length" in options:
        options["cutoff_len"] = options.pop("max_length")
    reference = {} if "ref_model" in settings or stage not in ("dpo", "kto") else {"ref_model": f"{folder}/reference"}
    given = {**list_arguments(folder, per_device, steps), "stage": stage, "learning_rate": 0.0, **reference, **options}
    return start_llamafactory(folder, rows, {"ranking": not kind, "columns": columns}, given)
