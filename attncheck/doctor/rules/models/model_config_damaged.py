"""config.json has a value of the wrong type.

What it checks: the fields for heads, layers, sizes and windows. Text instead of a number, a negative number or NaN is
reported with the field's name.

Why it matters: loading fails, or continues with a meaningless value. Checks that need the value were skipped.

What to do: correct the file, or download it again.

Source: attncheck/doctor/probes/payload/model/values.py; transformers 5.23.0 checks the same types when it loads.
"""

from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, Unreadable, about_model

FIELDS = (
    *("num_layers", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "max_position_embeddings"),
    *("sliding_window", "attention_chunk_size", "softcap", "attention_dropout", "use_cache", "dtype"),
    "attn_implementation",
)


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    facts = [getattr(model, name) for name in FIELDS]
    reasons = list(dict.fromkeys(fact.reason for fact in facts if isinstance(fact, Unreadable)))
    if reasons:
        yield Problem(
            message=f"config.json of {model.source} is damaged: {reasons[0]}",
            evidence=tuple(reasons),
            subject=model.source,
        )


RULE = Rule("ATN327", "error", check)
