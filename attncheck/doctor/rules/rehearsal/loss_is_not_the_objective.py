"""A launch's loss is not the one that its framework documents.

What it checks: the loss that the launch differentiates in its first step, over batches and ranks, against the mean
over target tokens that its framework documents, from each document's own loss in float32. Where it is another, the
means and factors that faults make are computed, and the one that fits is named: a mean of batches' means, a factor of
the accumulation or of the number of ranks, targets shifted twice.

Why it matters: a loss averaged by batches or rows weighs short answers more; a factor changes the learning rate of
everything that is not Adam, and the clipping of all.

What to do: the release or setting that the finding offers; see `attncheck lint` for releases with the fault.

Source: the measurement itself; https://huggingface.co/blog/gradient_accumulation tells of transformers before 4.46.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN433", "error", lambda snapshot: (), by_engine=True)
