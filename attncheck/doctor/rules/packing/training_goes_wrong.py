"""A short training run goes wrong.

What it checks: `attncheck smoke` trains a small model of the architecture on packed documents of a language whose
entropy is known. The gradients of the first step must be those of the same documents one at a time in float32; the
loss must fall below half-way from a uniform guess to the entropy, and must not fall below the entropy itself.

Why it matters: a gradient that is wrong by a factor or in one layer shows in no loss curve that has nothing beside it;
a loss below the entropy means that a token sees what it is to predict.

What to do: where another question fails too, mend that first. Else what smoke finds to mend it. An infinite or NaN
loss in float16 is usually mended by bfloat16.

Source: the measurement itself.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN430", "error", lambda snapshot: (), by_engine=True)
