"""A launch's gradients are not those of its loss.

What it checks: the gradients that every rank's optimiser takes in the first step, before clipping, against those of
the documented loss computed one document at a time in float32: direction, length, and whether ranks agree.

Why it matters: a kernel whose backward pass is wrong, a factor of accumulation or of ranks, or ranks that do not
average show in no loss of the first steps, and Adam hides a factor.

What to do: where documents or the loss are wrong too, mend that first. Else another attention implementation, as the
finding offers.

Source: the measurement itself.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN434", "error", lambda snapshot: (), by_engine=True)
