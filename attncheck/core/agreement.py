"""How a job's rollout engine generates, and how its trainer scores the same tokens; plain data."""

from dataclasses import dataclass
from typing import Literal, get_args

from attncheck.core.plan import Precision

EngineName = Literal["transformers", "vllm", "sglang"]
Layout = Literal["packed", "right", "left"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
Overrides = tuple[tuple[str, str], ...]  # the keys of a config.json, each with its value as JSON


@dataclass(frozen=True)
class Rollout:
    """How the engine generates.

    `top_k` is 0 if it keeps every token. `log_probabilities` is "processed" if the engine returns those of the
    distribution that it samples from, "raw" if it returns those of its logits. `options` are arguments that only this
    engine has. `max_model_len` is in tokens, 0 if it is not set. `attn_implementation` applies to transformers' engine;
    "" leaves the choice to transformers.
    """

    engine: EngineName = "transformers"
    precision: Precision = "bf16"
    attn_implementation: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    log_probabilities: Literal["processed", "raw"] = "processed"
    continuous_batching: bool = False
    overrides: Overrides = ()
    options: Overrides = ()
    max_model_len: int = 0
    seed: int = 0

    @property
    def truncates(self) -> bool:
        """Whether some tokens are never sampled."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass(frozen=True)
class Scoring:
    """How the trainer computes log-probabilities.

    `layout` is how documents share a batch: in one row without padding ("packed"), padded on the right, or with prompts
    padded on the left and responses on the right ("left"). `passes_positions` is whether the framework gives the model
    position_ids if it pads. The logits are divided by `temperature`, in float32 or in the dtype that the model returns
    (`divides_float32`). `clip` is how far below and above 1 a ratio may be before the loss clips it. `dropout` is
    "functional" if the modules of dropout are off, and rates that a function of the model reads are not.
    """

    precision: Precision = "bf16"
    attn_implementation: str = ""
    layout: Layout = "packed"
    passes_positions: bool = True
    temperature: float = 1.0
    divides_float32: bool = True
    batch: int = 4
    clip: tuple[float, float] = (0.2, 0.2)
    overrides: Overrides = ()
    dropout: Literal["off", "functional", "on"] = "off"
