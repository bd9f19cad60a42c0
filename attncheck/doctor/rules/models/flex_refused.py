"""The model's class refuses flex_attention, where sdpa or flash attention is refused too.

What it checks: the answer of the installed transformers for attn_implementation="flex_attention". It is only worth a
word where the model also refuses sdpa or flash attention, for which flex_attention would be the way out.

Why it matters: fewer ways are left; loading with flex_attention raises a ValueError.

What to do: use what the class accepts.

Source: transformers 5.23.0, modeling_utils.py (`_flex_attn_can_dispatch`); class flags of models/*/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.model import way_out
from attncheck.doctor.queries.models import eager_only, named, reason, refuses
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a note where flex_attention is no way out."""
    model = named(snapshot)
    if model is None or not refuses(model, "flex_attention") or eager_only(model):
        return
    if not (refuses(model, "sdpa") or refuses(model, "flash_attention_2")):
        return
    yield Problem(
        message=f"{model.model_type} refuses flex_attention as well",
        evidence=(f"import lane: {reason(model, 'flex_attention')}",),
        fixes=way_out(snapshot, model, "flex_attention"),
        subject=model.model_type,
    )


RULE = Rule("ATN309", "note", check)
