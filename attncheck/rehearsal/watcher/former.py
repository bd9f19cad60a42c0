"""Small functions and classes that TRL, transformers and Python no longer have, which many scripts still import.

Each is written from the documentation of its last release: trl 0.19.1 trainer/utils.py
(`DataCollatorForCompletionOnlyLM`, `get_kbit_device_map`) and models/utils.py (`setup_chat_format`); transformers 4.48
optimization.py (`AdamW`). Python 3.10 inspect.py (`getargspec`).
"""

from __future__ import annotations

import inspect
from typing import Any

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def get_kbit_device_map() -> dict[str, int] | None:
    """Return the device of a quantised model: this process's GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    from accelerate import PartialState  # type: ignore[import-not-found]

    return {"": PartialState().local_process_index}


def setup_chat_format(
    model: Any, tokenizer: Any, format: str = "chatml", resize_to_multiple_of: int | None = None
) -> tuple[Any, Any]:
    """Give a tokenizer ChatML's template and special tokens, and a model their embeddings."""
    start, end = "<|im_start|>", "<|im_end|>"
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = start, end, end
    tokenizer.add_special_tokens({"additional_special_tokens": [start, end]})
    tokenizer.chat_template = CHATML
    model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=resize_to_multiple_of)
    for config in (model.config, getattr(model, "generation_config", None)):
        if config is not None:
            config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
            config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def make_adamw() -> Any:
    """Return AdamW with transformers' defaults: no weight decay, and another epsilon."""
    import torch

    class AdamW(torch.optim.AdamW):
        def __init__(
            self,
            params: Any,
            lr: float = 1e-3,
            betas: tuple[float, float] = (0.9, 0.999),
            eps: float = 1e-6,
            weight_decay: float = 0.0,
            correct_bias: bool = True,
            no_deprecation_warning: bool = False,
        ) -> None:
            super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    return AdamW


def make_completion_collator() -> Any:
    """Return the collator that labels the tokens after a response template, up to the next instruction."""
    from transformers import DataCollatorForLanguageModeling

    class DataCollatorForCompletionOnlyLM(DataCollatorForLanguageModeling):
        def __init__(
            self,
            response_template: Any,
            instruction_template: Any = None,
            *arguments: Any,
            mlm: bool = False,
            ignore_index: int = -100,
            padding_free: bool = False,
            **options: Any,
        ) -> None:
            super().__init__(*arguments, **options, mlm=mlm)  # type: ignore[misc]
            self.ignore_index, self.padding_free = ignore_index, padding_free
            self.response, self.instruction = map(self._tokenize, (response_template, instruction_template))

        def _tokenize(self, template: Any) -> list[int]:
            if isinstance(template, str):
                return list(self.tokenizer.encode(template, add_special_tokens=False))
            return list(template or [])

        def torch_call(self, examples: Any) -> Any:
            batch = super().torch_call(examples)
            for labels in batch["labels"]:
                self._drop_others(labels)
            if self.padding_free:
                kept = batch.pop("attention_mask").bool()
                positions = kept.long().cumsum(1) - 1
                batch["input_ids"], batch["labels"], batch["position_ids"] = (
                    values[kept].unsqueeze(0) for values in (batch["input_ids"], batch["labels"], positions)
                )
                batch["labels"][batch["position_ids"] == 0] = self.ignore_index
            return batch

        def _drop_others(self, labels: Any) -> None:
            """Leave only the labels of the last response, or of each one between two instructions."""
            tokens = labels.tolist()
            starts = [place + len(self.response) for place in _find(tokens, self.response)]
            if not self.instruction:
                labels[: starts[-1] if starts else len(tokens)] = self.ignore_index
                return
            turns = _find(tokens, self.instruction)
            if not starts or not turns:
                labels[:] = self.ignore_index
                return
            turns = [0, *turns] if turns[0] > starts[0] else turns
            for number, (turn, start) in enumerate(zip(turns, starts)):
                labels[turn if number else 0 : start] = self.ignore_index
            if len(starts) < len(turns):
                labels[turns[-1] :] = self.ignore_index

    return DataCollatorForCompletionOnlyLM


def _find(tokens: list[int], part: list[int]) -> list[int]:
    return [place for place in range(len(tokens)) if part and tokens[place : place + len(part)] == part]


MAKERS = {
    "inspect.getargspec": lambda: lambda function: inspect.getfullargspec(function)[:4],
    "trl.get_kbit_device_map": lambda: get_kbit_device_map,
    "trl.setup_chat_format": lambda: setup_chat_format,
    "trl.DataCollatorForCompletionOnlyLM": make_completion_collator,
    "transformers.AdamW": make_adamw,
}


def has(package: str, name: str) -> bool:
    """Return whether a name that a package no longer has can be made."""
    return f"{package}.{name}" in MAKERS


def make(package: str, name: str) -> Any:
    """Return the replacement of a name that a package no longer has."""
    return MAKERS[f"{package}.{name}"]()
