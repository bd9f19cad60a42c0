"""The model's number of heads allows only certain sizes of Ulysses sequence parallelism.

What it checks: which sizes from 2 to 64 divide the query heads and are compatible with the key/value heads, if one of
the usual sizes 2, 4 and 8 is not.

Why it matters: other sizes raise "num_attention_heads … must be divisible by ulysses_sp_size", or a similar error about
the key/value heads, after the model was loaded.

What to do: choose a size from the list.

Source: verl 0.9.1, models/transformers/monkey_patch.py; deepspeed 0.19.8, runtime/sequence_parallel/ulysses_sp.py.
"""

from attncheck.doctor.knowledge.frameworks import ULYSSES_FRAMEWORKS
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.has(*ULYSSES_FRAMEWORKS, "deepspeed", "yunchang"):
        return
    if not isinstance(model.num_heads, Known) or not isinstance(model.num_kv_heads, Known):
        return
    heads, kv_heads = model.num_heads.value, model.num_kv_heads.value
    valid_sizes = [
        size for size in range(2, 65) if heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
    ]
    invalid_sizes = [size for size in (2, 4, 8) if size not in valid_sizes]
    if not invalid_sizes:
        return
    valid = ", ".join(map(str, valid_sizes))
    invalid = ", ".join(map(str, invalid_sizes))
    yield Problem(
        message=f"Ulysses sizes that work with {model.model_type}: {valid or 'none'}",
        evidence=(f"{heads} query heads, {kv_heads} key/value heads: {invalid} do not work",),
        fixes=tuple(
            Fix(
                "a size that works",
                "setting",
                f"{'ulysses_' if snapshot.lists('verl') else ''}sequence_parallel_size={size}",
            )
            for size in valid_sizes[:1]
        ),
        subject=model.model_type,
    )


RULE = Rule("ATN509", "note", check, needs=frozenset({"ulysses", "rl"}), general=True)
