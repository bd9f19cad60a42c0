"""How a job will train: what smoke runs, fixes change and a launch command states; plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

Packing = Literal["position_ids", "cu_seqlens", "mask_2d", "mask_4d", "padding"]
Precision = Literal["fp32", "bf16", "fp16", "autocast"]
Positions = Literal["reset", "running", "reset_3d", "reset_4d"]
Side = Literal["right", "left"]
CrossEntropy = Literal["torch", "chunked", "flash_attn"]
Scheme = Literal["llama3", "ulysses"]
PACKINGS: tuple[Packing, ...] = get_args(Packing)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
POSITIONS: tuple[Positions, ...] = get_args(Positions)
SIDES: tuple[Side, ...] = get_args(Side)
CROSS_ENTROPIES: tuple[CrossEntropy, ...] = get_args(CrossEntropy)
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
CHOICES: Mapping[str, tuple[str, ...]] = {  # values of the fields of `Plan` that are one of several words
    "packing": PACKINGS,
    "precision": PRECISIONS,
    "padding_side": SIDES,
    "positions": POSITIONS,
    "cross_entropy": CROSS_ENTROPIES,
    "scheme": SCHEMES,
}
NO_CUDNN_SDPA = "no-cudnn-sdpa"  # a shim: removes cuDNN's kernels from torch's SDPA
RING_NAMES = "ring-flash-attn-names"  # a shim: restores the names that ring-flash-attn misses in transformers


@dataclass(frozen=True)
class Plan:
    """The settings of a training job that decide what its attention computes.

    `packing` is how documents of one row are separated: by `position_ids` that begin again, by `cu_seqlens` given to
    the model as keywords (positions too), alongside a 2-D mask of ones (`mask_2d`), by a block-diagonal 4-D mask
    (`mask_4d`); or not packed but padded (`padding`). `positions` of a multimodal model may have the shape (3, batch,
    seqlen) for time, height and width, or (4, batch, seqlen) with the plain ones first. `precision` applies to weights
    and arithmetic; "autocast" keeps weights in float32 and computes in bfloat16.
    """

    attn_implementation: str = ""  # "": transformers' own choice
    packing: Packing = "position_ids"
    positions: Positions = "reset"  # "running": 0, 1, 2, … over the whole row
    padding_side: Side = "right"
    precision: Precision = "bf16"
    use_cache: bool = False
    batch: int = 1  # rows per device
    accumulation: int = 4  # batches per optimiser step
    max_length: int = 512  # tokens in a packed row
    gradient_checkpointing: bool = False
    liger: bool = False
    cross_entropy: CrossEntropy = "torch"
    deterministic: bool = False
    compile: bool = False
    ring_size: int = 1
    scheme: Scheme = "llama3"
    heads_k_stride: int = 1
    environ: tuple[tuple[str, str], ...] = ()  # variables of the job
    shims: tuple[str, ...] = ()  # fixes made inside the training process, by name
    steps: int = 40
    learning_rate: float = 5e-3
    seed: int = 0

    @property
    def packed(self) -> bool:
        """Whether several documents share a row."""
        return self.packing != "padding"

    def without_optimizations(self, precision: Precision | None = None) -> "Plan":
        """Return the plan without features that save time or memory: liger, compile, gradient checkpointing."""
        plan = replace(self, liger=False, compile=False, gradient_checkpointing=False)
        return plan if precision is None else replace(plan, precision=precision)


@dataclass(frozen=True)
class Change:
    """One change of a plan, as a user makes it, that may fix what a check reported."""

    title: str
    kind: Literal["setting", "env", "edit"]
    text: str  # ready to paste
    plan: Plan  # with the change made
    culprit: str = ""  # the component shown to be at fault if this change alone fixes a check: "cuDNN's SDPA kernel"
