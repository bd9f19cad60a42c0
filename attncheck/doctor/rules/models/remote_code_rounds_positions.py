"""The model's own code computes positions in a buffer's dtype, and bfloat16 rounds them.

What it checks: `torch.arange(…, dtype=….inv_freq.dtype)` in the *.py files next to config.json, read without running
them.

Why it matters: the error is silent. `inv_freq` is created in float32, and becomes bfloat16 when the whole module is
cast (`model.bfloat16()`, DeepSpeed with bf16 on, some loaders). bfloat16 has 8 bits: positions above 256 are rounded
to multiples of 2, and above 4096 to multiples of 32. Neighbours then share a rotation, and long contexts lose
quality.

What to do: compute and multiply positions in float32.

Source: transformers 5.23.0, models/llama/modeling_llama.py (`LlamaRotaryEmbedding.forward`: "Force float32"); torch
2.13: torch.arange(1024, dtype=torch.bfloat16) holds 513 different positions, in float32 all 1024
(tests/doctor/test_remote_positions.py).
"""

from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, about_model

FLOAT32 = "t = torch.arange(seq_len, device=device, dtype=torch.float32); freqs = torch.outer(t, self.inv_freq.float())"


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.rounded_positions:
        return
    yield Problem(
        message=(
            f"the code of {model.source} computes positions in the dtype of inv_freq, which rounds "
            "them if that is bfloat16"
        ),
        evidence=tuple(f"static lane: {place}" for place in model.rounded_positions),
        fixes=(Fix("compute them in float32", "edit", FLOAT32),),
        subject=model.source,
        predicted=True,
    )


RULE = Rule("ATN354", "warning", check)
