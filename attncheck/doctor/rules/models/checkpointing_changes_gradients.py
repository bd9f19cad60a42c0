"""Gradient checkpointing changes the loss or the gradients, or does not happen.

What it checks: the model with `gradient_checkpointing_enable` against the same model without, on the same packed rows:
loss and gradients, in float32 to rounding (1e-5; on a CPU they are equal bit for bit) and in the plan's precision
within four times what rounding alone makes. Each decoder layer must be run again on the way back, and must draw the
same random numbers then.

Why it matters: layers that are not run again save no memory, and the job runs out of it hours later, at the first
long batch. A second run that drops other elements, attends under another mask or writes to a cache gives gradients of
a function that was never evaluated; the loss does not show it.

What to do: train without checkpointing; or with `use_reentrant=False`, `use_cache=False`, in train mode, and leave
`preserve_rng_state` on.

Source: the measurement itself; transformers 5.17, `modeling_layers.py` (GradientCheckpointingLayer) and
`modeling_utils.py` (gradient_checkpointing_enable); torch, `torch.utils.checkpoint`.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN343", "error", lambda snapshot: (), by_engine=True)
