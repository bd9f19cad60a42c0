"""Problems of settings that axolotl cannot serve: each function is one behaviour, read in its wheels.

Lines are those of 0.19.0 for releases from 0.17 on, and of 0.16.1 for older ones. What can be judged without knowing
the framework (a ring against the world, head counts, GPUs, missing packages) is judged by rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attncheck.core.job import DROP, SettingProblem
from attncheck.doctor.knowledge.models import RECURRENT_LAYERS
from attncheck.lint.fields.written import get_nested, is_true
from attncheck.lint.frameworks.axolotl import naming
from attncheck.lint.frameworks.axolotl import tables as axolotl
from attncheck.lint.frameworks.axolotl.naming import SCHEMAS, setting_problem
from attncheck.lint.frameworks.axolotl.values import AxolotlSettings

EIGHT_BIT_OPTIMIZERS = ("paged_adamw_8bit", "adamw_8bit", "adamw_bnb_8bit")
# loaders/patch_manager.py:574-600
PATCHED_SINCE = {"qwen3_next": "0.13.1", "qwen3_5": "0.15.0", "qwen3_5_moe": "0.15.0"}


def find_problems(settings: AxolotlSettings) -> tuple[SettingProblem, ...]:
    """Return the problems that the release has with the settings."""
    return tuple(problem for behaviour in BEHAVIOURS for problem in behaviour(settings))


def packing_leaks(settings: AxolotlSettings) -> Iterator[SettingProblem]:
    """Packing where the attention mask is kept: transformers looks for no borders and documents see each other."""
    if not settings.packed or settings.isolates_documents or settings.is_on("rl"):
        return
    implementation = settings.implementation or "no implementation"
    by_flags = not settings.is_at_least(axolotl.FLAGS_DEPRECATED_SINCE)
    is_misnamed = by_flags and get_nested(settings.parsed_values, "attn_implementation")
    reason = ": before 0.17 axolotl packs by its booleans, and none is on" if is_misnamed else ""
    is_isolating = settings.implementation in axolotl.isolating_implementations(settings.version)
    target = settings.implementation if is_misnamed and is_isolating else "flash_attention_2"
    new = f"{SCHEMAS}/validation.py:188: does not handle cross-sample decontamination; core/builders/causal.py:275"
    old = "core/builders/causal.py:261: sample_packing_drop_attention_mask for flash, xformers and flex alone"
    message = f"sample_packing with {implementation} keeps the attention mask: "
    message += f"the documents of a row attend to each other{reason}"
    fields = ("attn_implementation", *settings.attention_flags, "sample_packing")
    yield from setting_problem(settings, "wrong", message, new, old, *fields, sets={"attn_implementation": target})


def packing_refused(settings: AxolotlSettings) -> Iterator[SettingProblem]:
    """Sample packing with reinforcement or preference learning; batch flattening with packing or without varlen."""
    rl = settings.get("rl")
    if settings.packed and rl:
        new, old = (f"{SCHEMAS}/validation.py:{line}: does not work with RLHF training" for line in (708, 710))
        message = f"sample_packing with rl: {rl}"
        yield from setting_problem(settings, "refuses", message, new, old, "sample_packing", sets={"packing": "off"})
    flattening = get_nested(settings.parsed_values, "batch_flattening")
    if flattening is True and settings.packed:
        new, old = f"{SCHEMAS}/validation.py:1089", f"{SCHEMAS}/validation.py:836"
        message = "batch_flattening with sample_packing"
        yield from setting_problem(
            settings, "refuses", message, new, old, "batch_flattening", sets={"batch_flattening": DROP}
        )
    elif flattening is True and not _takes_cu_seqlens(settings):
        new, old = f"{SCHEMAS}/validation.py:1084", f"{SCHEMAS}/validation.py:834"
        implementation = settings.implementation or "no implementation"
        message = f"batch_flattening with {implementation}: it needs one that takes cu_seqlens"
        sets = {"attn_implementation": "flash_attention_2"}
        yield from setting_problem(settings, "refuses", message, new, old, "batch_flattening", sets=sets)


def _takes_cu_seqlens(settings: AxolotlSettings) -> bool:
    if not settings.is_at_least(axolotl.FLAGS_DEPRECATED_SINCE):
        return "flash_attention" in settings.attention_flags
    return settings.implementation.split(":")[0].split("@")[0].strip() in axolotl.ISOLATING_IMPLEMENTATIONS


def context_parallel_refused(settings: AxolotlSettings) -> Iterator[SettingProblem]:
    """The ring with another implementation than flash_attention_2, or with several packed rows."""
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
        message = f"{name} {settings.ring_size} with {implementation}: the ring is in flash_attention_2 alone"
        if settings.implementation == "flash_attention_2":
            message = (
                f"{name} {settings.ring_size} asks for flash_attention: true; attn_implementation is not looked at"
            )
        new = f"{SCHEMAS}/validation.py:1804: requires attn_implementation: flash_attention_2"
        old = f"{SCHEMAS}/validation.py:1419: flash_attention: true must be set"
        sets = {"attn_implementation": "flash_attention_2"}
        yield from setting_problem(
            settings, "refuses", message, new, old, "attn_implementation", *settings.attention_flags, *fields, sets=sets
        )
    rows = settings.get_int("micro_batch_size")
    if rows > 1 and (settings.packed or not settings.is_at_least(axolotl.RING_FUNCTION_SINCE)):
        message = f"{name} {settings.ring_size} with micro_batch_size {rows}: the llama3 ring takes one packed row"
        new, old = (f"{SCHEMAS}/validation.py:{line}: micro_batch_size must be set to 1" for line in (1811, 1424))
        yield from setting_problem(
            settings, "refuses", message, new, old, "micro_batch_size", *fields, sets={"batch": "1"}
        )
    yield from _ring_function_problems(settings)


def _ring_function_problems(settings: AxolotlSettings) -> Iterator[SettingProblem]:
    if settings.ring_function not in ("varlen_llama3", "batch_ring"):
        message = f"ring_attn_func {settings.ring_function!r} is none of varlen_llama3, batch_ring"
        evidence = f"{SCHEMAS}/enums.py:195"
        yield from setting_problem(
            settings, "refuses", message, evidence, "", "ring_attn_func", sets={"ring_attn_func": DROP}
        )
    elif settings.packed and settings.ring_function == "batch_ring":
        message = "ring_attn_func batch_ring with sample_packing: it knows no borders, documents attend to each other"
        evidence = "monkeypatch/ring_attn/adapters/batch.py:90: position_ids and cu_seq_lens are not used"
        sets = {"ring_attn_func": "varlen_llama3"}
        yield from setting_problem(settings, "wrong", message, evidence, "", "ring_attn_func", sets=sets)


def liger_refused(settings: AxolotlSettings) -> Iterator[SettingProblem]:
    """Liger's kernels that sequence or tensor parallelism refuses."""
    liger_fields = [
        name for name in settings.parsed_values if name.startswith("liger_") and is_true(settings.parsed_values[name])
    ]
    if (
        settings.is_on("trl.use_liger_loss")
        and settings.get("rl") == "grpo"
        and settings.ring_size > 1
        and settings.is_at_least("0.9.0")
    ):
        new, old = (f"{SCHEMAS}/validation.py:{line}: GRPO + SP + Liger not currently supported" for line in (731, 733))
        yield from setting_problem(
            settings,
            "refuses",
            "GRPO with Liger's loss over a ring",
            new,
            old,
            "trl.use_liger_loss",
            sets={"ring_size": "1"},
        )
    size = settings.get_int("tensor_parallel_size")
    if size > 1 and settings.has_plugin("liger"):
        for name in ("liger_rms_norm", "liger_fused_linear_cross_entropy"):
            if name in liger_fields and settings.is_at_least("0.12.0"):
                new, old = (
                    f"integrations/liger/args.py:{118 if 'norm' in name else 139}",
                    "integrations/liger/args.py:91",
                )
                message = f"{name} with tensor_parallel_size {size}"
                yield from setting_problem(settings, "refuses", message, new, old, name, sets={name: "false"})


def cross_entropy_refused(settings: AxolotlSettings) -> Iterator[SettingProblem]:
    """Cut cross-entropy without half precision, or with another chunked loss."""
    if not settings.has_plugin("cut_cross_entropy") or get_nested(settings.parsed_values, "cut_cross_entropy") is False:
        return
    is_cut = get_nested(settings.parsed_values, "cut_cross_entropy")
    if is_cut and not (settings.is_on("bf16") or settings.is_on("fp16")):
        evidence = "integrations/cut_cross_entropy/args.py:42: requires fp16/bf16 training for backward pass"
        message = "cut_cross_entropy without bf16 or fp16"
        yield from setting_problem(
            settings, "refuses", message, evidence, "", "cut_cross_entropy", sets={"precision": "bf16"}
        )
    if settings.is_on("chunked_cross_entropy"):
        evidence = "integrations/cut_cross_entropy/args.py:53"
        message = "chunked_cross_entropy with the cut cross-entropy plugin"
        sets = {"chunked_cross_entropy": DROP}
        yield from setting_problem(settings, "refuses", message, evidence, "", "chunked_cross_entropy", sets=sets)


def tensor_parallel_refused(settings: AxolotlSettings) -> Iterator[SettingProblem]:
    """Tensor parallelism with an 8-bit optimiser."""
    optimizer, size = settings.get("optimizer"), settings.get_int("tensor_parallel_size")
    if size > 1 and optimizer in EIGHT_BIT_OPTIMIZERS and settings.is_at_least("0.13.1"):
        evidence = f"{SCHEMAS}/validation.py:1930: tensor_parallel_size is not supported with … 8bit optimizers"
        message = f"tensor_parallel_size {size} with {optimizer}"
        yield from setting_problem(
            settings, "refuses", message, evidence, "", "optimizer", sets={"optimizer": "adamw_torch_fused"}
        )


def unsupported_gpus(settings: AxolotlSettings) -> Iterator[SettingProblem]:
    """fp8 and sage attention on GPUs that do not run them; axolotl warns of packed sdpa in bfloat16 below Hopper."""
    capabilities = settings.compute_capabilities
    if not capabilities:
        return
    lowest, text = min(capabilities), " ".join("sm_{}{}".format(*capability) for capability in sorted(capabilities))
    sets = {"attn_implementation": "flash_attention_2" if lowest >= (8, 0) else "sdpa"}
    fields = ("attn_implementation", *settings.attention_flags)
    if settings.implementation == "fp8" and lowest < (9, 0):
        evidence = f"{SCHEMAS}/config.py:1900: requires compute capability sm_90 or higher"
        yield from setting_problem(
            settings, "refuses", f"attn_implementation fp8 on {text}", evidence, "", *fields, sets=sets
        )
    if settings.implementation == "sage" and not capabilities <= set(axolotl.SAGE_CAPABILITIES):
        new, old = (f"{SCHEMAS}/config.py:{line}: SageAttention supports compute capability" for line in (1886, 1441))
        yield from setting_problem(settings, "refuses", f"sage attention on {text}", new, old, *fields, sets=sets)
    if (
        settings.packed
        and settings.implementation == "sdpa"
        and lowest < (9, 0)
        and (settings.is_on("bf16") or settings.is_on("bfloat16"))
    ):
        new, old = f"{SCHEMAS}/config.py:1866", f"{SCHEMAS}/config.py:1418"
        message = f"sample_packing with sdpa in bfloat16 on {text}: axolotl warns of a loss of 0.0"
        yield from setting_problem(settings, "wrong", message, new, old, *fields, sets=sets, mild=True)


def flash_4_replaces(settings: AxolotlSettings) -> Iterator[SettingProblem]:
    """flash_attention_2 becomes FlashAttention 4 where that is installed and the GPU has it."""
    if uses_flash_4(settings):
        message = f"{settings.implementation} becomes FlashAttention 4: flash-attn-4 is installed, and the GPU has it"
        new = "loaders/model.py:857: upgraded from flash_attention_2"
        if not settings.is_at_least(axolotl.FLASH_4_NAMED_SINCE):
            new = "(0.16.0 to 0.18.0) loaders/patch_manager.py: patch_flash_attn_4"
        old = "loaders/patch_manager.py:249"
        fields = ("attn_implementation", *settings.attention_flags)
        advice = "pip uninstall flash-attn-4, to keep FlashAttention 2"
        yield from setting_problem(settings, "replaces", message, new, old, *fields, advice=advice, mild=True)


def uses_flash_4(settings: AxolotlSettings) -> bool:
    """Say whether FlashAttention 4 replaces the requested implementation (flash_attn_4.py:120, `fa4_usable`)."""
    replaceable = settings.implementation in ("flash_attention_2", "flash_attention_3")
    if not replaceable or not settings.is_at_least(axolotl.FLASH_4_SINCE):
        return False
    if settings.is_at_least(axolotl.FLASH_4_NAMED_SINCE) and settings.ring_size > 1:
        return False
    majors = {major for major, _ in settings.compute_capabilities}
    return settings.is_installed("flash-attn-4") and bool(majors) and majors <= {9, 10, 11}


def recurrent_layers_leak(settings: AxolotlSettings) -> Iterator[SettingProblem]:
    """Recurrent layers are patched for packed rows in three families; the others mix documents."""
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
        message = f"sample_packing lets documents mix in the {recurrent_count} recurrent layers of {model.model_type}"
        evidence = "loaders/patch_manager.py:574: qwen3_next, qwen3_5 and qwen3_5_moe are patched"
        yield from setting_problem(settings, "wrong", message, evidence, "", "sample_packing", sets={"packing": "off"})


BEHAVIOURS: tuple[Callable[[AxolotlSettings], Iterator[SettingProblem]], ...] = (
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
