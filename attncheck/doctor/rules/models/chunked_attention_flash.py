"""Flash attention cannot run the model's chunked attention beyond one chunk.

What it checks: whether some layer attends within chunks (llama4: attention_chunk_size) while this transformers accepts
flash_attention_2 for the model's class.

Why it matters: the first batch longer than the chunk raises "Flash attention cannot handle chunked attention, and the
key-value length is larger than the chunk size". Training on shorter rows never shows it.

What to do: use sdpa, flex_attention or eager.

Source: transformers 4.53.0 to 5.23.0, masking_utils.py (`create_chunked_causal_mask`); llama4's class refuses flash
attention altogether since 4.51.3.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.queries import forces_flash_attention, may_use_flash, refuses_implementation
from attncheck.doctor.rules import Known, Model, Problem, Problems, Rule, Snapshot, about_model, only_if


@only_if(may_use_flash)  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not isinstance(model.attention_chunk_size, Known) or refuses_implementation(model, "flash_attention_2"):
        return
    if "chunked_attention" not in model.layer_types:
        return
    chunk = model.attention_chunk_size.value
    yield Problem(
        message=f"flash attention fails on {model.model_type} beyond {chunk} tokens, its attention chunk",
        evidence=(f"{model.layer_types.count('chunked_attention')} layers of chunked_attention, chunk {chunk}",),
        fixes=use_other_attention(snapshot, model, "flash_attention_2"),
        subject=model.model_type,
        predicted=not forces_flash_attention(snapshot),
    )


RULE = Rule("ATN316", "error", check, needs=frozenset({"flash", "ring"}))
