"""How a small model behaved under ring-flash-attn's Hugging Face adapter on a group of ranks; plain data."""

from dataclasses import dataclass
from typing import Literal, get_args

from attncheck.core.verdicts import Answer, Outcome

Shape = Literal["plain", "short_window", "long_window", "sinks"]
SHAPES: tuple[Shape, ...] = get_args(Shape)
HOOKED_IMPLEMENTATION = "flash_attention_2"  # the attn_implementation that the adapter replaces
SHARD_TOKENS = 128  # tokens on each rank
# One length is shorter than a shard, so the adapter applies a window; the other equals it, so it does not.
WINDOW_BY_SHAPE: dict[Shape, int] = {"short_window": 16, "long_window": SHARD_TOKENS}


@dataclass(frozen=True)
class AdapterRun:
    """One model under one `attn_implementation` after `substitute_hf_flash_attn`, its tokens sharded over the ranks.

    Errors are Frobenius norms relative to the whole model's, in float32 with eager attention. `rounding` and
    `gradient_rounding` are the errors of the whole model in the sharded one's dtype, with eager attention.
    """

    implementation: str
    shape: Shape
    outcome: Outcome
    reason: str = ""  # why it was skipped; the message if something raised
    selected: str = ""  # how it became the model's implementation, if not by the argument attn_implementation
    shimmed_names: tuple[str, ...] = ()  # names restored in transformers, without which the import raises
    ranks: int = 0
    layers: int = 0
    entered: int = 0  # calls of llama3_flash_attn_varlen_func in one forward pass on the rank that made the fewest
    reaches: bool = False  # other tokens in the first shard change the logits of their document in the last one
    leaks: bool = False  # other tokens in the first document change another document's logits
    error: float = 0.0  # error of the logits
    rounding: float = 0.0
    gradient_error: float = 0.0  # error of all parameters' gradients, summed over the ranks
    gradient_rounding: float = 0.0
    nearest: str = ""  # the wrong model whose logits are closest, in words: "without its window"
    nearest_error: float = 0.0  # error of the logits compared with that model's


@dataclass(frozen=True)
class AdapterVerdict:
    """One row of the matrix: an implementation, a model's shape and the verdict on them."""

    implementation: str
    shape: Shape
    answer: Answer
    reason: str
    evidence: tuple[str, ...] = ()
