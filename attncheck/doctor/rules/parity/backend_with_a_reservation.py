"""An attention backend computes what it must, and does something beside it that a job may mind.

What it checks: with `attncheck parity`, whether NaN outside a packed document reaches the document where no finite
value does (a tile that overlaps it, whose weights are zero: 0 × NaN), and whether several queries or keys are dropped
by the same random draw.

Why it matters: a framework that leaves memory beside the documents as it was (a static buffer, padding that was never
written) may find NaN in its loss. Dropout that many weights share still keeps its share, and its gradients match its
forward pass, but it is less random than the model's author wrote. Neither makes a clean run wrong.

What to do: keep what lies beside the documents finite; for dropout, use a backend that draws for each weight. cuDNN's
SDPA can be switched off.

Source: the measurement itself. flash-attn 3 (commit 0251105a), one H200: NaN in the next document's v reaches the one
before. cuDNN 9.19: queries i, i + 2, i + 4 and i + 6 of each eight drop the same keys.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN607", "warning", lambda snapshot: (), by_engine=True)
