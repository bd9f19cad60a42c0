"""Training over a ring of ranks is not what one device trains.

What it checks: a small model of the job's architecture takes one step on packed rows that are cut over the ranks as
OpenRLHF cuts them (unpadded, padded to a multiple of the ranks, sliced; positions, `cu_seqlens`, labels taken before
the cut, log-probabilities gathered): a row that the ranks do not divide, a document that ends on a shard's edge, one
longer than a shard. Logits, loss, gradient norm and every parameter's gradient are compared with float32 eager
attention, one document at a time, in one process; the limit is a multiple of what rounding alone makes of that. From
the logits on all is float32, so labels, tokens that count and the weight of each rank are held to 1e-5. Each rank must
have a gradient, and the attention over ranks must be entered in every layer. Scheme `ulysses` is an all-to-all of
attncheck's own around torch's SDPA; no framework's is called.

Why it matters: nothing raises and the loss falls all the same. With attention that stays on each shard, labels shifted
within shards or a loss divided once too often, forty steps of training end where the right ones do; AdamW hides a
constant factor altogether.

What to do: the finding names what the numbers are those of. `import ring_flash_attn` that raises wants its names put
back; a ring that is never entered wants `attn_implementation="flash_attention_2"`; a head stride must divide the kv
heads. For windows, sinks, soft-caps and linear attention the adapter has no cure: train without the ring.

Source: the measurement itself; OpenRLHF 0.11.2, openrlhf/models/ring_attn_utils.py, models/actor.py, models/loss.py
(whose exported `GPTLMLoss` shifts labels within each shard and takes the mean of the ranks' means; its trainers use
`SFTLoss`); ring_flash_attn 0.1.8, adapters/hf_adapter.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN540", "error", lambda snapshot: (), by_engine=True)
