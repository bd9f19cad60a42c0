"""A stand-in for sglang, not sglang: its interface computed by transformers.

Names of arguments and of what is returned are those of sglang 0.5.23: srt/arg_groups/fields/*.py (`ServerArgs`),
srt/entrypoints/engine.py (`Engine.generate`), srt/sampling/sampling_params.py (`SamplingParams`),
srt/managers/tokenizer_manager.py (`output_ids`, `output_token_logprobs`). Log-probabilities are computed as
srt/layers/sampler.py does: of the distribution at the temperature, before top_p, top_k and min_p.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import GenerationConfig

from attncheck.agree.worker.models import gather, load_model

__version__ = "0.5.23"


class Engine:
    """`sglang.Engine`: it refuses what `ServerArgs` does not have."""

    def __init__(
        self,
        *,
        model_path: str,
        skip_tokenizer_init: bool = False,
        dtype: str = "auto",
        device: str | None = None,
        disable_cuda_graph: bool = False,
        context_length: int | None = None,
        max_total_tokens: int | None = None,
        mem_fraction_static: float | None = None,
        random_seed: int | None = None,
        json_model_override_args: str = "{}",
        log_level: str = "info",
    ) -> None:
        """Load the model."""
        assert skip_tokenizer_init
        assert (device, json_model_override_args) == ("cpu", "{}")
        self.model = load_model(model_path, getattr(torch, dtype), "eager")
        torch.manual_seed(random_seed or 0)

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | None = None,
        input_ids: list[list[int]] | None = None,
        image_data: Any = None,
        audio_data: Any = None,
        video_data: Any = None,
        mm_hashes: Any = None,
        mm_content_hashes: Any = None,
        return_logprob: bool = False,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return a dictionary for each prompt."""
        assert prompt is None
        assert return_logprob
        return [self._generate(tokens, **(sampling_params or {})) for tokens in input_ids or []]

    def _generate(
        self,
        tokens: list[int],
        max_new_tokens: int = 128,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        min_p: float = 0.0,
    ) -> dict[str, Any]:
        make_config: Any = GenerationConfig
        settings = make_config(
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            top_k=max(top_k, 0),
            min_p=min_p or None,
            max_new_tokens=max_new_tokens,
            eos_token_id=self.model.generation_config.eos_token_id,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        row = torch.tensor([tokens])
        outputs = self.model.generate(row, attention_mask=torch.ones_like(row), generation_config=settings)
        written = outputs.sequences[0, len(tokens) :].tolist()
        is_raw = os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB") == "true"
        logits = torch.cat(outputs.logits).float() / (1.0 if is_raw else temperature)
        given = gather(logits, tuple(written)).tolist()
        triples = [(value, token, None) for value, token in zip(given, written, strict=True)]
        return {"output_ids": written, "meta_info": {"output_token_logprobs": triples}}
