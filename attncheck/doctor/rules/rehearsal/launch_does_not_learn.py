"""A launch does not learn, or learns what cannot be known.

What it checks: the losses of the steps that `attncheck smoke LAUNCH` lets the launch take, on documents of a language
whose entropy is known: they must be numbers, fall, and not fall below the entropy.

Why it matters: a loss below the entropy means that a token sees what it is to predict; one that does not fall, that
weights are not trained, gradients are lost, or the learning rate has no effect.

What to do: where batches, documents, loss or gradients are wrong too, mend that first.

Source: the measurement itself.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN436", "error", lambda snapshot: (), by_engine=True)
