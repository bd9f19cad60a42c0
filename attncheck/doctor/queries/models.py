"""Queries for rules about a model: the implementations that its class accepts, and whether it allows ring attention."""

from packaging.version import Version

from attncheck.core.model import Model
from attncheck.core.snapshot import Absent, Fact, Known, MissingFact, Snapshot, Unreadable, need, value_or
from attncheck.doctor.knowledge.models import FLASH_SOFTCAP, FUSED_IMPLEMENTATIONS


def requested_model(snapshot: Snapshot) -> Model | None:
    """Return the requested model; None if none was requested. Raises `MissingFact` if it was not readable (ATN301)."""
    if isinstance(snapshot.model, Unreadable):
        raise MissingFact(f"the model is unreadable: {snapshot.model.reason}", ("ATN301",))
    return None if isinstance(snapshot.model, Absent) else snapshot.model.value


def has_vision_tower(snapshot: Snapshot) -> bool:
    """Return whether the requested model has a vision tower whose dimensions its configuration states."""
    return isinstance(snapshot.model, Known) and any("vision" in tower.name for tower in snapshot.model.value.towers)


# transformers 4.55.4 to 5.24.0, models/*/modeling_*.py: gpt_oss, mimo_v2_flash and every later class with sinks.
WITHOUT_SINKS = "refused: sdpa takes no attention sinks, so every class with sinks has `_supports_sdpa = False`"


def transformers_answer(model: Model, implementation: str) -> str | None:
    """Return transformers' answer: "" if accepted, a text that starts with the kind of refusal, None if not known."""
    if isinstance(model.accepts, Known):
        return model.accepts.value.get(implementation)
    return WITHOUT_SINKS if model.sinks and implementation == "sdpa" else None


def refuses_implementation(model: Model, implementation: str) -> bool:
    """Return whether the model's class itself refuses `implementation`, regardless of installed packages."""
    return (transformers_answer(model, implementation) or "").startswith("refused: ")


def refusal_reason(model: Model, implementation: str) -> str:
    """Return the reason for the refusal: transformers' own, if it was imported."""
    lane = "import lane: " if isinstance(model.accepts, Known) else ""
    return lane + (transformers_answer(model, implementation) or "").partition(": ")[2]


def is_eager_only(model: Model) -> bool:
    """Return whether the model's class refuses every fused attention that was tried."""
    checked = [name for name in FUSED_IMPLEMENTATIONS if transformers_answer(model, name) is not None]
    offered = [name for name in checked if "does not offer" not in (transformers_answer(model, name) or "")]
    is_known = isinstance(model.accepts, Known) and bool(offered)
    return is_known and all(refuses_implementation(model, name) for name in offered)


def unsuitable_implementations(snapshot: Snapshot, model: Model) -> set[str]:
    """Return the implementations not to recommend for `model` here, even if its class accepts them."""
    unsuitable = set()
    softcap = isinstance(model.softcap, Known)
    if softcap:
        unsuitable.add("sdpa")
    too_wide = max(model.head_dims, default=0) > 256
    chunked = "chunked_attention" in model.layer_types
    if too_wide or chunked or model.sinks or (model.alibi and model.model_type == "falcon"):
        unsuitable.add("flash_attention_2")
    if softcap and is_older(snapshot.version("flash-attn"), FLASH_SOFTCAP):
        unsuitable.add("flash_attention_2")
    old_gpu = any(value_or(gpu.compute_capability, (8, 0)) < (8, 0) for gpu in snapshot.visible_devices())
    flash_import = snapshot.imported("flash_attn")
    flash_import_failed = isinstance(flash_import, Known) and flash_import.value.outcome != "ok"
    if old_gpu or flash_import_failed or not snapshot.lists("flash-attn"):
        unsuitable.add("flash_attention_2")
    return unsuitable


def is_ring_ruled_out(model: Model) -> bool:
    """Return whether ring attention cannot run this model at all, which makes other rules about it irrelevant."""
    wide = max(model.head_dims, default=0) > 256
    capped = isinstance(model.softcap, Known)
    return wide or capped or model.sinks or not model.causal or refuses_implementation(model, "flash_attention_2")


def is_older(version: Fact[Version], boundary: str) -> bool:
    """Return whether a version is lower than `boundary`. Raises `MissingFact` if it is not known."""
    return not isinstance(version, Absent) and need(version, "the version") < Version(boundary)


def is_at_least(version: Fact[Version], boundary: str) -> bool:
    """Return whether a version is not lower than `boundary`. Raises `MissingFact` if it is not known."""
    return not isinstance(version, Absent) and need(version, "the version") >= Version(boundary)


def forces_flash_attention(snapshot: Snapshot) -> bool:
    """Return whether a package here runs its models on flash attention unless configured otherwise."""
    return snapshot.lists("openrlhf", "verl", "ring-flash-attn")
