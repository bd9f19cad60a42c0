"""A launch's batches are not its documents.

What it checks: `attncheck smoke LAUNCH` runs the launch with a small model on documents that it made, and reads every
batch of every rank as it enters the model: each token must be a document's own, none lost, doubled or cut; labels must
be the token at their place (transformers shifts them) and stand on what the objective learns, the token that ends an
answer among it.

Why it matters: labels that are shifted before they go in are shifted twice, so that the model learns to predict the
token after the next; a loss falls all the same. A cut or doubled document is in no log.

What to do: mend the collator or the data's preparation that the finding names.

Source: the measurement itself; transformers 5.17.0 loss/loss_utils.py `ForCausalLMLoss` for the shift.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN431", "error", lambda snapshot: (), by_engine=True)
