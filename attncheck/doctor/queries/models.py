"""What rules ask about a model: which implementations its class accepts, and what rules a ring out."""

from __future__ import annotations

from packaging.version import Version

from attncheck.core.facts import Absent, Fact, Known, need, value_or
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.models import FLASH_SOFTCAP, FUSED


def named(snapshot: Snapshot) -> Model | None:
    """Return the model that was asked about, or None where none was. Raises `MissingFact` where it was not readable."""
    return None if isinstance(snapshot.model, Absent) else need(snapshot.model, "the model")


def answer(model: Model, implementation: str) -> str | None:
    """Return transformers' answer: "" accepted, a text that starts with its kind of refusal, None not asked."""
    return model.accepts.value.get(implementation) if isinstance(model.accepts, Known) else None


def refuses(model: Model, implementation: str) -> bool:
    """Say whether the model's class itself refuses `implementation`, whatever is installed."""
    return (answer(model, implementation) or "").startswith("refused: ")


def reason(model: Model, implementation: str) -> str:
    """Return transformers' own words of refusal."""
    return (answer(model, implementation) or "").partition(": ")[2]


def eager_only(model: Model) -> bool:
    """Say whether the model's class refuses every fused attention that was asked for."""
    asked = [name for name in FUSED if answer(model, name) is not None]
    classes = [name for name in asked if "does not offer" not in (answer(model, name) or "")]
    return bool(classes) and all(refuses(model, name) for name in classes)


def unfit(snapshot: Snapshot, model: Model) -> set[str]:
    """Return what must not be recommended for `model` here, although its class may accept it."""
    found = set()
    softcap = isinstance(model.softcap, Known)
    if model.sinks or softcap:
        found.add("sdpa")
    too_wide = max(model.head_dims, default=0) > 256
    chunked = "chunked_attention" in model.layer_types
    if too_wide or chunked or model.sinks or (model.alibi and model.model_type == "falcon"):
        found.add("flash_attention_2")
    if softcap and older(snapshot.version("flash-attn"), FLASH_SOFTCAP):
        found.add("flash_attention_2")
    old_gpu = any(value_or(gpu.compute_capability, (8, 0)) < (8, 0) for gpu in snapshot.visible_devices())
    tried = snapshot.imported("flash_attn")
    broken = isinstance(tried, Known) and tried.value.outcome != "ok"
    if old_gpu or broken or not snapshot.has("flash-attn"):
        found.add("flash_attention_2")
    return found


def ring_ruled_out(model: Model) -> bool:
    """Say whether ring attention cannot run this model at all, so that finer points about it are moot."""
    wide = max(model.head_dims, default=0) > 256
    capped = isinstance(model.softcap, Known)
    return wide or capped or model.sinks or not model.causal or refuses(model, "flash_attention_2")


def older(found: Fact[Version], boundary: str) -> bool:
    """Say whether a version is known and before `boundary`."""
    return isinstance(found, Known) and found.value < Version(boundary)


def reaches(found: Fact[Version], boundary: str) -> bool:
    """Say whether a version is known and at or after `boundary`."""
    return isinstance(found, Known) and found.value >= Version(boundary)


def forces_flash(snapshot: Snapshot) -> bool:
    """Say whether something installed here runs its models on flash attention unless told otherwise."""
    return snapshot.has("openrlhf", "verl", "ring-flash-attn")
