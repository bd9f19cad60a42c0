"""Measures what the installed trainers do with two tiny documents: gradients per division of a batch, and batch keys.

It runs in a child of the examined interpreter, knows nothing of attncheck, and writes only to a temporary folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from .frameworks import Maker, list_makers
from .zero import CONFIGURATIONS, measure_weights, start_deepspeed

VOCABULARY = 64
PAD, EOS = VOCABULARY - 1, VOCABULARY - 2
LENGTHS = (5, 17)  # unequal lengths: the mean over micro-batches differs from the mean over tokens
ATTENTIONS = ("sdpa", "flash_attention_2", "flash_attention_3", "kernels-community/vllm-flash-attn3")
LAYOUTS = ("padded", "packing", "padding_free")
DIVISIONS = (("one batch", 1, 1), ("two micro-batches", 2, 1), ("two replicas", 1, 2))
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "WANDB_DISABLED": "1",
    "DISABLE_VERSION_CHECK": "1",
}  # fmt: skip


def call(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return {"measurements": […]} of the experiment `name`: "gradients", "keys" or "accumulation"."""
    import logging
    import warnings

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    experiments: dict[str, Callable[[str], Iterator[dict[str, Any]]]] = {
        "gradients": measure_gradients,
        "keys": measure_keys,
        "accumulation": measure_accumulation,
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ENVIRONMENT, HF_DATASETS_CACHE=f"{folder}/datasets", MODELSCOPE_CACHE=f"{folder}/modelscope")
        return {"measurements": list(experiments[name](folder))}


# Gradients: what the loss is divided by ------------------------------------------------------------------------------
def measure_gradients(folder: str) -> Iterator[dict[str, Any]]:
    """Yield, for each trainer and division of two documents, its gradient relative to that of their mean loss."""
    save_model(folder)
    makers = {"transformers": make_plain_trainer, **find_makers()}
    without_replicas = list_makers()  # they split the model instead, or refuse
    for name, make in makers.items():
        for division, steps, replicas in DIVISIONS:
            if replicas == 1 or name not in without_replicas:
                question = {"trainer": name, "division": division}
                yield _answer(question, measure_step, make, folder, steps, replicas)


def find_makers() -> dict[str, Maker]:
    """Return a function that makes a trainer for each installed framework."""
    return {**({"trl": make_sft_trainer} if _has("trl") else {}), **list_makers()}


def _answer(question: dict[str, Any], measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return the question with the measurement, or with the error, because a package's refusal is an answer too."""
    try:
        return {**question, **measure(*arguments)}
    except Exception as error:
        return {**question, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def measure_step(make: Maker, folder: str, steps: int, replicas: int) -> dict[str, Any]:
    """Return the ratio of norms, the cosine, and the ratio of the logged norm, each against the right gradient."""
    import torch

    torch.manual_seed(0)
    trainer = make(folder, documents(), "padded", "sdpa", 1 if steps > 1 or replicas > 1 else 2, steps)
    right = right_gradient(trainer.model, [trainer.train_dataset[number] for number in range(len(LENGTHS))])
    trainer.optimizer = optimizer = Recorder(trainer.model.parameters())
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    plain = torch.nn.DataParallel
    if replicas > 1:
        torch.nn.DataParallel = make_replicas_class(replicas)  # type: ignore[misc]
        trainer.args._n_gpu = replicas
        trainer._train_batch_size = trainer.args.train_batch_size
    try:
        trainer.train()
    finally:
        torch.nn.DataParallel = plain  # type: ignore[misc]
    if not optimizer.gradients:
        raise RuntimeError("no optimiser step was taken")
    gradient = optimizer.gradients[0]
    logged = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    norm = float(right.norm())
    return {
        "ratio": float(gradient.norm()) / norm,
        "cosine": float(torch.dot(gradient, right)) / (float(gradient.norm()) * norm or 1.0),
        "logged": float(logged[0]) / norm if logged else 0.0,
    }


def save_model(folder: str) -> None:
    """Write the model and its tokenizer to `model` in the folder."""
    make_model().save_pretrained(f"{folder}/model")
    _make_tokenizer().save_pretrained(f"{folder}/model")


def make_model() -> Any:
    """Return a tiny causal model in float32 without dropout, of a type that works with any tokenizer."""
    from transformers import MistralConfig, MistralForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 128,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    }  # fmt: skip
    tokens: dict[str, Any] = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": EOS}
    return MistralForCausalLM(MistralConfig(**sizes, **tokens, sliding_window=None))


def documents() -> list[list[int]]:
    """Return the token ids of two documents."""
    return [
        [(7 * number + 3 * position) % (VOCABULARY - 4) for position in range(length)]
        for number, length in enumerate(LENGTHS)
    ]


def right_gradient(model: Any, rows: list[Any]) -> Any:
    """Return the gradient of the summed loss of the rows over the number of their labels, as one vector."""
    import torch

    pairs = [(row["input_ids"], row.get("labels") or row["input_ids"]) for row in rows]
    total = sum(label != -100 for _, labels in pairs for label in labels)  # transformers counts a row's first one too
    for ids, labels in pairs:
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), reduction="sum")
        (loss / total).backward()
    gradient = flatten_gradients(model.parameters())
    model.zero_grad()
    return gradient


def flatten_gradients(parameters: Any) -> Any:
    """Return the gradients of the parameters as one float32 vector, with zeros for a parameter without a gradient."""
    import torch

    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([gradient.detach().float().flatten() for gradient in gradients])


def Recorder(parameters: Any) -> Any:  # noqa: N802 (a class that needs torch to be imported)
    """Return an optimiser with learning rate 0 that records the gradients of each step."""
    import torch

    class _Recorder(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            self.recorded = list(parameters)
            self.gradients: list[Any] = []
            super().__init__(self.recorded, lr=0.0)

        def step(self, closure: Any = None) -> Any:
            self.gradients.append(flatten_gradients(self.recorded))
            return super().step(closure)

    return _Recorder(parameters)


def make_replicas_class(replicas: int) -> Any:
    """Return a class like nn.DataParallel without devices: it scatters and gathers on one module, as torch does."""
    import torch

    class Replicas(torch.nn.Module):
        def __init__(self, module: Any, *_: object, **__: object) -> None:
            super().__init__()
            self.module = module

        def forward(self, **inputs: Any) -> Any:
            scattered = [_scatter(value, replicas) for value in inputs.values()]
            outputs = [self.module(**dict(zip(inputs, values))) for values in zip(*scattered)]
            if len(outputs) == 1:
                return outputs[0]
            losses = torch.stack([output["loss"].reshape(()) for output in outputs])
            return type(outputs[0])(loss=losses, logits=torch.cat([output["logits"] for output in outputs]))

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("module"), name)

    return Replicas


def _scatter(value: Any, replicas: int) -> list[Any]:
    """Return the part of `value` for each replica, as torch/nn/parallel/scatter_gather.py does: chunks of a tensor."""
    import torch

    return list(value.chunk(replicas)) if isinstance(value, torch.Tensor) else [value] * replicas


def _training_arguments(config: Any, folder: str, per_device: int, steps: int, **more: Any) -> Any:
    import inspect

    wanted = {
        "output_dir": folder, "per_device_train_batch_size": per_device, "gradient_accumulation_steps": steps,
        "max_steps": 1, "logging_steps": 1, "report_to": [], "use_cpu": True, "bf16": False, "fp16": False,
        "save_strategy": "no", "max_grad_norm": 1e9, "disable_tqdm": True, "remove_unused_columns": False,
        "gradient_checkpointing": False, **more,
    }  # fmt: skip
    known = inspect.signature(config).parameters
    return config(**{name: value for name, value in wanted.items() if name in known})


def make_plain_trainer(
    folder: str, documents: list[list[int]], layout: str, attention: str, per_device: int, steps: int
) -> Any:
    """Return transformers' own Trainer on the documents, in the given order."""
    import torch
    from transformers import Trainer, TrainingArguments

    def collate(batch: list[Any]) -> dict[str, Any]:
        longest = max(len(row["input_ids"]) for row in batch)

        def fill(name: str, value: int) -> Any:
            return torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in batch])

        ids = fill("input_ids", PAD)
        return {"input_ids": ids, "labels": fill("labels", -100), "attention_mask": (ids != PAD).long()}

    arguments = _training_arguments(TrainingArguments, folder, per_device, steps)
    rows = [{"input_ids": document, "labels": document} for document in documents]
    return Trainer(make_model(), arguments, collate, rows)


def make_sft_trainer(
    folder: str, documents: list[list[int]], layout: str, attention: str, per_device: int, steps: int
) -> Any:
    """Return TRL's SFTTrainer on the documents."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    options: dict[str, Any] = {layout: True} if layout != "padded" else {}
    options["max_length"] = 64 if layout == "packing" else None
    arguments = _training_arguments(SFTConfig, folder, per_device, steps, **options)
    model, tokenizer = make_model(), _make_tokenizer()
    model.config._attn_implementation = attention
    dataset = Dataset.from_list([{"input_ids": document} for document in documents])
    return SFTTrainer(model, args=arguments, train_dataset=dataset, processing_class=tokenizer)


def _make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(VOCABULARY - 2)}
    tokenizer = Tokenizer(models.WordLevel({**words, "<eos>": EOS, "<pad>": PAD}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


# Keys: which keys of a batch reach the model --------------------------------------------------------------------------
def measure_keys(folder: str) -> Iterator[dict[str, Any]]:
    """Yield which keys a batch of each framework has, by layout and attention, and whether they separate documents."""
    save_model(folder)
    for name, make in find_makers().items():
        for layout in LAYOUTS:
            for attention in ATTENTIONS:
                question = {"trainer": name, "layout": layout, "attention": attention}
                yield _answer(question, measure_batch, make, folder, layout, attention)


def measure_batch(make: Maker, folder: str, layout: str, attention: str) -> dict[str, Any]:
    """Return the keys of the first batch, and whether it marks where the documents of a row begin."""
    batch = next(iter(make(folder, documents() * 2, layout, attention, 2, 1).get_train_dataloader()))
    return {"keys": sorted(batch), "separates": layout == "padded" or separates_documents(batch)}


def separates_documents(batch: dict[str, Any]) -> bool:
    """Return whether a batch marks where the documents of a row begin, by positions, lengths or a mask."""
    positions, mask = batch.get("position_ids"), batch.get("attention_mask")
    if positions is not None:
        starts = (positions[..., :-1] == 0) & (positions[..., 1:] == 1)  # padding is all zeros
        if int(starts.sum()) > positions[..., 0].numel():
            return True
    if mask is not None and mask.dim() == 4:  # a query that sees itself, but not the row's first token
        allowed = mask == 0 if mask.dtype.is_floating_point else mask.bool()
        return bool((allowed.diagonal(dim1=-2, dim2=-1) & ~allowed[..., 0]).any())
    is_numbered = mask is not None and int(mask.max()) > 1  # LLaMA-Factory numbers the documents
    return is_numbered or any(name in batch for name in ("cu_seq_lens_q", "cu_seqlens", "seq_idx"))


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


# DeepSpeed: what one step takes of accumulated micro-batches ----------------------------------------------------------
def measure_accumulation(folder: str) -> Iterator[dict[str, Any]]:
    """Yield the weight of each micro-batch in one optimizer step, by ZeRO stage and place of the optimizer's state."""
    deepspeed = start_deepspeed(folder)
    for stage, offload in CONFIGURATIONS:
        yield _answer({"stage": stage, "offload": offload}, measure_weights, deepspeed, stage, offload)
