"""Measures whether TRL's trainers score a padded row as they would score the row without padding.

It runs in a child of the examined interpreter, knows nothing of attncheck, and writes to a temporary folder alone.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from . import twins
from .twins import find_place, list_compared, observe

# objectives of TRL whose trainers generate the rows that they score: losses to evaluate, "" for the default
SAMPLING = {"grpo": ("", "grpo"), "rloo": ("",), "online_dpo": ("",)}
ROWS = 4  # two prompts of two lengths, with two completions each
LEARNED: dict[str, Any] = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "initializer_range": 0.5}
NO_DROPOUT: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
SCALING = re.compile("(scale|normalize)_(rewards|advantages)")  # settings that divide rewards by their deviation
FACTOR, SCALE_TOLERANCE = 4.0, 0.02  # trainers add 1e-4 to the deviation
LENGTHS = {"max_completion_length": 4, "max_new_tokens": 4, "max_length": 64, "max_prompt_length": 32}


def make_learned_model(**settings: Any) -> Any:
    """Return a tiny model whose positions are learned, so that a row at other positions gives other results."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**LEARNED, **NO_DROPOUT, **settings))


def make_sampling_trainer(
    config: Any,
    trainer: Any,
    folder: str,
    tokenizer: Any,
    arguments: Callable[..., Any],
    model: str = "learned",
    count: int = 1,
    **settings: Any,
) -> Any:
    """Return a trainer of a saved model that generates completions for prompts of two lengths."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    if settings.pop(twins.PAD_IS_END, False):
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.eos_token
    prompts = [{"prompt": " ".join(f"w{token}" for token in range(3, 5 + 3 * number))} for number in range(ROWS)]
    data = Dataset.from_list(prompts)
    fixed = {"num_generations": 2, "generation_batch_size": ROWS, "per_device_eval_batch_size": ROWS, "beta": 0.1}
    options: dict[str, Any] = {
        "model": AutoModelForCausalLM.from_pretrained(f"{folder}/{model}"), "reward_funcs": _reward,
        "args": arguments(config, folder, ROWS // count, count, **{**fixed, **LENGTHS, **settings}),
        "processing_class": tokenizer,
        "train_dataset": data, "eval_dataset": data,
    }  # fmt: skip
    known = inspect.signature(trainer.__init__).parameters
    return trainer(**{name: value for name, value in options.items() if name in known})


def make_policy_trainer(make: Callable[..., Any], lengths: Any, per_device: int, count: int, settings: Any) -> Any:
    """Return a trainer whose model gives the same answers, of other lengths, however its rows are divided."""
    if lengths != twins.LENGTHS or twins.COLUMN in settings.values():
        raise ValueError("its rows are prompts")
    trainer = make(model="model", count=count, **{"learning_rate": 0.0, **settings})
    twins.give_answers(trainer)
    return trainer


def measure_scoring(make: Callable[[], Any]) -> dict[str, float]:
    """Return how padding changes the rows that a trainer's models score, relative to the size of the results."""
    trainer = make()
    seen: list[tuple[float, float]] = []
    for model in filter(None, (trainer.model, getattr(trainer, "ref_model", None))):
        _compare_rows(next(module for module in model.modules() if type(module).__name__ == "GPT2Model"), seen)
    trainer.train()
    if not seen:
        raise RuntimeError("no padded row was scored")
    return {"change": max(alone for alone, _ in seen), "shifted": max(shifted for _, shifted in seen)}


def _reward(completions: list[str], factor: float = 1.0, **_: object) -> list[float]:
    return [factor * number**2 for number, _ in enumerate(completions)]


def measure_rewards(make: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Yield the gradient that rewards times 4 give, for each value of a setting that divides them by their deviation.

    Values are those that the trainer's classes compare with. Without the division the gradient is linear in the
    rewards; with it, the factor has no effect.
    """
    made = make()
    name = next(filter(SCALING.fullmatch, vars(made.args)), "")
    for options in ({}, *({name: value} for value in list_compared(type(made), name) or (True, False))) * bool(name):
        norms = []
        for factor in (1.0, FACTOR):
            trainer = make(**options, learning_rate=0.0)
            trainer.reward_funcs = [functools.partial(_reward, factor=factor)]
            norms.append(float(observe(trainer, generates=True).gradients[0].norm()))
        expected = FACTOR if str(getattr(trainer.args, name)) in ("none", "False") else 1.0
        yield {
            "setting": "".join(f"{name}={value}" for value in options.values()),
            "change": f"{name}, rewards times 4",
            "ratio": norms[1] / norms[0],
            "part": "" if abs(norms[1] / norms[0] / expected - 1) <= SCALE_TOLERANCE else "gradient",
            "place": find_place(made, {name: 1.0}, name),
        }


def _compare_rows(backbone: Any, seen: list[tuple[float, float]]) -> None:
    """Let every call without a cache that has padded rows append the two differences of each."""
    import torch

    def compare(module: Any, args: Any, given: dict[str, Any], output: Any) -> None:
        ids, mask = given.get("input_ids", args[0] if args else None), given.get("attention_mask")
        if ids is None or mask is None or mask.shape != ids.shape or given.get("past_key_values") is not None:
            return
        handle.remove()  # the calls below are not compared
        for row, places, states in zip(ids, mask.bool(), output[0]):
            positions = torch.arange(len(row))[places]
            if 0 < len(positions) < len(row):
                with torch.no_grad():
                    alone = module(input_ids=row[places][None])[0][0]
                    shifted = module(input_ids=row[places][None], position_ids=positions[None])[0][0]
                own = states[places].detach()
                alone, shifted = (float((own - other).norm() / other.norm()) for other in (alone, shifted))
                seen.append((alone, shifted))
        _compare_rows(module, seen)

    handle = backbone.register_forward_hook(compare, with_kwargs=True)
