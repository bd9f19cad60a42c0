"""Compilation by torch.compile changes what the model computes, compiles nothing, or cannot compile this model.

What it checks: the compiled model against the same model uncompiled, on the same packed rows: logits, loss and
gradients, in float32 to rounding (1e-5; fused and reordered sums cost about 1e-6) and in the plan's precision within
four times what rounding alone makes. At least one graph must have been compiled; graph breaks are told with their
reasons.

Why it matters: a wrong graph trains another model, silently. With TORCHDYNAMO_DISABLE, TORCH_COMPILE_DISABLE or
`suppress_errors` the job runs uncompiled and as slow as before. Without a C++ compiler it stops at the first step.

What to do: train without torch.compile (`torch_compile=False`), or take another torch.

Source: the measurement itself; torch 2.13, `torch/_dynamo/config.py`, `torch/_inductor/exc.py`.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN344", "error", lambda snapshot: (), by_engine=True)
