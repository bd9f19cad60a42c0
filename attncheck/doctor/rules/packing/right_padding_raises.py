"""This transformers refuses right padding for the model under flash attention.

What it checks: transformers' version and the model's type against the releases that raise, and the launch's padding
side, or the tokenizer's padding_side. GRPO in TRL before 0.22 pads completions on the right.

Why it matters: generation raises "You are attempting to perform batched generation with padding_side='right'". Training
raises it too while use_cache is on.

What to do: upgrade transformers to 5.2.0 or newer, train with use_cache=False and generate with left padding, or use
sdpa. A launch with gradient checkpointing has no cache in training and is not reported.

Source: the text in models/*/modeling_*.py of the transformers wheels 4.42.4 to 5.23.0 (gone in 5.2.0);
huggingface/open-r1#599; huggingface/trl#3034.
"""

from packaging.version import InvalidVersion, Version

from attncheck.doctor.knowledge.padding import right_padding_raises
from attncheck.doctor.queries import may_use
from attncheck.doctor.rules import (
    Fix,
    Job,
    Known,
    Model,
    Problem,
    Problems,
    Rule,
    Snapshot,
    about_model,
    need,
    only_if,
    value_or,
)

TRL_WITHOUT_CACHE = Version("0.22.0")  # trainer/grpo_trainer.py: model_inputs["use_cache"] = False; 0.21.0 lacks it


@only_if(may_use, "flash_attention_2")  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.has("transformers"):
        return
    version = need(snapshot.version("transformers"), "the version of transformers")
    if not right_padding_raises(version, model.model_type) or _padding_side(snapshot, model) != "right":
        return
    yield Problem(
        message=f"transformers {version} refuses right padding for {model.model_type} with flash attention and a cache",
        evidence=("batches are padded on the right", "raised for this model type in this release, removed in 5.2.0"),
        fixes=(
            Fix("train without the cache", "setting", "model.config.use_cache = False"),
            Fix("generate with left padding", "setting", 'tokenizer.padding_side = "left"'),
        ),
        subject=model.model_type,
    )


def _padding_side(snapshot: Snapshot, model: Model) -> str:
    """Return the padding side of batches: the launch's, else the tokenizer's; "" if both are unknown."""
    if isinstance(snapshot.job, Known):
        plan = snapshot.job.value.plan
        if plan.packed or plan.gradient_checkpointing:  # with checkpointing transformers sets use_cache to False
            return ""
        return "right" if _pads_completions(snapshot.job.value) else plan.padding_side
    return value_or(model.tokenizer.value.padding_side, "right") if isinstance(model.tokenizer, Known) else ""


def _pads_completions(job: Job) -> bool:
    """Return whether TRL trains, with a cache, on rows with a left-padded prompt and a right-padded completion."""
    if job.framework != "trl" or job.trainer != "grpo" or job.plan.gradient_checkpointing:
        return False
    try:
        return Version(job.version) < TRL_WITHOUT_CACHE
    except InvalidVersion:
        return False


RULE = Rule("ATN404", "warning", check, needs=frozenset({"flash"}))
