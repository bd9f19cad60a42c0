"""The shape that is timed: what the command line says, else the model's layers, else a usual one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, get_args

from attncheck.core.cases import Case, Dtype, with_name
from attncheck.core.errors import BadUsage
from attncheck.core.facts import value_or
from attncheck.core.model import Model
from attncheck.core.results.ring_timings import Passes
from attncheck.core.snapshot import Snapshot
from attncheck.measure import discovery
from attncheck.measure.suites import SAMPLED_FROM, model_kinds

LENGTHS = {True: 8192, False: 512}  # tokens, with a GPU and without
HEADS = {True: (32, 8, 128), False: (4, 2, 64)}  # heads, kv heads, head_dim: Llama-3-8B's, and a small one


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line; None where the model or the usual shape decides."""

    backends: tuple[str, ...] = ()
    passes: tuple[Passes, ...] = get_args(Passes)
    seqlen: int | None = None
    batch: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    dtype: Dtype | None = None
    causal: bool | None = None
    window: int | None = None  # keys that a query sees, its own included
    packed: tuple[int, ...] = ()  # lengths of documents
    seed: int = 0


def passes(word: str) -> tuple[Passes, ...]:
    """Return the passes that `--passes` asks for. Raises `BadUsage`."""
    known: dict[str, tuple[Passes, ...]] = {
        "forward": ("forward",),
        "forward+backward": ("forward_backward",),
        "both": get_args(Passes),
    }
    if word not in known:
        raise BadUsage(f"--passes {word!r} is not one of {', '.join(known)}")
    return known[word]


def lengths(text: str | None, seqlen: int | None, batch: int | None) -> tuple[int, ...]:
    """Return the lengths of documents in "300,500,100". Raises `BadUsage`, beside a length or a batch too."""
    if text is None:
        return ()
    if seqlen is not None or batch is not None:
        raise BadUsage("--packed says how long its one row is: leave --seqlen and --batch out")
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise BadUsage(f"--packed {text!r} is not a list of lengths such as 300,500,100")
    return found


def cases(snapshot: Snapshot, request: Request, gpu: bool) -> dict[Case, int]:
    """Return the cases to time and how many layers of the model are of each kind. Raises `BadUsage`."""
    model = discovery.readable_model(snapshot)
    found: dict[Case, int] = {}
    for kind, layers in _kinds(model, gpu):
        shape = {**kind, **_flags(request, kind)}
        if shape["num_heads"] % shape["num_kv_heads"]:
            raise BadUsage(f"{shape['num_heads']} heads cannot share {shape['num_kv_heads']} kv heads evenly")
        for passes in request.passes:
            case = _case(request, _length(model, request, gpu), {**shape, "backward": passes != "forward"})
            found[case] = found.get(case, 0) + layers
    return found


def _kinds(model: Model | None, gpu: bool) -> list[tuple[dict[str, Any], int]]:
    """Return each kind of attention layer as words for a `Case`, and how many layers are of it."""
    if model is None:
        heads, kv_heads, size = HEADS[gpu]
        return [({"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": size, "v_head_dim": size}, 1)]
    kinds = [{**kind, "values": "normal"} for kind in model_kinds(model)]
    counted = Counter(model.layer_types)
    windowed = counted["sliding_attention"]
    whole = sum(counted.values()) - windowed - counted["linear_attention"]
    mixed = any("window_size" in kind for kind in kinds) and whole and windowed
    return [(kind, (windowed if "window_size" in kind else whole) if mixed else 1) for kind in kinds]


def _flags(request: Request, kind: dict[str, Any]) -> dict[str, Any]:
    """Return what the command line says of a shape."""
    told: dict[str, Any] = {}
    if request.num_heads is not None:
        told |= {"num_heads": request.num_heads, "num_kv_heads": request.num_heads}
    if request.num_kv_heads is not None:
        told["num_kv_heads"] = request.num_kv_heads
    if request.head_dim is not None:
        told |= {"head_dim": request.head_dim, "v_head_dim": request.head_dim}
    if request.dtype is not None:
        told["dtype"] = request.dtype
    if request.causal is not None:
        told["causal"] = request.causal
    if request.window is not None:
        causal = told.get("causal", kind.get("causal", True))
        told["window_size"] = (request.window - 1, 0 if causal else request.window - 1)
    return told


def _length(model: Model | None, request: Request, gpu: bool) -> int:
    if request.seqlen is not None:
        return request.seqlen
    return LENGTHS[gpu] if model is None else min(LENGTHS[gpu], value_or(model.max_position_embeddings, LENGTHS[gpu]))


def _case(request: Request, length: int, shape: dict[str, Any]) -> Case:
    seqlens = request.packed or (length,) * (request.batch or 1)
    layout = "packed" if request.packed else "dense"
    case = Case("bench", seqlens, seqlens, **{**shape, "layout": layout, "seed": request.seed})
    return with_name(replace(case, every_row=case.seqlen_q < SAMPLED_FROM))
