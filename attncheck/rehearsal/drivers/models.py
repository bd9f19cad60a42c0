"""Makes the model and the optimiser of an actor whose worker does not run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

IMAGE_CLASSES = ("AutoModelForVision2Seq", "AutoModelForCausalLM", "AutoModelForImageTextToText")  # verl 0.7.1's order


def make_model(path: str, attention: str, checkpoints: bool, lora: Mapping[str, Any]) -> Any:
    """Return the model with float32 weights, with an adapter if `lora` has the arguments of one."""
    own_class = choose_class(AutoConfig.from_pretrained(path))
    model: Any = own_class.from_pretrained(path, torch_dtype=torch.float32, attn_implementation=attention)
    if lora:
        peft = importlib.import_module("peft")
        model.enable_input_require_grads()
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **lora))
    if checkpoints:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if torch.cuda.is_available():
        model = model.cuda()
    if torch.distributed.get_world_size() < 2:
        return model
    return torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)  # such as a tower's, of text


def choose_class(config: Any) -> Any:
    """Return the class of transformers that the worker loads a model with."""
    classes = (getattr(transformers, name, None) for name in IMAGE_CLASSES)
    known = (own for own in classes if own is not None and type(config) in own._model_mapping)
    return next(known, AutoModelForCausalLM)


def make_optimizer(model: Any, rate: float, betas: Any, decay: float) -> Any:
    """Return the worker's optimiser."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(parameters, rate, tuple(betas or (0.9, 0.999)), weight_decay=decay)
