"""Documents packed into one row see each other.

What it checks: `attncheck smoke` packs documents of a known language with the plan's own tensors and compares logits
and gradients with each document alone; then replaces one document, after which all others must keep their very bits;
then fills the neighbours with NaN and infinity, which a kernel that is told the documents' edges must not let through.

Why it matters: silent. Training goes on, with a loss that is lower or higher than it should be, on contexts that no
user will ever have.

What to do: what smoke finds to mend it. The usual causes: a 2-D mask of ones beside the packed row, `use_cache=True`,
positions that run on over the row, several packed rows in a batch under flash attention, a model that does not give
`position_ids` to its mask (gpt_oss in transformers 5.17) or finds documents only in positions of shape
(4, batch, seqlen) (qwen2_vl, qwen2_5_vl), and layers with a recurrent state (qwen3_next).

Source: the measurement itself; transformers 5.17.0, masking_utils.py (`find_packed_sequence_indices` is asked only
without mask and cache) and modeling_flash_attention_utils.py (`_is_packed_sequence` wants a batch of one).
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN420", "error", lambda snapshot: (), by_engine=True)
