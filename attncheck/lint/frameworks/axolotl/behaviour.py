"""Problems with settings that axolotl cannot honour; each function checks one behaviour, which was read in the wheels.

`constraints` says which releases have it and where it was read. Checks that need no knowledge of the framework (ring
size against world size, head counts, GPUs, missing packages) are rules.
"""

from collections.abc import Callable, Iterator

from attncheck.doctor.knowledge.models import RECURRENT_LAYERS
from attncheck.lint.fields import DROP, SettingProblem, get_nested, is_true, read_requirements
from attncheck.lint.frameworks.axolotl import constraints, naming
from attncheck.lint.frameworks.axolotl import tables as axolotl
from attncheck.lint.frameworks.axolotl.values import AxolotlReading

TRAINER_REFUSES_FLASH_SINCE = "4.56.0"  # transformers trainer.py:3882-3889; 4.55.4 has no such check
EIGHT_BIT_OPTIMIZERS = ("paged_adamw_8bit", "adamw_8bit", "adamw_bnb_8bit")
# loaders/patch_manager.py:574-600
PATCHED_SINCE = {"qwen3_next": "0.13.1", "qwen3_5": "0.15.0", "qwen3_5_moe": "0.15.0"}


def packing_leaks(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for packing that keeps the attention mask: transformers then lets documents attend to each other."""
    if not settings.packed or settings.isolates_documents or settings.is_on("rl"):
        return
    # Up to 0.4.0 (utils/models.py:363), hijack_expand_mask keeps such a model's documents apart; older releases
    # are read as the table's first.
    if settings.is_on("is_llama_derived_model") and not settings.is_at_least("0.9.0"):
        return
    implementation = settings.implementation or "no implementation"
    by_flags = not settings.is_at_least(axolotl.FLAGS_DEPRECATED_SINCE)
    is_misnamed = by_flags and get_nested(settings.parsed_values, "attn_implementation")
    reason = (
        ": before 0.17 axolotl separates documents only for its attention flags, and none is set" if is_misnamed else ""
    )
    is_isolating = settings.implementation in axolotl.isolating_implementations(settings.version)
    target = settings.implementation if is_misnamed and is_isolating else "flash_attention_2"
    message = f"sample_packing with {implementation} keeps the attention mask: "
    message += f"packed documents attend to each other{reason}"
    fields = ("attn_implementation", *settings.attention_flags, "sample_packing")
    yield from settings.setting_problem(
        "wrong", message, constraints.PACKING_LEAKS, *fields, sets={"attn_implementation": target}
    )


def packing_refused(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check sample packing with preference or reinforcement learning; batch flattening with packing or no varlen."""
    rl = settings.get("rl")
    if settings.packed and rl:
        yield from settings.setting_problem(
            "refuses",
            f"sample_packing with rl: {rl}",
            constraints.PACKING_WITH_RL,
            "sample_packing",
            sets={"packing": "off"},
        )
    flattening = get_nested(settings.parsed_values, "batch_flattening")
    if flattening is True and settings.packed:
        yield from settings.setting_problem(
            "refuses",
            "batch_flattening with sample_packing",
            constraints.FLATTENING_WITH_PACKING,
            "batch_flattening",
            sets={"batch_flattening": DROP},
        )
    elif flattening is True and not _takes_cu_seqlens(settings):
        implementation = settings.implementation or "no implementation"
        yield from settings.setting_problem(
            "refuses",
            f"batch_flattening with {implementation}: it needs an implementation that supports cu_seqlens",
            constraints.FLATTENING_WITHOUT_FLASH,
            "batch_flattening",
            sets={"attn_implementation": "flash_attention_2"},
        )


def _takes_cu_seqlens(settings: AxolotlReading) -> bool:
    if not settings.is_at_least(axolotl.FLAGS_DEPRECATED_SINCE):
        return "flash_attention" in settings.attention_flags
    return settings.implementation.split(":")[0].split("@")[0].strip() in axolotl.ISOLATING_IMPLEMENTATIONS


def context_parallel_refused(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check the ring with an implementation other than flash_attention_2, or with several packed rows."""
    if settings.ring_size < 2 or settings.is_on("use_glm_dsa_kernels"):
        return
    name = (
        "context_parallel_size" if settings.is_at_least(axolotl.CONTEXT_PARALLEL_SINCE) else "sequence_parallel_degree"
    )
    fields = ("context_parallel_size", "sequence_parallel_degree")
    has_flash = (
        settings.implementation == "flash_attention_2"
        if settings.is_at_least(axolotl.FLAGS_DEPRECATED_SINCE)
        else "flash_attention" in settings.attention_flags
    )
    if not has_flash:
        implementation = settings.implementation or "no implementation"
        message = f"{name} {settings.ring_size} with {implementation}: only flash_attention_2 supports the ring"
        if settings.implementation == "flash_attention_2":
            message = f"{name} {settings.ring_size} requires flash_attention: true; attn_implementation is ignored"
        refused, sets = constraints.RING_WITHOUT_FLASH, {"attn_implementation": "flash_attention_2"}
        yield from settings.setting_problem(
            "refuses",
            message,
            refused,
            "attn_implementation",
            *settings.attention_flags,
            *fields,
            sets=sets,
        )
    rows = settings.get_int("micro_batch_size")
    if rows > 1:
        message = (
            f"{name} {settings.ring_size} with micro_batch_size {rows}: the llama3 ring supports only one packed row"
        )
        yield from settings.setting_problem(
            "refuses",
            message,
            (*constraints.RING_ROWS, *(constraints.RING_PACKED_ROWS if settings.packed else ())),
            "micro_batch_size",
            *fields,
            sets={"batch": "1"},
        )
    yield from _ring_function_problems(settings)
    if not settings.get("rl"):
        size, advice = settings.ring_size, f"{name}: 1, if a row fits on one GPU"
        message = (
            f"{name} {size}: gradients are {size} times too small, and the token after each slice is never learned"
        )
        yield from settings.setting_problem(
            "wrong", message, constraints.RING_GRADIENTS, *fields, advice=advice, mild=True
        )
    yield from _ring_refused_by_trainer(settings, name)


def _ring_refused_by_trainer(settings: AxolotlReading, name: str) -> Iterator[SettingProblem]:
    """Check for a transformers newer than the release pins: its trainer accepts only sdpa with context parallelism."""
    if not settings.has_version("transformers", TRAINER_REFUSES_FLASH_SINCE):
        return
    required = [line for line in read_requirements("axolotl", settings.version) if line.startswith("transformers")]
    yield from settings.setting_problem(
        "refuses",
        f"{name} {settings.ring_size} under transformers {TRAINER_REFUSES_FLASH_SINCE} or newer: "
        "its trainer refuses context parallelism with flash attention",
        constraints.RING_REFUSED_BY_TRAINER,
        "context_parallel_size",
        "sequence_parallel_degree",
        installs=tuple(required),
        advice="or axolotl 0.13.1 or newer, which removes the trainer's check (not tried here)",
    )


def _ring_function_problems(settings: AxolotlReading) -> Iterator[SettingProblem]:
    if settings.ring_function not in ("varlen_llama3", "batch_ring"):
        yield from settings.setting_problem(
            "refuses",
            f"ring_attn_func {settings.ring_function!r} is neither varlen_llama3 nor batch_ring",
            constraints.UNKNOWN_RING_FUNCTION,
            "ring_attn_func",
            sets={"ring_attn_func": DROP},
        )
    elif settings.packed and settings.ring_function == "batch_ring":
        yield from settings.setting_problem(
            "wrong",
            "ring_attn_func batch_ring with sample_packing: it ignores document boundaries, so documents attend to "
            "each other",
            constraints.BATCH_RING_PACKED,
            "ring_attn_func",
            sets={"ring_attn_func": "varlen_llama3"},
        )


def liger_refused(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for Liger kernels that sequence or tensor parallelism refuses."""
    liger_fields = [
        name for name in settings.parsed_values if name.startswith("liger_") and is_true(settings.parsed_values[name])
    ]
    if settings.is_on("trl.use_liger_loss") and settings.get("rl") == "grpo" and settings.ring_size > 1:
        yield from settings.setting_problem(
            "refuses",
            "GRPO with Liger's loss over a ring",
            constraints.GRPO_LIGER_RING,
            "trl.use_liger_loss",
            sets={"ring_size": "1"},
        )
    size = settings.get_int("tensor_parallel_size")
    if size > 1 and settings.has_plugin("liger"):
        for name, ranges in constraints.LIGER_TENSOR_PARALLEL.items():
            if name in liger_fields:
                yield from settings.setting_problem(
                    "refuses", f"{name} with tensor_parallel_size {size}", ranges, name, sets={name: "false"}
                )


def cross_entropy_refused(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for cut cross-entropy without half precision, or with another chunked loss."""
    if not settings.has_plugin("cut_cross_entropy") or get_nested(settings.parsed_values, "cut_cross_entropy") is False:
        return
    is_cut = get_nested(settings.parsed_values, "cut_cross_entropy")
    if is_cut and not (settings.is_on("bf16") or settings.is_on("fp16")):
        yield from settings.setting_problem(
            "refuses",
            "cut_cross_entropy without bf16 or fp16",
            constraints.CUT_CROSS_ENTROPY_PRECISION,
            "cut_cross_entropy",
            sets={"precision": "bf16"},
        )
    if settings.is_on("chunked_cross_entropy"):
        yield from settings.setting_problem(
            "refuses",
            "chunked_cross_entropy with the cut cross-entropy plugin",
            constraints.CHUNKED_CROSS_ENTROPY,
            "chunked_cross_entropy",
            sets={"chunked_cross_entropy": DROP},
        )


def tensor_parallel_refused(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for tensor parallelism with an 8-bit optimiser."""
    optimizer, size = settings.get("optimizer"), settings.get_int("tensor_parallel_size")
    if size > 1 and optimizer in EIGHT_BIT_OPTIMIZERS:
        yield from settings.setting_problem(
            "refuses",
            f"tensor_parallel_size {size} with {optimizer}",
            constraints.TENSOR_PARALLEL_8_BIT,
            "optimizer",
            sets={"optimizer": "adamw_torch_fused"},
        )


def unsupported_gpus(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for fp8 and sage attention on GPUs without them, and packed sdpa in bfloat16 below Hopper (a warning)."""
    capabilities = settings.compute_capabilities
    if not capabilities:
        return
    lowest, text = min(capabilities), " ".join("sm_{}{}".format(*capability) for capability in sorted(capabilities))
    sets = {"attn_implementation": "flash_attention_2" if lowest >= (8, 0) else "sdpa"}
    fields = ("attn_implementation", *settings.attention_flags)
    if settings.implementation == "fp8" and lowest < (9, 0):
        yield from settings.setting_problem(
            "refuses", f"attn_implementation fp8 on {text}", constraints.FP8_GPUS, *fields, sets=sets
        )
    if settings.implementation == "sage" and not capabilities <= set(axolotl.SAGE_CAPABILITIES):
        yield from settings.setting_problem(
            "refuses", f"sage attention on {text}", constraints.SAGE_GPUS, *fields, sets=sets
        )
    if (
        settings.packed
        and settings.implementation == "sdpa"
        and lowest < (9, 0)
        and (settings.is_on("bf16") or settings.is_on("bfloat16"))
    ):
        yield from settings.setting_problem(
            "wrong",
            f"sample_packing with sdpa in bfloat16 on {text}: axolotl warns that the loss may be 0.0",
            constraints.PACKED_SDPA_IN_BF16,
            *fields,
            sets=sets,
            mild=True,
        )


def flash_4_replaces(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check whether FlashAttention 4 replaces flash_attention_2: it does if it is installed and the GPU supports it."""
    if uses_flash_4(settings):
        message = f"{settings.implementation} becomes FlashAttention 4: flash-attn-4 is installed and supports this GPU"
        ranges = constraints.FLASH_4_REPLACES
        fields = ("attn_implementation", *settings.attention_flags)
        yield from settings.setting_problem(
            "replaces",
            message,
            ranges,
            *fields,
            advice="pip uninstall flash-attn-4, to keep FlashAttention 2",
            mild=True,
        )


def uses_flash_4(settings: AxolotlReading) -> bool:
    """Return whether FlashAttention 4 replaces the requested implementation (flash_attn_4.py:120, `fa4_usable`)."""
    replaceable = settings.implementation in ("flash_attention_2", "flash_attention_3")
    if not replaceable or not settings.is_at_least(axolotl.FLASH_4_SINCE):
        return False
    if settings.is_at_least(axolotl.FLASH_4_NAMED_SINCE) and settings.ring_size > 1:
        return False
    majors = {major for major, _ in settings.compute_capabilities}
    return settings.is_installed("flash-attn-4") and bool(majors) and majors <= {9, 10, 11}


def recurrent_layers_leak(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check recurrent layers with packed rows: axolotl patches three families; in others documents leak."""
    model = settings.model
    if not settings.packed or model is None:
        return
    family = model.model_type.removesuffix("_text")
    recurrent_count = sum(kind in RECURRENT_LAYERS for kind in model.layer_types)
    patched_since = PATCHED_SINCE.get(family)
    if (
        recurrent_count
        and "linear_attention" in model.layer_types
        and (patched_since is None or not settings.is_at_least(patched_since))
    ):
        yield from settings.setting_problem(
            "wrong",
            f"sample_packing mixes documents in the {recurrent_count} recurrent layers of {model.model_type}",
            constraints.RECURRENT_LAYERS,
            "sample_packing",
            sets={"packing": "off"},
        )


BEHAVIOURS: tuple[Callable[[AxolotlReading], Iterator[SettingProblem]], ...] = (
    naming.implementation_named_twice,
    naming.unknown_implementation,
    naming.several_booleans,
    naming.deprecated_names,
    naming.removed_settings,
    packing_leaks,
    packing_refused,
    context_parallel_refused,
    liger_refused,
    naming.missing_plugins,
    cross_entropy_refused,
    tensor_parallel_refused,
    unsupported_gpus,
    flash_4_replaces,
    recurrent_layers_leak,
    naming.underscored_options,
)
