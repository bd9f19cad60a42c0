"""Measures what the installed trainers do with two tiny documents: gradients per division of a batch, and batch keys.

It runs in a child of the examined interpreter, knows nothing of attncheck, and writes only to a temporary folder.
Ranks are forks of that child, so that the packages are imported once.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import frameworks
from .frameworks import STEPS, Maker, import_frameworks, list_makers
from .keeping import PACKED, measure_packing, measure_windows
from .liger import OWN_LOSS, SETTINGS, imitate_liger
from .ranks import run_parts, run_ranks
from .resume import measure_resume
from .routers import measure_routers
from .saving import list_adapters, list_cases, measure_change
from .scoring import (
    SAMPLING,
    make_learned_model,
    make_policy_trainer,
    make_sampling_trainer,
    measure_rewards,
    measure_scoring,
)
from .twin_makers import measure_framework, measure_trainer, save_models
from .zero import CONFIGURATIONS, measure_weights, start_deepspeed

VOCABULARY = 64
PAD, EOS = VOCABULARY - 1, VOCABULARY - 2
SIZES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 128,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
}  # fmt: skip
TOKENS: dict[str, Any] = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": EOS}
LENGTHS = (5, 17)  # unequal lengths: the mean over micro-batches differs from the mean over tokens
ATTENTIONS = ("sdpa", "flash_attention_2", "flash_attention_3", "kernels-community/vllm-flash-attn3")
LAYOUTS = ("padded", "packing", "padding_free")
DIVISIONS = (("one batch", 1, 1), ("two micro-batches", 2, 1), ("two replicas", 1, 2))
SHORT_STEP = "a short last step"  # one micro-batch is left for the last step of an epoch
CHECKPOINTED = "LoRA with checkpointing"
ADAPTER = "QLoRA"  # the adapter of a model that is marked as quantised: what trainers do with LoRA, and more
BALANCING = "balancing loss"  # of a mixture of experts
RANKS = 2  # of two micro-batches each
# of TRL: baselines of adapters and of liger's losses; twins.py divides the batches of all of TRL's objectives
OBJECTIVES = {"dpo": "DPO", "gkd": "GKD"}
SET: dict[str, Any] = {"dpo": {"beta": 1.0}, "gkd": {"lmbda": 0.0}}  # a reference that differs shows; no sampling
CAPPED = "liger softcap"  # liger's loss of a model that caps its logits
EXPERTS = "target_parameters"  # an adapter of experts' weights
WIDE = 0.5  # a standard deviation of weights with which tokens have different losses
CLASSES = {**OBJECTIVES, "grpo": "GRPO", "rloo": "RLOO", "online_dpo": "OnlineDPO"}  # how TRL spells them
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "WANDB_DISABLED": "1",
    "DISABLE_VERSION_CHECK": "1",
}  # fmt: skip


def call(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return what each part of the experiments measured, by field, and why it did not end.

    The request has the seconds for all parts, and the names of those that are known (`settled`).
    """
    import logging
    import warnings

    started = time.monotonic()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    gc.collect = lambda *_: 0  # accelerate's at each start takes 50 ms; Python's go on
    for name in ("metadata", "version"):  # read at each question of accelerate and datasets
        setattr(importlib.metadata, name, functools.cache(getattr(importlib.metadata, name)))
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ENVIRONMENT, HF_DATASETS_CACHE=f"{folder}/datasets", MODELSCOPE_CACHE=f"{folder}/modelscope")
        import_frameworks()
        save_models(f"{folder}/twins", make_model, _make_tokenizer)
        deadline = started + request["seconds"]
        parts = {name: part for name, part in list_parts(folder, deadline).items() if name not in request["settled"]}
        gc.freeze()  # collections in forks would copy all pages
        return run_parts(parts, folder, deadline)


def list_parts(folder: str, deadline: float) -> dict[str, Callable[[], Iterable[Any]]]:
    """Return the parts of the experiments, the longest first. Each runs in a fork, because frameworks patch Trainer.

    Each yields measurements with their field of the answer.
    """
    trl, is_liger = ["trl"] * _has("trl"), _has("liger_kernel") and _has("triton")
    parts: dict[str, Callable[[], Iterable[Any]]] = {}
    for name in (*trl, *list_makers(), "transformers"):
        options = (name, f"{folder}/twins", _training_arguments, _make_tokenizer, is_liger)
        parts[f"neutral changes of {name}"] = functools.partial(_measure_twins, *options)
    for name in ("transformers", *trl, *list_makers()):
        parts[f"steps of {name}"] = functools.partial(measure_trainer_steps, name, f"{folder}/{name}")
    parts["two ranks"] = functools.partial(measure_ranks, folder, deadline)
    if trl:
        parts["rows that TRL's trainers generate"] = functools.partial(measure_sampling, f"{folder}/sampling")
    parts["saving"] = functools.partial(measure_saving, folder)
    if _has("deepspeed"):
        parts["accumulating under ZeRO"] = functools.partial(measure_accumulation, folder)
    return parts


def _measure_twins(*options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from (("twins", item) for item in measure_framework(*options))


# Gradients: what the loss is divided by ------------------------------------------------------------------------------
def measure_trainer_steps(trainer: str, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield, for each variant of a trainer and division of documents, its gradient relative to that of their mean loss.

    And whether it resumes, how it evaluates, and the keys of its batches.
    """
    save_model(folder)
    is_split = trainer in list_makers()  # they split the model instead of replicating it, or refuse
    for (name, variant), make in find_variants().items():
        if name != trainer:
            continue
        is_single = variant.endswith((CAPPED, EXPERTS, CHECKPOINTED))
        is_special = ADAPTER in variant or variant == BALANCING or is_single
        for division, steps, replicas in DIVISIONS[:1] if is_single or variant in OBJECTIVES else DIVISIONS:
            if replicas == 1 or not (is_split or is_special):
                question = {"trainer": name, "variant": variant, "division": division}
                rows = EQUAL if variant == BALANCING else None  # it depends on how documents that differ are divided
                yield "gradients", _answer(question, measure_step, make, folder, steps, replicas, rows=rows)
        if not is_special and variant not in OBJECTIVES:
            question = {"trainer": name, "variant": variant, "division": SHORT_STEP}
            yield "gradients", _answer(question, measure_step, make, folder, 2, rows=[*EQUAL, EQUAL[0]])
        if not variant:
            yield "resumes", _answer({"trainer": name}, measure_resume, make, folder)
        if not is_special:
            make_equal = functools.partial(make, folder, EQUAL, "padded", "sdpa", len(EQUAL), 1)
            answer = measure_evaluation({"trainer": name, "variant": variant}, make_equal)
            if not (variant or is_split):
                answer["by_row"] = _answer({}, measure_evaluation_by_row, make, folder).get("by_row", 1.0)
            yield "evaluations", answer
        if not variant and name != "transformers":
            yield from measure_keys(name, make, folder)


def measure_ranks(folder: str, deadline: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the gradients of trainers on two ranks."""
    makers = find_variants()
    for item in run_ranks(RANKS, lambda: _measure_ranks(makers, folder), folder, deadline):
        yield "gradients", item


def _measure_ranks(makers: dict[tuple[str, str], Maker], folder: str) -> Iterator[dict[str, Any]]:
    """Yield the measurements of one rank; all ranks make the same trainers in the same order."""
    folder = f"{folder}/rank{os.environ['RANK']}"
    save_model(folder)
    for (name, variant), make in makers.items():
        question = {"trainer": name, "variant": variant, "division": "two ranks"}
        if variant == BALANCING:
            yield _answer(question, measure_step, make, folder, 1, 1, RANKS, rows=EQUAL)
        elif not (variant in OBJECTIVES or variant.endswith((ADAPTER, CAPPED, EXPERTS, CHECKPOINTED))):
            yield _answer(question, measure_step, make, folder, 2, 1, RANKS)
    for name in ("transformers", "trl"):
        if (name, "") in makers:
            question = {"trainer": name, "variant": "tensor parallel", "division": "two ranks"}
            make = functools.partial(make_with_tensor_parallel, makers[name, ""])
            yield _answer(question, measure_step, make, folder, 2)


def find_variants() -> dict[tuple[str, str], Maker]:
    """Return a function that makes each installed trainer, by name and variant: "liger", "dpo", "dpo QLoRA"."""
    makers: dict[tuple[str, str], Maker] = {("transformers", ""): make_plain_trainer}
    if _has("trl"):
        makers["trl", ""] = make_sft_trainer
    if _has("liger_kernel") and _has("triton"):
        makers.update({(name, "liger"): functools.partial(make_with_liger, make) for (name, _), make in makers.items()})
    for objective in OBJECTIVES if _has("trl") else ():
        if _find_trl_class(objective, "Trainer") is not None:
            makers["trl", objective] = functools.partial(make_objective_trainer, objective)
    if _has("liger_kernel") and _has("triton"):
        for objective in sorted({"dpo", "gkd"} & {variant for _, variant in makers}):
            makers["trl", f"{objective} {CAPPED}"] = functools.partial(make_with_softcap, makers["trl", objective])
    for name in ("transformers", "trl"):
        if (name, "") in makers and _has_experts():
            makers[name, BALANCING] = functools.partial(make_with_experts, makers[name, ""])
    for (name, variant), make in list(makers.items()) if _has("peft") else ():
        if variant in ("", "dpo"):
            makers[name, f"{variant} {ADAPTER}".strip()] = functools.partial(make_with_adapter, make)
        if variant == "dpo" and _has_experts():
            makers[name, f"{variant} {EXPERTS}"] = functools.partial(make_with_adapter, make, of_experts=True)
        if not variant:
            makers[name, CHECKPOINTED] = functools.partial(make_with_adapter, make, gradient_checkpointing=True)
    makers.update({(name, ""): make for name, make in list_makers().items()})  # last, because they patch Trainer
    return makers


def _answer(
    question: dict[str, Any], measure: Callable[..., dict[str, Any]], *arguments: Any, **options: Any
) -> dict[str, Any]:
    """Return the question with the measurement, or with the error, because a package's refusal is an answer too."""
    try:
        return {**question, **measure(*arguments, **options)}
    except Exception as error:
        return {**question, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def measure_step(
    make: Maker,
    folder: str,
    steps: int,
    replicas: int = 1,
    ranks: int = 1,
    rows: list[list[int]] | None = None,
) -> dict[str, Any]:
    """Return how the gradient of a trainer's first step compares with the right one, and what its steps leave.

    `ratio` of norms, `cosine`, `logged`: the norm that the trainer logs, over the right one; `later`: the norm at the
    second step over that at the first; `moved`: the share of parameters with a gradient that the steps changed. `rows`
    replace the documents of two lengths. Of a model with an adapter, the adapter is judged.
    """
    import torch

    torch.manual_seed(0)
    divided = max(steps, replicas, ranks) > 1
    rows = rows or documents(max(2, steps * ranks))
    trainer = make(folder, rows, "padded", "sdpa", 1 if divided else 2, steps)
    whole = load_whole_model(folder) if getattr(trainer.model, "tp_size", None) else trainer.model
    named = dict(trainer.model.named_parameters())
    adapted = getattr(trainer, "adapted", ())
    pairs = [(named[name], full) for name, full in whole.named_parameters() if not adapted or name in adapted]
    parameters, reference = zip(*[(own, full) for own, full in pairs if own.shape == full.shape])  # less what is split
    if not any(parameter.requires_grad for parameter in parameters):
        return {"moved": 0.0}
    right = right_gradient(trainer, whole, reference)
    before = [parameter.detach().clone() for parameter in parameters]
    gradients: list[Any] = []
    trainer.create_optimizer()
    trainer.optimizer.register_step_pre_hook(lambda *_: gradients.append(flatten_gradients(parameters)))
    plain = torch.nn.DataParallel
    if replicas > 1:
        torch.nn.DataParallel = make_replicas_class(replicas)  # type: ignore[misc]
        trainer.args._n_gpu = replicas
        trainer._train_batch_size = trainer.args.train_batch_size
    try:
        trainer.train()
    finally:
        torch.nn.DataParallel = plain  # type: ignore[misc]
    if not gradients:
        raise RuntimeError("no optimiser step was taken")
    first, norm = gradients[0], float(right.norm())
    logged = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    trained = [not torch.equal(old, new) for old, new in zip(before, parameters) if new.requires_grad or adapted]
    return {
        "ratio": float(first.norm()) / norm,
        "cosine": float(torch.dot(first, right)) / (float(first.norm()) * norm or 1.0),
        "logged": float(logged[0]) / norm if logged else 0.0,
        "loss": float(losses[0]) if losses else 0.0,
        "later": float(gradients[-1].norm()) / (float(first.norm()) or 1.0) if len(gradients) == STEPS else 0.0,
        "moved": sum(trained) / len(trained),
    }


def save_model(folder: str) -> None:
    """Write the model and its tokenizer to `model` in the folder."""
    import torch

    torch.manual_seed(0)
    make_model().save_pretrained(f"{folder}/model")
    _make_tokenizer().save_pretrained(f"{folder}/model")


def make_model(**settings: Any) -> Any:
    """Return a tiny causal model in float32 without dropout, of a type that works with any tokenizer."""
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**SIZES, **TOKENS, sliding_window=None, **settings))


def documents(count: int = 2) -> list[list[int]]:
    """Return the token ids of documents of two lengths."""
    return [
        [(7 * number + 3 * position) % (VOCABULARY - 4) for position in range(LENGTHS[number % 2])]
        for number in range(count)
    ]


EQUAL = documents()[1:] * 2  # two equal documents


def right_gradient(trainer: Any, model: Any, parameters: Any) -> Any:
    """Return the gradient that a step should have, as one vector.

    It is that of the summed loss of all rows over the number of their labels. If the rows are not documents with
    labels, it is that of the trainer's own loss of all rows in one batch; of a mixture of experts, the model's own.
    """
    import torch

    rows = [trainer.train_dataset[number] for number in range(len(trainer.train_dataset))]
    if "input_ids" not in rows[0]:
        plain = getattr(trainer, "plain", trainer)
        plain.compute_loss(model, plain.data_collator(rows)).backward()
    elif getattr(model.config, "output_router_logits", False):
        model(**trainer.data_collator(rows)).loss.backward()
    else:
        pairs = [(row["input_ids"], row.get("labels") or row["input_ids"]) for row in rows]
        total = sum(label != -100 for _, labels in pairs for label in labels)  # a row's first label counts too
        for ids, labels in pairs:
            logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), reduction="sum")
            (loss / total).backward()
    gradient = flatten_gradients(parameters)
    model.zero_grad()
    return gradient


def flatten_gradients(parameters: Any) -> Any:
    """Return the gradients of the parameters as one float32 vector, with zeros for a parameter without a gradient."""
    import torch

    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    gradients = [gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient for gradient in gradients]
    return torch.cat([gradient.detach().float().flatten() for gradient in gradients])


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
        "max_steps": STEPS, "logging_steps": 1, "report_to": [], "use_cpu": True, "bf16": False, "fp16": False,
        "save_strategy": "no", "max_grad_norm": 1e9, "disable_tqdm": True, "remove_unused_columns": False,
        "gradient_checkpointing": False, "ddp_backend": "gloo" if "RANK" in os.environ else None, **more,
    }  # fmt: skip
    known = inspect.signature(config).parameters
    return config(**{name: value for name, value in wanted.items() if name in known})


def make_plain_trainer(
    folder: str,
    documents: list[list[int]],
    layout: str,
    attention: str,
    per_device: int,
    steps: int,
    model: Any = None,
    **more: Any,
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

    arguments = _training_arguments(TrainingArguments, folder, per_device, steps, **more)
    rows = [{"input_ids": document, "labels": document} for document in documents]
    return Trainer(model or make_model(), arguments, collate, rows)


def make_sft_trainer(
    folder: str,
    documents: list[list[int]],
    layout: str,
    attention: str,
    per_device: int,
    steps: int,
    model: Any = None,
    **more: Any,
) -> Any:
    """Return TRL's SFTTrainer on the documents."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    options: dict[str, Any] = {**more, **({layout: True} if layout != "padded" else {})}
    options["max_length"] = frameworks.MAX_LENGTH if layout == "packing" else None
    arguments = _training_arguments(SFTConfig, folder, per_device, steps, **options)
    model, tokenizer = model or make_model(), _make_tokenizer()
    model.config._attn_implementation = attention
    dataset = Dataset.from_list([{"input_ids": document} for document in documents])
    return SFTTrainer(model, args=arguments, train_dataset=dataset, processing_class=tokenizer)


def make_with_liger(make: Maker, *arguments: Any) -> Any:
    """Return a trainer whose loss is liger's."""
    imitate_liger()
    return make(*arguments, **SETTINGS)


def make_with_softcap(make: Maker, folder: str, *arguments: Any) -> Any:
    """Return a trainer of a model that caps its logits, with liger's loss; its `plain` is that without liger."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    imitate_liger()
    config = Gemma2Config(**SIZES, **TOKENS, head_dim=8, final_logit_softcapping=1.0, initializer_range=WIDE)
    Gemma2ForCausalLM(config).save_pretrained(f"{folder}/capped")
    load = functools.partial(Gemma2ForCausalLM.from_pretrained, f"{folder}/capped")  # DPO loads its reference too
    trainer = make(folder, *arguments, model=load(), **OWN_LOSS)
    trainer.plain = make(folder, *arguments, model=load())
    return trainer


def _has_experts() -> bool:
    return hasattr(importlib.import_module("transformers"), "Qwen3MoeForCausalLM")  # since 4.51


def make_with_experts(make: Maker, *arguments: Any) -> Any:
    """Return a trainer of a mixture of experts, most of whose gradient is that of the balancing loss."""
    return make(*arguments, model=make_mixture(output_router_logits=True, router_aux_loss_coef=10.0))


def make_mixture(**settings: Any) -> Any:
    """Return a tiny mixture of experts."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes: dict[str, Any] = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **sizes, **TOKENS, **settings))


def make_with_adapter(make: Maker, folder: str, *arguments: Any, of_experts: bool = False, **settings: Any) -> Any:
    """Return a trainer that is given a model with PEFT's adapter, which is not zero, so that all of it has a gradient.

    Without settings, the model has the mark of a quantised one, but is not. An adapter of experts has a large scale,
    because it changes less of what they compute.
    """
    peft = importlib.import_module("peft")
    targets: dict[str, Any] = {"target_modules": ["q_proj", "v_proj"]}
    if of_experts:
        targets = {"target_modules": [], "target_parameters": ["mlp.experts.gate_up_proj"], "lora_alpha": 800}
    config = peft.LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM", **targets)
    model = peft.get_peft_model(make_mixture() if of_experts else load_whole_model(folder), config)
    model.is_loaded_in_4bit = not (settings or of_experts)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    trainer = make(folder, *arguments, model=model, **settings)
    trainer.adapted, trainer.args.learning_rate = names, 1e-2  # bfloat16 does not round such a step away
    return trainer


def make_with_tensor_parallel(make: Maker, folder: str, *arguments: Any) -> Any:
    """Return a trainer of a model that all ranks share; accelerate would refuse to do so on a CPU."""
    from transformers import MistralForCausalLM

    importlib.import_module("accelerate.state").AcceleratorState._reset_state()
    config = importlib.import_module("accelerate.parallelism_config").ParallelismConfig
    config._validate_accelerator = lambda self, accelerator: None
    model = MistralForCausalLM.from_pretrained(f"{folder}/model", tp_plan="auto")
    return make(folder, *arguments, model=model)


def load_whole_model(folder: str) -> Any:
    """Return the saved model, not split across ranks."""
    from transformers import MistralForCausalLM

    return MistralForCausalLM.from_pretrained(f"{folder}/model")


def make_objective_trainer(
    objective: str,
    folder: str,
    documents: list[list[int]],
    layout: str,
    attention: str,
    per_device: int,
    steps: int,
    model: Any = None,
    **more: Any,
) -> Any:
    """Return TRL's trainer for answers of one length: the mean over rows is then also that over tokens."""
    import torch
    from datasets import Dataset

    def write(number: int) -> str:
        return " ".join(f"w{(5 * number + step) % (VOCABULARY - 4)}" for step in range(1, LENGTHS[0]))

    config = _find_trl_class(objective, "Config")
    arguments = _training_arguments(
        config, folder, per_device, steps, disable_dropout=False, **SET.get(objective, {}), **more
    )
    model, tokenizer = model or load_whole_model(folder), _make_tokenizer()  # DPO loads its reference from there too
    numbers = [documents.index(document) for document in documents]
    rows: list[dict[str, Any]] = [
        {"prompt": "w1 w2 ", "chosen": write(number), "rejected": write(number + 50)} for number in numbers
    ]
    options = {"model": model, "args": arguments, "processing_class": tokenizer}
    if objective == "gkd":
        torch.manual_seed(1)  # the teacher is not the model
        options["teacher_model"] = type(model)(model.config)
        tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
        roles = {"prompt": "user", "chosen": "assistant"}
        rows = [{"messages": [{"role": roles[name], "content": row[name]} for name in roles]} for row in rows]
    return _find_trl_class(objective, "Trainer")(**options, train_dataset=Dataset.from_list(rows))


def _find_trl_class(objective: str, kind: str) -> Any:
    """Return TRL's trainer or configuration for an objective, None if this release has none."""
    for module in ("trl", f"trl.experimental.{objective}"):
        with contextlib.suppress(Exception):  # a name may be there, and fail at its import
            return getattr(importlib.import_module(module), f"{CLASSES[objective]}{kind}")
    return None


def _make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(VOCABULARY - 2)}
    tokenizer = Tokenizer(models.WordLevel({**words, "<eos>": EOS, "<pad>": PAD}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


# Keys: which keys of a batch reach the model --------------------------------------------------------------------------
def measure_keys(name: str, make: Maker, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield which keys a batch of a framework has, by layout and attention, and whether they separate documents.

    And whether its rows keep their tokens.
    """
    for layout in LAYOUTS:
        for attention in ATTENTIONS:
            question = {"trainer": name, "layout": layout, "attention": attention}
            yield "batches", _answer(question, measure_batch, make, folder, layout, attention)
    question = {"trainer": name, "variant": "sft", "change": PACKED}
    measured = _answer(question, lambda: {"twins": list(measure_packing(name, make, folder))})
    yield from (("twins", item) for item in measured.get("twins", [measured]))


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


# Evaluating, and scoring of rows that the trainer generates -----------------------------------------------------------
def measure_evaluation(question: dict[str, Any], make: Callable[[], Any]) -> dict[str, Any]:
    """Return the evaluation loss before the first step over that step's training loss, or why evaluating fails.

    `at_start`: it fails before the first step only.
    """
    try:
        trainer = make()
        trainer.eval_dataset = trainer.train_dataset
        trainer.train()
    except Exception as error:
        return {**question, "unmeasured": str(error)[:300]}
    measured = _answer(question, lambda: (trainer.evaluate(), {})[1])
    if "error" in measured:
        return measured
    trainer = make()
    trainer.eval_dataset, trainer.args.eval_on_start = trainer.train_dataset, True
    measured = _answer(question, lambda: (trainer.train(), {})[1])
    losses = [entry[key] for entry in trainer.state.log_history for key in ("eval_loss", "loss") if key in entry]
    if "error" in measured or len(losses) < 2 or not losses[1]:
        return {**measured, "at_start": "error" in measured}
    return {**measured, "ratio": losses[0] / losses[1]}


def measure_evaluation_by_row(make: Maker, folder: str) -> dict[str, float]:
    """Return the evaluation loss of documents of two lengths, one row at a time, over that in one batch."""
    import torch

    torch.manual_seed(2)  # the rows' losses differ more than with others
    trainer = make(folder, documents(), "padded", "sdpa", 2, 1, model=make_model(initializer_range=WIDE))
    losses = []
    for trainer.args.per_device_eval_batch_size in (1, 2):
        losses.append(trainer.evaluate(trainer.train_dataset)["eval_loss"])
    return {"by_row": losses[0] / losses[1]}


def measure_sampling(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield how each trainer of TRL that generates its rows scores them, and whether it can evaluate."""
    save_model(folder)
    make_learned_model(vocab_size=VOCABULARY, **TOKENS).save_pretrained(f"{folder}/learned")
    tokenizer = _make_tokenizer()
    tokenizer.save_pretrained(f"{folder}/learned")
    for objective, losses in SAMPLING.items() if _has("trl") else ():
        trainer, config = _find_trl_class(objective, "Trainer"), _find_trl_class(objective, "Config")
        make = functools.partial(make_sampling_trainer, config, trainer, folder, tokenizer, _training_arguments)
        if trainer is not None:
            yield "scorings", _answer({"trainer": "trl", "variant": objective}, measure_scoring, make)
            measured = _answer({}, lambda: {"rewards": list(measure_rewards(make))})  # noqa: B023
            for item in measured.get("rewards", [measured]):  # an error is an answer too
                yield "twins", {"trainer": "trl", "variant": objective, **item}
            if hasattr(config, "generation_batch_size"):  # otherwise it generates for each micro-batch
                makers: list[Maker] = [functools.partial(make_policy_trainer, make)]
                is_liger = _has("liger_kernel") and _has("triton")
                yield from (("twins", it) for it in measure_trainer("trl", objective, makers, config, is_liger))
            for loss in losses:
                variant = f"{objective} loss_type={loss}" if loss else objective
                question = {"trainer": "trl", "variant": variant}
                yield (
                    "evaluations",
                    measure_evaluation(question, functools.partial(make, **({"loss_type": loss} if loss else {}))),
                )


# Saving: whether a model remains the same -----------------------------------------------------------------------------
def measure_saving(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield how much saving and loading, or merging an adapter, changes what a model computes.

    And two short measurements: the windows of a text, and the router logits of mixtures of experts.
    """
    yield from (("twins", item) for item in measure_windows(_make_tokenizer()))
    yield from (("routers", item) for item in measure_routers())
    for model, operation, make, run in list_cases(folder, make_model):
        yield "savings", _answer({"model": model, "operation": operation}, measure_change, make, run)
    for model, operation, make, run in list_adapters():
        answer = _answer({"model": model, "operation": operation}, measure_change, make, run)
        if "error" not in answer:  # an adapter that needs other options, or refuses the operation
            yield "savings", answer


# DeepSpeed: what one step takes of accumulated micro-batches ----------------------------------------------------------
def measure_accumulation(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the weight of each micro-batch in one optimizer step, by ZeRO stage and place of the optimizer's state."""
    deepspeed = start_deepspeed(folder)
    for stage, offload in CONFIGURATIONS:
        yield "accumulations", _answer({"stage": stage, "offload": offload}, measure_weights, deepspeed, stage, offload)
