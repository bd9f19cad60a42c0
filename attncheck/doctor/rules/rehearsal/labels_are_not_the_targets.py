"""A launch does not learn the tokens that it means to learn.

What it checks: `attncheck labels LAUNCH` runs one step of the launch on conversations whose every turn can be found
again, and reads the labels of its batches by role. Answers must be learned with the token that ends them, and in a
launch that learns answers alone no other turn. Padding, the first token of a packed document and labels that are off by
one are errors in every launch.

Why it matters: the loss looks reasonable if the mask is empty, inverted or one token off. A model that never learns the
token which ends an answer does not stop.

What to do: correct the chat template, the collator or the setting that chooses the targets; `attncheck labels -v` marks
the tokens that are learned.

Source: the measurement itself.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN438", "error", lambda snapshot: (), by_engine=True)
