"""Liger-kernel gives this model other logits, losses or gradients, or one of its patches does nothing.

What it checks: every patch that liger makes for the model's type, one at a time: what it replaced must be entered when
the model runs. Then all together, on against off, on the same packed rows: logits without labels, loss and gradients
with them (which is when the fused linear cross-entropy runs), in float32 to rounding (1e-5) and in the plan's
precision within four times what rounding alone makes.

Why it matters: liger assigns to names in transformers' modelling files. A name that the model no longer looks up takes
the patch without a word: the log says that liger was applied, and memory and speed stay as they were. A patch that
fits another version of the model (an epsilon, an offset of 1, a soft-cap) trains another model.

What to do: train without liger (`use_liger_kernel=False`), or take the pair of liger-kernel and transformers that fit.

Source: the measurement itself; liger_kernel 0.8.5, `transformers/monkey_patch.py`, `transformers/model/llama.py`;
transformers 5.17, `integrations/liger.py`.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN341", "error", lambda snapshot: (), by_engine=True)
