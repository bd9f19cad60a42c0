"""The shape to time: the command line's, otherwise the model layers' shape, otherwise a default."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, get_args

from attncheck.core.cases import Case, Dtype, with_name
from attncheck.core.io.errors import BadUsage
from attncheck.core.model import Model
from attncheck.core.results.ring_timings import Passes
from attncheck.core.snapshot import Snapshot, value_or
from attncheck.measure import discovery
from attncheck.measure.suites import MIN_SAMPLED_SEQLEN, iter_layer_kinds

SEQLENS = {True: 8192, False: 512}  # tokens, by whether there is a GPU
# heads, kv heads, head_dim by whether there is a GPU: Llama-3-8B's, and a small one
HEADS = {True: (32, 8, 128), False: (4, 2, 64)}


@dataclass(frozen=True)
class Request:
    """The backends, passes and shape on the command line; None leaves them to the model or the usual shape."""

    backends: tuple[str, ...] = ()
    passes: tuple[Passes, ...] = get_args(Passes)
    seqlen: int | None = None
    batch: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    dtype: Dtype | None = None
    causal: bool | None = None
    window: int | None = None  # keys that a query attends to, including its own
    packed: tuple[int, ...] = ()  # document lengths
    seed: int = 0
    min_of_published: float = 0.0  # a smaller share of the best published speed is a finding; 0: never


def parse_passes(text: str) -> tuple[Passes, ...]:
    """Return the passes that `--passes` names. Raises `BadUsage`."""
    passes_by_name: dict[str, tuple[Passes, ...]] = {
        "forward": ("forward",),
        "forward+backward": ("forward_backward",),
        "both": get_args(Passes),
    }
    if text not in passes_by_name:
        raise BadUsage(f"--passes {text!r} is not one of {', '.join(passes_by_name)}")
    return passes_by_name[text]


def parse_document_lengths(text: str | None, seqlen: int | None, batch: int | None) -> tuple[int, ...]:
    """Return the document lengths in "300,500,100". Raises `BadUsage`, also if a seqlen or a batch is given."""
    if text is None:
        return ()
    if seqlen is not None or batch is not None:
        raise BadUsage("--packed already sets the row's length: remove --seqlen and --batch")
    try:
        lengths = tuple(int(length) for length in text.split(","))
    except ValueError:
        lengths = ()
    if not lengths or min(lengths) < 1:
        raise BadUsage(f"--packed {text!r} is not a list of lengths such as 300,500,100")
    return lengths


def choose_cases(snapshot: Snapshot, request: Request, uses_gpu: bool) -> dict[Case, int]:
    """Return the cases to time, and the number of the model's layers of each kind. Raises `BadUsage`."""
    model = discovery.requested_model(snapshot)
    layers_by_case: dict[Case, int] = {}
    for kind, layers in _count_layer_kinds(model, uses_gpu):
        shape = {**kind, **_requested_fields(request, kind)}
        if shape["num_heads"] % shape["num_kv_heads"]:
            raise BadUsage(f"{shape['num_heads']} heads cannot share {shape['num_kv_heads']} kv heads evenly")
        for passes in request.passes:
            case = _make_case(
                request, _choose_seqlen(model, request, uses_gpu), {**shape, "backward": passes != "forward"}
            )
            layers_by_case[case] = layers_by_case.get(case, 0) + layers
    return layers_by_case


def _count_layer_kinds(model: Model | None, uses_gpu: bool) -> list[tuple[dict[str, Any], int]]:
    """Return the `Case` fields of each kind of attention layer, and the number of layers of that kind."""
    if model is None:
        heads, kv_heads, head_dim = HEADS[uses_gpu]
        return [({"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": head_dim}, 1)]
    kinds = [{**kind, "values": "normal"} for kind in iter_layer_kinds(model)]
    layer_counts = Counter(model.layer_types)
    windowed_layers = layer_counts["sliding_attention"]
    full_layers = sum(layer_counts.values()) - windowed_layers - layer_counts["linear_attention"]
    has_both = any("window_size" in kind for kind in kinds) and full_layers and windowed_layers
    return [(kind, (windowed_layers if "window_size" in kind else full_layers) if has_both else 1) for kind in kinds]


def _requested_fields(request: Request, kind: dict[str, Any]) -> dict[str, Any]:
    """Return the `Case` fields that the command line sets."""
    fields: dict[str, Any] = {}
    if request.num_heads is not None:
        fields |= {"num_heads": request.num_heads, "num_kv_heads": request.num_heads}
    if request.num_kv_heads is not None:
        fields["num_kv_heads"] = request.num_kv_heads
    if request.head_dim is not None:
        fields |= {"head_dim": request.head_dim, "v_head_dim": request.head_dim}
    if request.dtype is not None:
        fields["dtype"] = request.dtype
    if request.causal is not None:
        fields["causal"] = request.causal
    if request.window is not None:
        causal = fields.get("causal", kind.get("causal", True))
        fields["window_size"] = (request.window - 1, 0 if causal else request.window - 1)
    return fields


def _choose_seqlen(model: Model | None, request: Request, uses_gpu: bool) -> int:
    if request.seqlen is not None:
        return request.seqlen
    return (
        SEQLENS[uses_gpu]
        if model is None
        else min(SEQLENS[uses_gpu], value_or(model.max_position_embeddings, SEQLENS[uses_gpu]))
    )


def _make_case(request: Request, seqlen: int, fields: dict[str, Any]) -> Case:
    seqlens = request.packed or (seqlen,) * (request.batch or 1)
    layout = "packed" if request.packed else "dense"
    case = Case("bench", seqlens, seqlens, **{**fields, "layout": layout, "seed": request.seed})
    return with_name(replace(case, every_row=case.seqlen_q < MIN_SAMPLED_SEQLEN))
