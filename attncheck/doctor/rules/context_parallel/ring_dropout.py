"""Ring attention with attention dropout is wrong.

What it checks: ring-flash-attn on a model with attention_dropout above 0.

Why it matters: the error is silent. Each rank draws its own random numbers for blocks of the same row, and the
backward pass draws different ones. ring-flash-attn's README says that dropout is not supported.

What to do: set attention_dropout to 0.

Source: ring-flash-attention README ("Limits"); ring_flash_attn 0.1.8, adapters/hf_adapter.py (`dropout_p=dropout`).
"""

from attncheck.doctor.queries.models import is_ring_ruled_out, requested_model
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, value_or


def check(snapshot: Snapshot) -> Problems:
    model = requested_model(snapshot)
    dropout = 0.0 if model is None else value_or(model.attention_dropout, 0.0)
    if model is None or not dropout or not snapshot.has("ring-flash-attn") or is_ring_ruled_out(model):
        return
    yield Problem(
        message=f"ring attention is wrong with {model.model_type}'s attention_dropout {dropout:g}",
        evidence=("ring-flash-attn does not support dropout and does not refuse it",),
        fixes=(Fix("train without attention dropout", "setting", "attention_dropout=0.0"),),
        subject=model.model_type,
    )


RULE = Rule("ATN505", "warning", check, needs=frozenset({"ring"}))
