"""Measures whether a model computes the same after it is saved and loaded, or after its adapters are merged.

It runs in a child of the examined interpreter, knows nothing of attncheck, and writes to a temporary folder alone.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import importlib.util
import itertools
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

Operation = Callable[[Any], Any]  # of a model: it returns the model that a user would continue with
OWN_CLASS = "custom class"  # its `_init_weights` writes in place, as examples of custom models do
HEAD = "lm_head"
TABLE = "embed_tokens"
ADAPTERS: dict[str, dict[str, Any]] = {  # of a model whose head is tied to its embeddings
    f"modules_to_save={TABLE}": {"modules_to_save": [TABLE]},
    f"modules_to_save={HEAD}": {"modules_to_save": [HEAD]},
    f"target_modules={TABLE}": {"target_modules": ["q_proj", TABLE]},
}
LOADED = "saved and loaded"
NOISE = 0.3  # added to each parameter that is trained, so that no copy equals another


def list_cases(folder: str, make_model: Callable[..., Any]) -> Iterator[tuple[str, str, Callable[[], Any], Operation]]:
    """Yield the name of a model, of an operation on it, what makes the model, and the operation."""
    from transformers import AutoModelForCausalLM

    def reload(model: Any, load: Callable[[str], Any] = AutoModelForCausalLM.from_pretrained) -> Any:
        saved = tempfile.mkdtemp(dir=folder)  # loading takes an adapter that is left there
        model.save_pretrained(saved)
        return load(saved)

    yield "tied embeddings", LOADED, lambda: make_model(tie_word_embeddings=True), reload
    yield OWN_CLASS, LOADED, make_own_model, lambda model: reload(model, type(model).from_pretrained)
    operations = {LOADED: reload, **OPERATIONS}
    for model, is_tied in (("tied embeddings", True), ("untied embeddings", False)):
        for pair in itertools.permutations(operations, 2):
            make_plain = functools.partial(make_model, tie_word_embeddings=is_tied)
            yield (
                model,
                ", then ".join(pair),
                make_plain,
                functools.partial(_run_both, *(operations[name] for name in pair)),
            )
    if importlib.util.find_spec("peft") is None:
        return
    peft = importlib.import_module("peft")
    make_model(tie_word_embeddings=True).save_pretrained(f"{folder}/tied")

    def make_adapted(settings: dict[str, Any]) -> Any:
        base = AutoModelForCausalLM.from_pretrained(f"{folder}/tied")
        settings = {"target_modules": ["q_proj"], **settings}
        return peft.get_peft_model(base, peft.LoraConfig(r=2, task_type="CAUSAL_LM", **settings))

    for name, settings in ADAPTERS.items():

        def make(settings: dict[str, Any] = settings) -> Any:
            return make_adapted(settings)

        yield name, LOADED, make, lambda model: reload(model, peft.AutoPeftModelForCausalLM.from_pretrained)
        yield name, "merged", make, lambda model: model.merge_and_unload()
        yield name, "merged, saved and loaded", make, lambda model: reload(model.merge_and_unload())


def _run_both(first: Operation, second: Operation, model: Any) -> Any:
    return second(first(model))


def _initialise(model: Any) -> Any:
    model.post_init()  # it initialises what is not
    return model


def _enlarge(model: Any) -> Any:
    model.resize_token_embeddings(model.config.vocab_size + 8)
    return model


# Neutral: the logits of known tokens remain the same, in each order.
OPERATIONS: dict[str, Operation] = {
    "initialised again": _initialise, "copied": copy.deepcopy, "given a larger vocabulary": _enlarge,
}  # fmt: skip


def list_adapters() -> Iterator[tuple[str, str, Callable[[], Any], Operation]]:
    """Yield the same of the adapters that the installed PEFT has, and of LoRA with each of its options that is off.

    Another module that is saved has an ordinary name, or one that begins as the names of the adapter's parameters do.
    """
    if importlib.util.find_spec("peft") is None:
        return
    peft, mapping = importlib.import_module("peft"), importlib.import_module("peft.mapping")
    prefixes = vars(mapping).get("PEFT_TYPE_TO_PREFIX_MAPPING", {})
    for kind, config in mapping.PEFT_TYPE_TO_CONFIG_MAPPING.items():
        fields = {field.name: field for field in dataclasses.fields(config)}
        options = [name for name, own in fields.items() if own.default is False and name != "inference_mode"]
        for option in ("", *options * (kind == "LORA")):

            def make(saved: str = "", config: Any = config, option: str = option, fields: Any = fields) -> Any:
                given: dict[str, Any] = {"r": 2, "modules_to_save": [saved] if saved else None, option: True}
                own = config(target_modules=["body"], **{name: given[name] for name in given if name in fields})
                return peft.get_peft_model(make_layers(saved or HEAD), own)

            name = f"{getattr(kind, 'value', kind)} {option}".strip()
            yield name, "merged with another", functools.partial(_add_another, make), _merge
            for head in dict.fromkeys(("head", f"{prefixes.get(kind, '')}head")):
                remake = functools.partial(make, head)
                yield f"modules_to_save={head}", f"{LOADED} ({name})", remake, functools.partial(_load, remake)


def _add_another(make: Callable[[], Any]) -> Any:
    model = make()
    model.add_adapter("another", model.peft_config["default"])
    model.base_model.set_adapter(["default", "another"])
    return model


def _merge(model: Any) -> Any:
    return model.merge_and_unload()


def _load(make: Callable[[], Any], model: Any) -> Any:
    """Return a new model with the adapter that would be saved of this one."""
    peft, loaded = importlib.import_module("peft"), make()
    peft.set_peft_model_state_dict(loaded, peft.get_peft_model_state_dict(model))
    return loaded


def measure_change(make: Callable[[], Any], operation: Operation) -> dict[str, float]:
    """Return how much the operation changes the trained model's outputs, relative to their standard deviation."""
    import torch

    torch.manual_seed(0)
    model = make().eval()
    ids = torch.arange(8)[None]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(NOISE * torch.randn_like(parameter))
        before = model(input_ids=ids)["logits"].clone()
        after = operation(model).eval()(input_ids=ids)["logits"][..., : before.shape[-1]]
    return {"change": min(float((after - before).abs().max() / before.std()), 1e6)}


def make_layers(head: str) -> Any:
    """Return a plain module whose last layer has a given name."""
    import torch

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)  # the weights that are not saved
            self.embed, self.body = torch.nn.Embedding(16, 16), torch.nn.Linear(16, 16)
            self.add_module(head, torch.nn.Linear(16, 16))

        def forward(self, input_ids: Any) -> dict[str, Any]:
            return {"logits": self.get_submodule(head)(self.body(self.embed(input_ids)))}

    return Layers()


def make_own_model() -> Any:
    """Return a model of a class that is not part of transformers."""
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

    class OwnModel(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.embed, self.head = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16)
            self.post_init()

        def _init_weights(self, module: Any) -> None:
            if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
                module.weight.data.normal_(0.0, 0.02)

        def forward(self, input_ids: Any) -> dict[str, Any]:
            return {"logits": self.head(self.embed(input_ids))}

    return OwnModel(PretrainedConfig())
