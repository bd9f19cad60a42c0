"""Reads the watcher's records: the calls, losses, gradients and updates of the first steps, and all steps' losses."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

IGNORED = -100  # the label of a token that is not learned
KEPT_LOGITS = ("logits_to_keep", "num_logits_to_keep")  # since transformers 4.50, before
JoinRows = Callable[[Sequence[Sequence[Sequence[int]]]], Sequence[Sequence[int]]]


@dataclass(frozen=True)
class ModelCall:
    """One call of the model: `input_ids` and other inputs of shape (batch, seqlen), `hidden` (…, hidden size)."""

    rank: int
    batch: int  # the rank's batch between two steps: the number of losses differentiated before
    tensors: Mapping[str, Tensor]
    options: Mapping[str, Any]
    hidden: Tensor | None
    description: Mapping[str, Any]  # attention, dtype, mode, patches: see the watcher's `describe.py`
    # positions of the tokens of each rank's slice, (ranks, tokens); None: a rank's own row
    places: Tensor | None = None
    pull: Tensor | None = None  # the gradients of `hidden`

    @property
    def input_ids(self) -> Tensor:
        """Tokens of shape (batch, seqlen)."""
        return self.tensors["input_ids"]


@dataclass(frozen=True)
class Adapter:
    """A LoRA of a linear layer: `scaling` times B A is added to its weights."""

    layer: str  # "model.layers.0.self_attn.q_proj"
    name: str  # "default"
    scaling: float

    def name_weight(self, matrix: str) -> str:
        """Return the name of a parameter: of the matrix A, or B."""
        return f"{self.layer}.lora_{matrix}.{self.name}.weight"


@dataclass(frozen=True)
class RankRecord:
    """One rank's record of one step."""

    rank: int
    world_size: int
    calls: tuple[ModelCall, ...]
    losses: tuple[float, ...]
    gradients: Mapping[str, Tensor]
    trainable: tuple[str, ...]
    weights: Mapping[str, Tensor]  # at the start of the step; without large or sharded ones
    layers: tuple[Mapping[str, Any], ...]
    packages: tuple[str, ...]
    faults: tuple[str, ...]
    adapters: tuple[Adapter, ...] = ()  # LoRAs of linear layers, if trained; their dropout is off
    unkept: int = 0  # number of trained parameters whose gradients were too large to keep
    modules: tuple[Mapping[str, Any], ...] = ()  # modules of the first call, in the order in which they ended
    patches: tuple[str, ...] = ()  # replaced functions of the model with code of no installed package
    frozen: tuple[str, ...] = ()
    # norms of the gradients that exist before the step's first loss
    leftover: Mapping[str, float] = field(default_factory=dict)
    clips: tuple[Mapping[str, Any], ...] = ()  # each with the number of losses before it
    backward: Mapping[str, Tensor] = field(default_factory=dict)  # gradients after the last loss, if changed later
    updates: tuple[Mapping[str, Any], ...] = ()  # one for each optimiser's step: the watcher's `optimizer.py`
    # hooks on gradients with code of no installed package -> their parameters and modules
    gradient_hooks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # part of the training -> functions and lines of the script that compute it: the watcher's `script_code.py`
    code: Mapping[str, Sequence[str]] = field(default_factory=dict)
    frequencies: Mapping[str, Tensor] = field(default_factory=dict)  # rotary ones, by buffer
    tied: Mapping[str, str] = field(default_factory=dict)  # other names of parameters -> the name used in this record


@dataclass(frozen=True)
class StepRecord:
    """One step on all ranks: the losses that each rank differentiated, and the input rows of tokens."""

    losses: tuple[tuple[float, ...], ...]
    rows: tuple[Sequence[int], ...]
    schedule: tuple[str, ...] = ()  # the lines of the first rank that stepped its scheduler since the step before
    planned: int = 0  # steps for which the first rank's learning-rate scheduler is made; 0: unknown
    rate: float | None = None  # the largest learning rate of the first rank's optimisers; None: none was recorded


@dataclass(frozen=True)
class EpochRecord:
    """A data set that a rank loads: the tokens of its rows, and the rows of each batch of its first epoch."""

    rank: int
    loader: int  # the number of the rank's data set
    rows: Sequence[Sequence[int]]
    batches: Sequence[Sequence[int]]
    replaces: bool = False  # whether its sampler draws with replacement


@dataclass(frozen=True)
class RolloutRecord:
    """A driver's rollout, with the framework's own log-probability of each token of the response."""

    document: int
    advantage: float
    log_probabilities: tuple[float, ...]
    prompt: tuple[int, ...] = ()
    response: tuple[int, ...] = ()


def read_ranks(folder: Path, step: int = 1) -> list[RankRecord]:
    """Return the record of each rank that took a step, in order."""
    records = [_read_rank(path) for path in folder.glob("rank-*.pt" if step == 1 else f"later-{step}-*.pt")]
    return sorted(records, key=lambda record: record.rank)


def _read_rank(path: Path) -> RankRecord:
    # The file belongs to a process that we started; it has only tensors, numbers and texts.
    document = torch.load(path, map_location="cpu", weights_only=True)
    if document.get("prefix"):
        document = _add_prefix(document, document["prefix"])
    gradients = document["gradients"]
    large = {name for name, value in gradients.items() if not isinstance(value, Tensor)}  # present, but not kept
    return RankRecord(
        document["rank"],
        document["world_size"],
        tuple(_iter_calls(document)),
        tuple(document["losses"]),
        {name: tensor for name, tensor in gradients.items() if name not in large},
        tuple(name for name in document["trainable"] if name not in large),
        {name: tensor for name, tensor in document["weights"].items() if isinstance(tensor, Tensor)},
        tuple(document["layers"]),
        tuple(document["packages"]),
        tuple(document["faults"]),
        tuple(Adapter(*adapter) for adapter in document["adapters"]),
        len(large),
        tuple(document["modules"]),
        tuple(document["patches"]),
        tuple(document["frozen"]),
        document["leftover"],
        tuple(document["clips"]),
        {name: value for name, value in document["backward"].items() if isinstance(value, Tensor)},
        tuple(document["updates"]),
        document["gradient_hooks"],
        document["code"],
        document["frequencies"],
        document["tied"],
    )


def _add_prefix(document: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return a rank's record of a model without a head, with the names of its class with one."""

    def add(names: Any) -> Any:
        if isinstance(names, Mapping):
            return {f"{prefix}{name}": value for name, value in names.items()}
        return [f"{prefix}{name}" if name else name for name in names]

    named = ("gradients", "weights", "backward", "leftover", "frequencies", "trainable", "frozen")
    parts = ("weights", "gradients", "state", "after", "stateful")
    updates = [own | {key: add(own[key]) for key in parts if key in own} for own in document["updates"]]
    for own in updates:
        own["groups"] = [group | {"parameters": add(group["parameters"])} for group in own["groups"]]
    return document | {
        **{key: add(document[key]) for key in named},
        "tied": {f"{prefix}{name}": f"{prefix}{other}" for name, other in document["tied"].items()},
        "updates": updates,
        "clips": [clip | {"names": add(clip["names"])} for clip in document["clips"]],
        "modules": [module | {"name": f"{prefix}{module['name']}"} for module in document["modules"]],
        "adapters": [(f"{prefix}{layer}", *others) for layer, *others in document["adapters"]],
        "gradient_hooks": {hook: add(names) for hook, names in document["gradient_hooks"].items()},
    }


def _iter_calls(document: Mapping[str, Any]) -> Iterator[ModelCall]:
    for call in document["calls"]:
        names = {} if call.get("predicts_tokens", True) else {"labels": "classes"}  # which are no tokens
        tensors = {names.get(name, name): value for name, value in call["tensors"].items() if isinstance(value, Tensor)}
        if "input_ids" not in tensors:
            continue
        tensors = spread_labels(tensors, call["options"])
        hidden, pull = call.get("hidden"), call.get("pull")
        yield ModelCall(
            document["rank"],
            call["after_losses"],
            tensors,
            call["options"],
            hidden if isinstance(hidden, Tensor) else None,
            {name: value for name, value in call.items() if name not in ("tensors", "options", "hidden", "pull")},
            pull=pull if isinstance(pull, Tensor) else None,
        )


def spread_labels(tensors: dict[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a call's tensors with its labels at their tokens, if the model computes only the logits that they need.

    transformers 4.57.3 models/llama/modeling_llama.py:454: a number keeps the last logits, a tensor selects them.
    ms-swift 3.12.0 trainers/mixin.py:1126 cuts the labels in the same way.
    """
    labels, ids = tensors.get("labels"), tensors["input_ids"]
    kept = next((given[name] for given in (tensors, options) for name in KEPT_LOGITS if name in given), None)
    if labels is None or kept is None or labels.shape == ids.shape or labels.ndim != 2:
        return tensors
    places = torch.arange(ids.shape[-1])[kept if isinstance(kept, Tensor) else slice(-kept, None)]
    if labels.shape != (len(ids), len(places)):
        return tensors
    spread = torch.full_like(ids, IGNORED)
    spread[:, places[:-1] + 1] = labels[:, 1:]  # a token's logits predict the next label
    return {**tensors, "labels": spread}


def read_documents(folder: Path, kind: str = "steps") -> list[Any]:
    """Return the ranks' files of a kind, in order: those of steps have the trainer's logs and what it drew, too."""
    paths = sorted(folder.glob(f"{kind}-*.json"), key=lambda path: int(path.stem.removeprefix(f"{kind}-")))
    return [json.loads(path.read_text()) for path in paths]


def read_steps(documents: Sequence[Any], join_rows: JoinRows) -> list[StepRecord]:
    """Return the losses of the steps that every rank took; `join_rows` builds rows from the ranks' rows."""
    return [
        StepRecord(
            tuple(tuple(step["losses"]) for step in ranks),
            tuple(join_rows([step["rows"] for step in ranks])),
            tuple(ranks[0]["schedule"]),
            ranks[0]["planned"],
            max(ranks[0]["rates"], default=None),
        )
        for ranks in zip(*(document["steps"] for document in documents))
    ]


def read_epochs(folder: Path) -> list[EpochRecord]:
    """Return the data sets with rows of tokens, for each rank that trained."""
    epochs = []
    for path in sorted(folder.glob("epoch-*.json")):
        rank, loader = path.stem.split("-")[1:]
        document = json.loads(path.read_text())
        if (folder / f"rank-{rank}.pt").exists():
            fields = (document["rows"], document["batches"], document["replaces"])
            epochs.append(EpochRecord(int(rank), int(loader), *fields))
    return epochs


def read_rollouts(folder: Path) -> list[tuple[RolloutRecord, ...]]:
    """Return the rollouts of each step on all ranks; none without a driver.

    Ranks that share their rows get the same rollouts.
    """
    return [
        tuple(
            RolloutRecord(
                number,
                rollout["advantage"],
                tuple(rollout["log_probabilities"]),
                tuple(rollout["prompt"]),
                tuple(rollout["response"]),
            )
            for number, rollout in {entry["document"]: entry for rank in ranks for entry in rank}.items()
        )
        for ranks in zip(*(document["steps"] for document in read_documents(folder, "rollouts")))
    ]
