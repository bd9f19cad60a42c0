"""A launch's weights do not follow its gradients.

What it checks: the first three steps of the optimiser, as `attncheck smoke LAUNCH` records them: which parameters it
holds, whether gradients are zero before a step and unchanged between backward and step but for clipping, and the
weights after the step against the same step taken again by the same class (optimisers of torch and transformers). Also
whether the model is in training mode, and how much of it is trained without an adapter.

Why it matters: the loss falls while a part of the model is never trained, or is trained on the sum of all gradients so
far. No curve of the loss shows it.

What to do: the finding names the parameters and the step. Look at what is given to the optimiser, at callbacks between
backward and step, and at the order of clip_grad_norm_, step and zero_grad.

Source: the measurement itself; torch 2.13.0 optim/optimizer.py (`profile_hook_step`), nn/utils/clip_grad.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN438", "error", lambda snapshot: (), by_engine=True)
