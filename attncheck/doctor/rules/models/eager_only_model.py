"""The model supports only eager attention, and its scores do not fit into GPU memory at full length.

What it checks: whether the installed class refuses every fused attention, and the memory that eager attention needs
for one sequence of max_position_embeddings tokens: heads × length² × 6 bytes (half-precision scores and their fp32
softmax) in each layer.

Why it matters: at long sequences, softmax raises "CUDA out of memory". No setting helps, because the class has no other
attention.

What to do: keep sequences short, or use another model. The evidence names the length at which one layer's scores fill
half of the smallest GPU.

Source: transformers 5.23.0, class flags of bloom, mpt, codegen and others; huggingface/transformers#45229.
"""

import math

from attncheck.doctor.queries.models import is_eager_only
from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, about_model, need, value_or

BYTES_PER_SCORE = 6
BYTES_PER_GIB = 1 << 30


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not is_eager_only(model):
        return
    memory_sizes = [value_or(gpu.memory_total_bytes, 0) for gpu in snapshot.visible_devices()]
    smallest_memory = min((size for size in memory_sizes if size), default=0)
    if not smallest_memory:
        return
    length = need(model.max_position_embeddings, "the model's length")
    heads = need(model.num_heads, "the model's number of heads")
    score_bytes = heads * length**2 * BYTES_PER_SCORE
    if score_bytes < smallest_memory / 2:
        return
    max_length = math.isqrt(smallest_memory // 2 // (heads * BYTES_PER_SCORE)) // 64 * 64
    score_gib = score_bytes / BYTES_PER_GIB
    yield Problem(
        message=(
            f"{model.model_type} supports only eager: the scores of {length} tokens take {score_gib:.0f} GiB per layer"
        ),
        evidence=(
            "import lane: its class refuses sdpa, flash attention and flex_attention",
            f"the smallest GPU has {smallest_memory / BYTES_PER_GIB:.0f} GiB; {max_length} tokens take half of it",
        ),
        fixes=(Fix("cut sequences", "setting", f"max_length={max_length}"),),
        subject=model.model_type,
    )


RULE = Rule("ATN318", "warning", check)
