"""The model's KV cache, on by default, disables the separation of packed documents.

What it checks: the model's use_cache, in an environment without flash attention. sdpa, eager and flex_attention
detect packed documents only without a cache.

Why it matters: the error is silent. It affects only custom training loops: the Trainer of transformers 5, OpenRLHF
and verl set use_cache to False. The cache also costs memory in training.

What to do: set model.config.use_cache to False before training.

Source: transformers 5.23.0, masking_utils.py (`_preprocess_mask_arguments`); measured on CPU: with the cache, largest
logit error 0.42 between packed and separate documents.
"""

from attncheck.doctor.knowledge.frameworks import PACKING_FRAMEWORKS
from attncheck.doctor.knowledge.padding import PACKED_WITHOUT_FLASH
from attncheck.doctor.queries.models import is_at_least
from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, about_model, value_or


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not value_or(model.use_cache, False) or not model.causal or snapshot.has(*PACKING_FRAMEWORKS, "accelerate"):
        return
    if snapshot.has("flash-attn", "flash-attn-3", "flash-attn-4"):
        return
    if is_at_least(snapshot.version("transformers"), PACKED_WITHOUT_FLASH):
        yield Problem(
            message="if you pack, train with use_cache=False: with the cache on, packed documents attend to each other",
            evidence=("use_cache is true for this model, and there is no flash attention here",),
            fixes=(Fix("train without the cache", "setting", "model.config.use_cache = False"),),
            subject=model.source,
        )


RULE = Rule("ATN403", "note", check, general=True)
