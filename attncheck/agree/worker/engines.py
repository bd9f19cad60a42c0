"""Rollout engines: each loads a model's folder, generates, and returns its log-probabilities.

Sources: transformers 5.17.0 generation/utils.py (`generate`: `scores` are the processed logits that it samples from,
`logits` the model's own) and generation/continuous_batching/model_runner.py (`_sample`: log-probabilities of processed
scores); vllm 0.32.0 config/model.py (`logprobs_mode`), sampling_params.py, outputs.py; sglang 0.5.23
srt/entrypoints/engine.py (`Engine`), srt/layers/sampler.py (log-probabilities of the distribution before top_p, top_k
and min_p, divided by the temperature unless `SGLANG_RETURN_ORIGINAL_LOGPROB` is set) and
srt/managers/tokenizer_manager.py (`output_ids`, and triples of log-probability, token and text).
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from attncheck.agree.worker.models import NEW_TOKENS, Sample, computing, gather, load_model
from attncheck.agree.worker.routes import RouteWatch
from attncheck.core.agreement import EngineName, Rollout
from attncheck.core.plan import Precision
from attncheck.smoke.worker.testbed import DTYPES

FLOOR_PROMPTS = 4
CACHE_BYTES = 1 << 28  # for vLLM's KV cache on a CPU; these prompts need a fraction of it
CACHE_TOKENS = 4096  # in SGLang's KV cache
CONTEXT = 512  # tokens, if the launch sets no limit
SERVED_DTYPES: dict[Precision, str] = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Generated:
    """An engine's output; values that it does not provide are empty.

    For each sample, `logits` are (tokens, vocabulary). `hidden` are each layer's states and `routes` the experts at the
    positions that predict the response. `again` are the first samples' log-probabilities in another batch shape, of the
    model's own distribution at the sampling temperature, or at 1 if the engine's are raw; `first` are the same in the
    first shape.
    """

    samples: tuple[Sample, ...]
    version: str
    logits: tuple[Tensor, ...] = ()
    hidden: tuple[tuple[Tensor, ...], ...] = ()
    routes: tuple[Tensor, ...] = ()
    first: tuple[Tensor, ...] = ()
    again: tuple[Tensor, ...] = ()
    notes: tuple[str, ...] = ()


class Engine(Protocol):
    """A rollout engine that has started."""

    def generate(self, prompts: Sequence[list[int]]) -> Generated:
        """Return responses to the prompts. May raise any error of the engine."""


class TransformersEngine:
    """transformers' `generate`, or its continuous batching."""

    def __init__(self, folder: str, rollout: Rollout, device: str) -> None:
        """Load the model."""
        import transformers

        self.rollout, self.device = rollout, device
        self.version = f"transformers {transformers.__version__}"
        self.model = load_model(
            folder, DTYPES[rollout.precision], rollout.attn_implementation, rollout.overrides, device
        )
        self.end = self.model.generation_config.eos_token_id
        padding = self.model.generation_config.pad_token_id
        self.padding = 0 if padding is None else int(padding)

    def _make_config(self, **more: Any) -> Any:
        import transformers

        make_config: Any = transformers.GenerationConfig
        rollout = self.rollout
        return make_config(
            do_sample=True,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            min_p=rollout.min_p or None,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=self.end,
            pad_token_id=self.padding,
            **more,
        )

    def generate(self, prompts: Sequence[list[int]]) -> Generated:
        """Return responses to the prompts, all in one batch."""
        torch.manual_seed(self.rollout.seed)
        if self.rollout.continuous_batching:
            return self._generate_continuously(prompts)
        with RouteWatch(self.model) as watch:
            outputs = self._run(prompts)
        steps = [own for call in range(len(outputs.logits)) if (own := watch.read(call, len(prompts))) is not None]
        ends = self.end if isinstance(self.end, list) else [self.end]
        width = max(map(len, prompts))
        samples, logits, hidden, routes = [], [], [], []
        for row, prompt in enumerate(prompts):
            response = outputs.sequences[row, width:].tolist()
            ended = next((index + 1 for index, token in enumerate(response) if token in ends), len(response))
            response = tuple(response[:ended])
            own = torch.stack([step[row] for step in outputs.logits[:ended]])
            scores = torch.stack([step[row] for step in outputs.scores[:ended]])
            given = gather(scores if self.rollout.log_probabilities == "processed" else own, response)
            samples.append(Sample(tuple(prompt), response, tuple(given.tolist())))
            logits.append(own.cpu())
            hidden.append(_collect_hidden(outputs.hidden_states, row, ended))
            routes += [torch.stack([own[:, row, -1] for own in steps[:ended]], 1)] if steps else []
        first = [
            gather(own.float() / self.rollout.temperature, sample.response)
            for own, sample in zip(logits[:FLOOR_PROMPTS], samples, strict=False)
        ]
        again = [self._force(sample) for sample in samples[:FLOOR_PROMPTS]]
        return Generated(
            tuple(samples), self.version, tuple(logits), tuple(hidden), tuple(routes), tuple(first), tuple(again)
        )

    def _run(self, prompts: Sequence[list[int]], **options: Any) -> Any:
        width = max(map(len, prompts))
        tokens = torch.full((len(prompts), width), self.padding)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        config = self._make_config(
            return_dict_in_generate=True, output_scores=True, output_logits=True, output_hidden_states=True
        )
        with computing(self.rollout.precision, self.device):
            return self.model.generate(
                tokens.to(self.device), attention_mask=mask.to(self.device), generation_config=config, **options
            )

    def _force(self, sample: Sample) -> Tensor:
        """Return log p of a response that is generated again in its batch with every token forced."""
        start = len(sample.prompt)

        def allow(row: int, tokens: Tensor) -> list[int]:
            return [sample.response[min(len(tokens) - start, len(sample.response) - 1)]]

        outputs = self._run([list(sample.prompt)], prefix_allowed_tokens_fn=allow)
        own = torch.stack([step[0] for step in outputs.logits[: len(sample.response)]])
        return gather(own.float() / self.rollout.temperature, sample.response).cpu()

    def _generate_continuously(self, prompts: Sequence[list[int]]) -> Generated:
        from transformers.generation import configuration_utils

        settings = configuration_utils.ContinuousBatchingConfig(return_logprobs=True, seed=self.rollout.seed)
        with computing(self.rollout.precision, self.device):
            outputs = self.model.generate_batch(
                [list(prompt) for prompt in prompts],
                generation_config=self._make_config(),
                continuous_batching_config=settings,
                progress_bar=False,
            )
        done = list(outputs.values())
        failed = next((output.error for output in done if output.error), None)
        if failed or len(done) != len(prompts):
            raise RuntimeError(failed or f"{len(done)} of {len(prompts)} requests of continuous batching finished")
        samples = [
            Sample(tuple(output.prompt_ids), tuple(output.generated_tokens), tuple(output.logprobs)) for output in done
        ]
        return Generated(tuple(samples), f"{self.version} continuous batching")


def _collect_hidden(steps: Any, row: int, count: int) -> tuple[Tensor, ...]:
    """Return each layer's states that predict a row's response: (tokens, width) for each layer."""
    if not steps or not steps[0]:
        return ()
    layers = range(len(steps[0]))
    return tuple(torch.stack([step[layer][row, -1] for step in steps[:count]]).float().cpu() for layer in layers)


class VllmEngine:
    """vLLM inside this process: it starts no other process that could be left running."""

    def __init__(self, folder: str, rollout: Rollout, device: str) -> None:
        """Start the engine. Raises vLLM's own error if it cannot start."""
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_NO_USAGE_STATS="1",
            VLLM_DO_NOT_TRACK="1",
            VLLM_LOGGING_LEVEL="ERROR",
            VLLM_CPU_KVCACHE_SPACE=os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        )
        import vllm  # type: ignore[import-not-found]

        self.rollout = rollout
        self.version = f"vllm {vllm.__version__}"
        overrides = {key: json.loads(text) for key, text in rollout.overrides}
        self.llm = vllm.LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype=SERVED_DTYPES.get(rollout.precision, "float32"),
            enforce_eager=True,
            max_model_len=rollout.max_model_len or CONTEXT,
            max_num_seqs=16,
            seed=rollout.seed,
            logprobs_mode=f"{rollout.log_probabilities}_logprobs",
            **({"hf_overrides": overrides} if overrides else {}),
            **{key: json.loads(text) for key, text in rollout.options},
            **({"kv_cache_memory_bytes": CACHE_BYTES} if device == "cpu" else {"gpu_memory_utilization": 0.3}),
        )

    def generate(self, prompts: Sequence[list[int]]) -> Generated:
        """Return responses to the prompts."""
        import vllm

        rollout = self.rollout
        parameters = vllm.SamplingParams(
            seed=rollout.seed,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k or -1,
            min_p=rollout.min_p,
            max_tokens=NEW_TOKENS,
            logprobs=0,
            detokenize=False,
        )
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = self.llm.generate(requests, parameters, use_tqdm=False)
        samples = []
        for prompt, request in zip(prompts, outputs, strict=True):
            output = request.outputs[0]
            given = [step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)]
            samples.append(Sample(tuple(prompt), tuple(output.token_ids), tuple(given)))
        if rollout.log_probabilities == "processed" and (rollout.temperature != 1.0 or rollout.truncates):
            return Generated(tuple(samples), self.version)  # it scores prompts without the sampling's settings
        floor = samples[:FLOOR_PROMPTS]
        first = tuple(torch.tensor(sample.log_probabilities) for sample in floor)
        return Generated(tuple(samples), self.version, first=first, again=tuple(map(self._score, floor)))

    def _score(self, sample: Sample) -> Tensor:
        """Return log p of a response that is scored alone, as part of a prompt."""
        import vllm

        parameters = vllm.SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        (output,) = self.llm.generate([{"prompt_token_ids": list(sample.tokens)}], parameters, use_tqdm=False)
        steps = output.prompt_logprobs[len(sample.prompt) :]
        return torch.tensor([step[token].logprob for step, token in zip(steps, sample.response, strict=True)])


class SglangEngine:
    """SGLang; its processes are in this one's group, and end with it."""

    def __init__(self, folder: str, rollout: Rollout, device: str) -> None:
        """Start the engine. Raises SGLang's own error if it cannot start."""
        os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = str(rollout.log_probabilities == "raw").lower()
        import sglang  # type: ignore[import-not-found]

        self.rollout = rollout
        self.version = f"sglang {sglang.__version__}"
        self.engine = sglang.Engine(
            model_path=folder,
            skip_tokenizer_init=True,
            dtype=SERVED_DTYPES.get(rollout.precision, "float32"),
            device=device,
            disable_cuda_graph=True,
            context_length=rollout.max_model_len or CONTEXT,
            max_total_tokens=CACHE_TOKENS,
            mem_fraction_static=0.3,
            random_seed=rollout.seed,
            json_model_override_args=json.dumps({key: json.loads(text) for key, text in rollout.overrides}),
        )

    def generate(self, prompts: Sequence[list[int]]) -> Generated:
        """Return responses to the prompts."""
        rollout = self.rollout
        parameters = {
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "top_k": rollout.top_k or -1,
            "min_p": rollout.min_p,
            "max_new_tokens": NEW_TOKENS,
        }
        outputs = self.engine.generate(
            input_ids=[list(prompt) for prompt in prompts], sampling_params=parameters, return_logprob=True
        )
        samples = []
        for prompt, output in zip(prompts, outputs, strict=True):
            given = tuple(triple[0] for triple in output["meta_info"]["output_token_logprobs"])
            samples.append(Sample(tuple(prompt), tuple(output["output_ids"]), given))
        return Generated(tuple(samples), self.version)


ENGINES: dict[EngineName, Callable[[str, Rollout, str], Engine]] = {
    "transformers": TransformersEngine,
    "vllm": VllmEngine,
    "sglang": SglangEngine,
}
