"""The model's key/value heads do not divide its query heads.

What it checks: num_attention_heads against num_key_value_heads.

Why it matters: grouped-query attention gives each key/value head the same number of query heads. flash-attn stops with
"Number of heads in key/value must divide number of heads in query"; sdpa and eager fail on shapes.

What to do: correct config.json; a hand-edited or pruned model is the usual source.

Source: flash-attn 2.8.3, csrc/flash_attn/flash_api.cpp; transformers 5.23.0, integrations/sdpa_attention.py
(`repeat_kv`).
"""

from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not isinstance(model.num_heads, Known) or not isinstance(model.num_kv_heads, Known):
        return
    heads, kv_heads = model.num_heads.value, model.num_kv_heads.value
    if heads % kv_heads:
        yield Problem(
            message=f"{kv_heads} key/value heads do not divide {heads} query heads",
            evidence=(f"config.json of {model.source}",),
            fixes=(Fix("correct the configuration", "edit", f"num_key_value_heads: a divisor of {heads}"),),
            subject=model.source,
        )


RULE = Rule("ATN326", "error", check)
