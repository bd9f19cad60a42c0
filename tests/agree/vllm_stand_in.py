"""A stand-in for vllm, not vllm: its interface, computed by that of sglang.

Names are those of vllm 0.32.0: entrypoints/llm.py (`LLM`), sampling_params.py (`SamplingParams`), outputs.py
(`RequestOutput`: `outputs`, and `prompt_logprobs`, a table for each token of which the first is None).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from attncheck.agree.worker.models import gather
from tests.agree.sglang_stand_in import Engine

__version__ = "0.32.0"
SamplingParams = SimpleNamespace


class LLM:
    """`vllm.LLM`: it takes the arguments that the engine gives."""

    def __init__(self, *, model: str, dtype: str, seed: int, logprobs_mode: str, **options: Any) -> None:
        """Load the model."""
        assert options["skip_tokenizer_init"] and options["enforce_eager"]
        os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = str(logprobs_mode == "raw_logprobs").lower()
        self.engine = Engine(model_path=model, skip_tokenizer_init=True, dtype=dtype, device="cpu", random_seed=seed)

    def generate(self, requests: Sequence[dict[str, list[int]]], parameters: Any, use_tqdm: bool) -> list[Any]:
        """Return an output for each prompt; with `prompt_logprobs` it is that of the prompt's own tokens."""
        return [self._answer(request["prompt_token_ids"], **vars(parameters)) for request in requests]

    def _answer(
        self,
        tokens: list[int],
        max_tokens: int,
        detokenize: bool,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        seed: int | None = None,
        **sampling: Any,
    ) -> Any:
        if prompt_logprobs is not None:
            with torch.no_grad():
                logits = self.engine.model(torch.tensor([tokens])).logits[0, :-1]
            return SimpleNamespace(prompt_logprobs=[None, *_list_tables(tokens[1:], gather(logits, tuple(tokens[1:])))])
        output = self.engine._generate(tokens, max_tokens, **sampling)
        given = [value for value, _, _ in output["meta_info"]["output_token_logprobs"]]
        tables = _list_tables(output["output_ids"], given)
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=output["output_ids"], logprobs=tables)])


def _list_tables(tokens: Sequence[int], values: Any) -> list[dict[int, Any]]:
    return [{token: SimpleNamespace(logprob=float(value))} for token, value in zip(tokens, values, strict=True)]
