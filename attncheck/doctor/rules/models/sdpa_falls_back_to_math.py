"""sdpa falls back to MATH for the model's head sizes, and keeps every score.

What it checks: a model with grouped key/value heads whose head size is over 256, or whose keys and values differ in
size, under sdpa in a transformers that asks for `enable_gqa` whenever there is no mask, whatever the head size.

Why it matters: no fused backend of SDPA takes `enable_gqa` with such heads; PyTorch takes MATH without a word, which
stores heads × length² scores: ten times slower, and out of memory at long sequences.

What to do: install transformers 5.14.1 or newer, which repeats the key/value heads for such models; the
memory-efficient backend then takes them.

Source: transformers 4.57.3, 5.10.1 and 5.14.1, integrations/sdpa_attention.py (`use_gqa_in_sdpa`; from 5.14.1 on "key
head_dim == value head_dim <= 256 (otherwise it will fall back to the math kernel)"); huggingface/transformers#45229,
PR#46960. Read, not measured on a GPU: a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known, need, value_or
from attncheck.core.findings import Problem
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.model import change_transformers
from attncheck.doctor.knowledge.models import SDPA_GQA_UNGUARDED
from attncheck.doctor.queries.launch import may_use
from attncheck.doctor.queries.models import is_at_least, is_older, refuses_implementation, requested_model
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where sdpa would be asked for grouped heads of sizes that only MATH takes."""
    model = requested_model(snapshot)
    version = snapshot.version("transformers")
    since, guarded = SDPA_GQA_UNGUARDED
    if model is None or not may_use(snapshot, "sdpa") or refuses_implementation(model, "sdpa"):
        return
    if not is_at_least(version, since) or not is_older(version, guarded) or not _groups_heads(model):
        return
    widest = max(model.head_dims, default=0)
    values = value_or(model.v_head_dim, widest)
    is_unequal = len(model.head_dims) == 1 and values != widest
    if widest <= 256 and not is_unequal:
        return
    sizes = f"head size {widest}" if not is_unequal else f"keys of {widest} and values of {values}"
    yield Problem(
        message=f"sdpa falls back to MATH on {model.model_type} ({sizes}) and stores every score",
        evidence=(
            f"transformers {need(version, 'transformers')} asks for enable_gqa wherever there is no mask",
            f"from {guarded} on only where a fused backend takes the head sizes",
        ),
        fixes=change_transformers(snapshot, f">={guarded}"),
        subject=model.model_type,
    )


def _groups_heads(model: Model) -> bool:
    heads, kv_heads = model.num_heads, model.num_kv_heads
    return isinstance(heads, Known) and isinstance(kv_heads, Known) and kv_heads.value < heads.value


RULE = Rule("ATN351", "warning", check)
