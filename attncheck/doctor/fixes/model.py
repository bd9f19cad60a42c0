"""Fixes for a model that cannot run with the requested attention."""

from attncheck.core.findings import Fix
from attncheck.core.model import Model
from attncheck.core.snapshot import Known, Snapshot
from attncheck.doctor.fixes.install import install_packages, set_attn_implementation
from attncheck.doctor.queries import (
    change_settings,
    resolve_transformers,
    transformers_answer,
    unsuitable_implementations,
)


def use_other_attention(snapshot: Snapshot, model: Model, *excluded: str) -> tuple[Fix, ...]:
    """Return the setting of the best attention backend that serves `model` here, other than `excluded`.

    If the answers of its class are unknown and it is not sdpa, eager follows flex_attention, which few classes refuse.
    """
    ruled_out = {*excluded, *unsuitable_implementations(snapshot, model)}
    has_answers = isinstance(model.accepts, Known)
    serves = "" if has_answers else None
    order = ("flash_attention_2", "sdpa", "flex_attention", "eager")[not has_answers :]
    names = [name for name in order if name not in ruled_out and transformers_answer(model, name) == serves]
    if isinstance(snapshot.job, Known):
        fixes = tuple(change_settings(f"use {name}", {"attn_implementation": name}) for name in names)
    else:
        fixes = tuple(set_attn_implementation(snapshot, name) for name in names)
    return fixes[:1] if has_answers or "sdpa" in names else fixes


def change_transformers(snapshot: Snapshot, specifier: str) -> tuple[Fix, ...]:
    """Return the command that installs a transformers within `specifier` that all pins allow; empty if no release does.

    Pins come from the distributions installed here, liger-kernel, torch, and the launch's framework.
    """
    needed = resolve_transformers(snapshot, specifier)
    return (install_packages(snapshot, *needed),) if needed else ()


def disable_ring_attention(snapshot: Snapshot) -> Fix:
    """Return the setting that trains without ring attention, in the option names of the framework installed here."""
    title = "do not use ring attention with this model"
    if isinstance(snapshot.job, Known):
        return Fix(title, "setting", "", "unsafe", sets={"ring_size": "1"})
    if snapshot.lists("openrlhf"):
        return Fix(title, "setting", "--ds.ring_attn_size 1")
    if snapshot.lists("axolotl"):
        return Fix(title, "setting", "context_parallel_size: 1")
    return Fix(title, "edit", "remove the call of ring_flash_attn.substitute_hf_flash_attn")
