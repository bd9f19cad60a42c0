"""Ulysses sequence parallelism takes certain sizes only for the model's heads.

What it checks: which sizes from 2 to 64 divide the query heads and go together with the key/value heads, where one of
the usual sizes 2, 4 and 8 does not.

Why it matters: "num_attention_heads … must be divisible by ulysses_sp_size", or the same of the key/value heads
"or vice versa", after the model was loaded.

What to do: choose a size from the list.

Source: verl 0.9.1, models/transformers/monkey_patch.py; deepspeed 0.19.8, runtime/sequence_parallel/ulysses_sp.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.frameworks import ULYSSES
from attncheck.doctor.queries.models import named
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a note that names the sizes that work, where a usual one does not."""
    model = named(snapshot)
    if model is None or not snapshot.has(*ULYSSES, "deepspeed", "yunchang"):
        return
    if not isinstance(model.num_heads, Known) or not isinstance(model.num_kv_heads, Known):
        return
    heads, kv_heads = model.num_heads.value, model.num_kv_heads.value
    valid = [size for size in range(2, 65) if heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)]
    wrong = [size for size in (2, 4, 8) if size not in valid]
    if not wrong:
        return
    fits = ", ".join(map(str, valid))
    misfits = ", ".join(map(str, wrong))
    yield Problem(
        message=f"Ulysses sizes that fit {model.model_type}: {fits or 'none'}",
        evidence=(f"{heads} query heads, {kv_heads} key/value heads: {misfits} do not fit",),
        fixes=tuple(Fix("a size that fits", "setting", _size(snapshot, size)) for size in valid[:1]),
        subject=model.model_type,
    )


def _size(snapshot: Snapshot, size: int) -> str:
    return f"{'ulysses_' if snapshot.has('verl') else ''}sequence_parallel_size={size}"


RULE = Rule("ATN509", "note", check, needs=frozenset({"ulysses", "rl"}), general=True)
