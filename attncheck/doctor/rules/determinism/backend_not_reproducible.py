"""An attention backend returns other bits from call to call on the same inputs.

What it checks: `attncheck determinism` calls each backend again and again on the same inputs, half of the time while
something else keeps the device busy, and compares out, dq, dk and dv bit by bit.

Why it matters: two runs of one training job part after the first step; a defect cannot be told from chance. The result
is not wrong: sums are taken in another order.

What to do: the fix names the switch, with what it was seen to cost here. torch.use_deterministic_algorithms(True,
warn_only=True) only warns, and leaves torch's FLASH_ATTENTION and EFFICIENT_ATTENTION as they are.

Source: the measurement itself; flash-attn's README on `deterministic`; torch 2.11,
aten/src/ATen/native/transformers/cuda/attention_backward.cu.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN711", "warning", lambda snapshot: (), by_engine=True)
