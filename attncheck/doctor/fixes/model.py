"""Ways out for a model whose attention cannot be had as it was asked for."""

from __future__ import annotations

from attncheck.core.facts import Known
from attncheck.core.findings import Fix
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.install import attn_implementation, install
from attncheck.doctor.queries.models import answer, unfit


def way_out(snapshot: Snapshot, model: Model, *less: str) -> tuple[Fix, ...]:
    """Return the setting of the best attention that serves `model` here, other than those named in `less`."""
    excluded = {*less, *unfit(snapshot, model)}
    asked = isinstance(model.accepts, Known)
    for name in ("flash_attention_2", "sdpa", "flex_attention", "eager") if asked else ("sdpa", "eager"):
        if name not in excluded and (not asked or answer(model, name) == ""):
            return (attn_implementation(snapshot, name),)
    return ()


def newer_transformers(snapshot: Snapshot, requirement: str) -> Fix:
    """Return how to get a transformers of `requirement`, without breaking what pins it here."""
    pinning = [name for name in ("openrlhf", "verl", "llamafactory", "ring-flash-attn") if snapshot.has(name)]
    if pinning:
        title = f"a newer transformers, within the range of {' and '.join(pinning)}"
        return Fix(title, "manual", requirement)
    return install(snapshot, requirement)


def without_ring(snapshot: Snapshot) -> Fix:
    """Return how to train without ring attention, in the words of the framework found here."""
    title = "do without ring attention for this model"
    if isinstance(snapshot.job, Known):
        return Fix(title, "setting", "", "unsafe", sets={"ring_size": "1"})
    if snapshot.has("openrlhf"):
        return Fix(title, "setting", "--ds.ring_attn_size 1")
    if snapshot.has("axolotl"):
        return Fix(title, "setting", "context_parallel_size: 1")
    return Fix(title, "edit", "remove the call of ring_flash_attn.substitute_hf_flash_attn")
