"""What models ask of attention, and where the stack fails them.

Source: the transformers wheels 4.42.4 to 5.23.0 (about 50 of them; models/*/modeling_*.py, masking_utils.py,
integrations/*.py), ring_flash_attn 0.1.8, flash_attn 2.8.3, flash_attn_4 4.0.0b36, accelerate 1.10.0 to 1.15.0 and
LLaMA-Factory 0.9.3 to 0.9.5, read on 2026-11-21. A boundary is the first release that was read with the change.
"""

from __future__ import annotations

from packaging.version import Version

from attncheck.core.facts import Absent, Fact, Known, need, value_or
from attncheck.core.findings import Fix
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.install import attn_implementation, install

FUSED = ("flash_attention_2", "flash_attention_3", "flash_attention_4", "sdpa", "flex_attention")

# integrations/sdpa_attention.py raises on a softcap from here on (and gemma2 says `_supports_sdpa = False`); 5.20.2
# and older drop it without a word.
SDPA_REFUSES_SOFTCAP = "5.21.0"
# flash-attn's `softcap` argument came with 2.6.0 (its README's change log).
FLASH_SOFTCAP = "2.6.0"
# Models with sinks name the kernels that know them (`_compatible_flash_implementations`) from here on; before, a plain
# flash_attention_2 is accepted and `s_aux` dropped (modeling_flash_attention_utils.py), seen in 4.55.0 to 5.2.0.
SINKS_REDIRECTED = "5.3.0"
# integrations/flash_attention.py pads V to Q's head size from here on; before, each MLA model did so itself.
V_PADDED_OUTSIDE_THE_MODEL = "5.15.0"
# The first flash-attn whose backward takes head sizes over 192 on GPUs with 99 KiB of shared memory (its README).
WIDE_BACKWARD_ON_CONSUMER_GPUS = "2.5.5"
SMALL_SHARED_MEMORY = frozenset({(8, 6), (8, 9), (12, 0), (12, 1)})
# flash_attn.bert_padding.unpad_input returns five values instead of four from here on.
FIVE_FROM_UNPAD_INPUT = "2.7.0"
# accelerate has context parallelism (`cp_size`) from 1.10.0 on; from 1.15.0 on it refuses models with windows
# (big_modeling.py) instead of dropping their masks.
ACCELERATE_CONTEXT_PARALLEL = ("1.10.0", "1.15.0")

# Names that remote code imports -> (first release of transformers without it, first release with it again or "").
REMOVED_FROM_TRANSFORMERS: dict[str, tuple[str, str]] = {
    "transformers.cache_utils:HybridCache": ("5.0.0", ""),
    "transformers.cache_utils:SlidingWindowCache": ("5.0.0", ""),
    "transformers.generation.beam_search:BeamScorer": ("5.0.0", ""),
    "transformers.generation.utils:GreedySearchDecoderOnlyOutput": ("5.0.0", ""),
    "transformers.generation.utils:SampleDecoderOnlyOutput": ("5.0.0", ""),
    "transformers.modeling_flash_attention_utils:_flash_supports_window_size": ("4.54.0", ""),
    "transformers.modeling_flash_attention_utils:is_flash_attn_greater_or_equal_2_10": ("5.4.0", ""),
    "transformers.models.llama.modeling_llama:LlamaFlashAttention2": ("4.48.0", ""),
    "transformers.modeling_utils:find_pruneable_heads_and_indices": ("4.56.0", ""),
    "transformers.pytorch_utils:find_pruneable_heads_and_indices": ("5.0.0", ""),
    "transformers.pytorch_utils:is_torch_greater_or_equal_than_1_13": ("4.48.0", "4.50.0"),
    "transformers.utils:LossKwargs": ("4.54.0", ""),
    "transformers.utils:is_flash_attn_greater_or_equal_2_10": ("5.4.0", "5.5.0"),
    "transformers.utils:is_torch_fx_available": ("5.0.0", ""),
    "transformers.utils.import_utils:is_torch_fx_available": ("5.0.0", ""),
}

# Layers with a recurrent state, which neither positions nor cu_seqlens of attention reset.
RECURRENT_LAYERS = frozenset({"linear_attention", "mamba", "hybrid", "conv"})
# Models whose recurrent layers take `cu_seq_lens_q` -> first release that hands it on.
RECURRENT_VARLEN: dict[str, str] = {
    "qwen3_next": "5.9.0",
    "qwen3_5": "5.2.0",
    "qwen3_5_moe": "5.2.0",
    "olmo_hybrid": "5.15.0",
}
# Of these the torch fallback swallows cu_seqlens: they need the kernels of flash-linear-attention and causal-conv1d.
GATED_DELTA_RULE = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid"})


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


def ring_ruled_out(model: Model) -> bool:
    """Say whether ring attention cannot run this model at all, so that finer points about it are moot."""
    wide = max(model.head_dims, default=0) > 256
    capped = isinstance(model.softcap, Known)
    return wide or capped or model.sinks or not model.causal or refuses(model, "flash_attention_2")


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


def older(found: Fact[Version], boundary: str) -> bool:
    """Say whether a version is known and before `boundary`."""
    return isinstance(found, Known) and found.value < Version(boundary)


def reaches(found: Fact[Version], boundary: str) -> bool:
    """Say whether a version is known and at or after `boundary`."""
    return isinstance(found, Known) and found.value >= Version(boundary)


def forces_flash(snapshot: Snapshot) -> bool:
    """Say whether something installed here runs its models on flash attention unless told otherwise."""
    return snapshot.has("openrlhf", "verl", "ring-flash-attn")


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, ascending."""
    return [size for size in range(1, number + 1) if number % size == 0]
