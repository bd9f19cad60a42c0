"""sdpa falls back to MATH for the model's grouped heads, and stores every score.

What it checks: a model with fewer key/value heads than query heads under sdpa, in a transformers that sets
`enable_gqa` if there is no mask: with a head size above 256 (before transformers 5.14.1), or in a launch that trains
in float32.

Why it matters: no fused SDPA backend supports `enable_gqa` with such heads, or in float32. PyTorch silently uses
MATH, which stores heads × length² scores: ten times slower, and out of memory at long sequences.

What to do: install transformers 5.14.1 or newer, which repeats the key/value heads for such sizes, so that the
memory-efficient backend supports them, or train in bfloat16.

Source: transformers 4.57.3, 5.10.1, 5.14.1 and 5.23.0, integrations/sdpa_attention.py (`use_gqa_in_sdpa`; since 5.14.1
"key head_dim == value head_dim <= 256 (otherwise it will fall back to the math kernel)"); huggingface/transformers
#45229, PR#46960. Run forward and backward on an H200 under torch 2.11.0+cu130, one backend at a time. With enable_gqa,
flash, memory-efficient and cuDNN all refuse head sizes 320 and 512, and float32. With repeated heads the
memory-efficient one accepts both. In bfloat16 up to 256, flash and cuDNN accept enable_gqa.
"""

from attncheck.doctor.fixes.model import change_transformers
from attncheck.doctor.knowledge.models import SDPA_GQA_UNGUARDED
from attncheck.doctor.queries import (
    change_settings,
    is_at_least,
    is_older,
    locate_settings,
    may_use,
    refuses_implementation,
)
from attncheck.doctor.rules import Known, Model, Problem, Problems, Rule, Snapshot, about_model, need


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    version = snapshot.version("transformers")
    since, guarded = SDPA_GQA_UNGUARDED
    if not may_use(snapshot, "sdpa") or refuses_implementation(model, "sdpa"):
        return
    if not is_at_least(version, since) or not _groups_heads(model):
        return
    asks = f"transformers {need(version, 'transformers')} sets enable_gqa if there is no mask"
    widest = max(model.head_dims, default=0)
    if widest > 256 and is_older(version, guarded):
        yield Problem(
            message=f"sdpa falls back to MATH on {model.model_type}, head size {widest}, and stores every score",
            evidence=(asks, f"since {guarded} only up to a head size of 256"),
            fixes=change_transformers(snapshot, f">={guarded}"),
            subject=model.model_type,
        )
    elif isinstance(snapshot.job, Known) and snapshot.job.value.plan.precision == "fp32":
        yield Problem(
            message=f"sdpa falls back to MATH on {model.model_type} in float32, and stores every score",
            evidence=(asks, "no fused backend supports grouped heads in float32"),
            fixes=(change_settings("train in bfloat16", {"precision": "bf16"}),),
            subject=model.model_type,
            locations=locate_settings(snapshot.job.value, "precision"),
        )


def _groups_heads(model: Model) -> bool:
    heads, kv_heads = model.num_heads, model.num_kv_heads
    return isinstance(heads, Known) and isinstance(kv_heads, Known) and kv_heads.value < heads.value


RULE = Rule("ATN351", "warning", check)
