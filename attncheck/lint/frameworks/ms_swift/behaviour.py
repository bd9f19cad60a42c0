"""Problems with settings that ms-swift cannot honour; each function checks one behaviour, read in its wheels.

`constraints` says which releases have it and where it was read. Checks that need no knowledge of the framework (sizes
against the world size, implementations that sequence parallelism does not hook into, missing packages) are rules.
"""

import re
from collections.abc import Callable, Iterator

from packaging.version import Version

from attncheck.core.arithmetic import largest_divisor
from attncheck.doctor.knowledge.models import RECURRENT_VARLEN
from attncheck.lint.fields import (
    Absent,
    Known,
    SettingProblem,
    find_constraint,
    find_missing_values,
    read_requirements,
)
from attncheck.lint.frameworks.ms_swift import constraints
from attncheck.lint.frameworks.ms_swift import tables as ms_swift
from attncheck.lint.frameworks.ms_swift.values import MsSwiftReading, find_command

FLASH_CHECK_SINCE = "4.52"  # modeling_flash_attention_utils.py: 4.51.3 has no is_flash_attn_available, 4.52.4 has
FLASH_NAME_GONE_SINCE = "4.53.0"  # models/qwen2_5_vl/modeling_qwen2_5_vl.py: 4.52.4 imports it, 4.53.2 does not
PATCHED_VISION_MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni")


def _packing_field(settings: MsSwiftReading) -> str:
    return "packing" if settings.is_on("packing") else "padding_free"


def options_without_value(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check for options without the value that they need: `--model $MODEL` with an empty variable.

    ms-swift parses with HfArgumentParser: 2.0.0 utils/utils.py:90, 3.8.3 :144, 4.6.0 :180.
    """
    rows = ms_swift.read_option_rows(settings.version, settings.verb == "rlhf")
    yield from find_missing_values((setting, rows.get(name, ("",))[0]) for name, setting in settings.by_field.items())


def packing_without_flash(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check for packing and padding_free without one of the flash implementations that they require by name."""
    implementation, field = settings.get("attn_impl"), _packing_field(settings)
    if not settings.packed or not getattr(settings.by_field.get("attn_impl"), "known", True):
        return
    if implementation in ms_swift.packing_implementations(settings.version):
        return
    yield from settings.setting_problem(
        "refuses",
        f"{field} with attn_impl {implementation or 'not written'}: name a flash implementation explicitly",
        constraints.PACKING_WITHOUT_FLASH,
        "attn_impl",
        "packing",
        "padding_free",
        sets={"attn_implementation": "flash_attention_2"},
    )


def unsupported_rlhf_types(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check for kinds of preference learning without support for packing or for sequence parallelism."""
    if settings.verb != "rlhf":
        return
    rlhf_type, field = settings.trainer, _packing_field(settings)
    takes_kto = settings.is_at_least(ms_swift.DERIVED_RING_SINCE)
    padding_free_types = tuple(name for name in ms_swift.PADDING_FREE_TYPES if name != "kto" or takes_kto)
    checks_packing = settings.is_at_least(ms_swift.PACKING_TYPES_SINCE) or settings.is_on("padding_free")
    if settings.packed and checks_packing and rlhf_type not in padding_free_types:
        message, sets = f"rlhf_type {rlhf_type} with {field}", {"packing": "off"}
        yield from settings.setting_problem("refuses", message, constraints.PACKING_OF_RLHF, field, sets=sets)
    if settings.sequence_parallel_size > 1 and rlhf_type not in ms_swift.SEQUENCE_PARALLEL_TYPES:
        yield from settings.setting_problem(
            "refuses",
            f"rlhf_type {rlhf_type} with sequence_parallel_size {settings.sequence_parallel_size}",
            constraints.SEQUENCE_PARALLEL_OF_RLHF,
            "sequence_parallel_size",
            sets={"ring_size": "1"},
        )
    if rlhf_type == "grpo" and settings.is_on("use_liger_kernel"):
        for is_on, name, sets in (
            (settings.sequence_parallel_size > 1, "sequence_parallel_size", {"ring_size": "1"}),
            (settings.packed, field, {"packing": "off"}),
        ):
            if is_on:
                yield from settings.setting_problem(
                    "refuses",
                    f"GRPO with Liger's loss and {name}",
                    constraints.LIGER_OF_GRPO,
                    name,
                    sets=sets,
                )


def derived_ring_refused(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check for sizes that do not divide the key/value heads: the rest becomes a ring, which has more conditions."""
    if settings.zigzag_ring_size < 2 or settings.model is None:
        return
    size, fields = f"sequence_parallel_size {settings.sequence_parallel_size}", ("sequence_parallel_size",)
    effect = f"{size} becomes Ulysses over {settings.ulysses_size} and a ring over {settings.zigzag_ring_size} ranks"
    sets_ulysses = {"ring_size": str(settings.ulysses_size)}
    is_recurrent = "linear_attention" in settings.model.layer_types
    is_qwen3_5 = is_recurrent and settings.model.model_type.startswith("qwen3_5")
    if is_qwen3_5 and settings.is_at_least(ms_swift.QWEN3_5_SEQUENCE_PARALLEL_SINCE):
        yield from settings.setting_problem(
            "refuses",
            f"{effect}, which Qwen3.5's recurrent layers refuse",
            constraints.QWEN3_5_DERIVED_RING,
            *fields,
            sets=sets_ulysses,
        )
        return
    if not settings.packed:
        yield from settings.setting_problem(
            "refuses",
            f"{effect}, which requires padding_free",
            constraints.RING_WITHOUT_PACKING,
            *fields,
            sets=sets_ulysses,
        )
    elif settings.implementation == "sdpa":
        yield from settings.setting_problem(
            "refuses",
            f"{effect}, which sdpa does not support",
            constraints.RING_OF_SDPA,
            "attn_impl",
            *fields,
            sets={"attn_implementation": "flash_attention_2"},
        )
    if isinstance(settings.model.sliding_window, Known):
        window = settings.model.sliding_window.value
        yield from settings.setting_problem(
            "refuses",
            f"{effect}, which gets the model's window {window} as a number: TypeError",
            constraints.RING_WITH_WINDOW,
            *fields,
            sets=sets_ulysses,
        )


def indivisible_heads(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check the head count from 3.4.1 to 3.8, which have only Ulysses: the ranks must divide the heads."""
    size = settings.sequence_parallel_size
    if size < 2 or settings.uses_ring_variable or settings.uses_xtuner:
        return
    heads = settings.model.num_heads if settings.model is not None else None
    if isinstance(heads, Known) and heads.value % size:
        message = f"sequence_parallel_size {size} does not divide {heads.value} heads"
        ranges = constraints.INDIVISIBLE_HEADS
        divisor = largest_divisor(heads.value, size)
        yield from settings.setting_problem(
            "refuses", message, ranges, "sequence_parallel_size", sets={"ring_size": str(divisor)}
        )


def left_padding_refused(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check for sequence parallelism with rows padded on the left."""
    is_left = settings.get("padding_side") == "left" and not settings.packed
    if settings.sequence_parallel_size > 1 and is_left:
        yield from settings.setting_problem(
            "refuses",
            f"padding_side left with sequence_parallel_size {settings.sequence_parallel_size}",
            constraints.LEFT_PADDING_OF_ROWS if settings.rows > 1 else constraints.LEFT_PADDING,
            "padding_side",
            sets={"padding_side": "right"},
        )


def packing_with_lazy_tokenize(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check for packing with lazy_tokenize: packing reads all documents before the first step."""
    if settings.is_on("packing") and settings.is_on("lazy_tokenize"):
        yield from settings.setting_problem(
            "refuses",
            "packing with lazy_tokenize",
            constraints.LAZY_PACKING,
            "lazy_tokenize",
            sets={"lazy_tokenize": "false"},
        )


def recurrent_layers_leak(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check recurrent layers: Qwen3.5's are patched, and need flash-linear-attention; Qwen3-Next's are not patched."""
    size = settings.sequence_parallel_size
    if settings.model is None or "linear_attention" not in settings.model.layer_types:
        return
    if not settings.packed and size < 2:
        return
    model_type = settings.model.model_type
    fields = (_packing_field(settings) if settings.packed else "sequence_parallel_size", "packing")
    sets = {**({"packing": "off"} if settings.packed else {}), **({"ring_size": "1"} if size > 1 else {})}
    if model_type.startswith("qwen3_5") and settings.is_at_least(ms_swift.QWEN3_5_SEQUENCE_PARALLEL_SINCE):
        snapshot = settings.snapshot
        package = (
            snapshot.package("flash-linear-attention") if snapshot is not None and snapshot.distributions else None
        )
        if settings.packed and size < 2 and _qwen3_5_drops_borders(settings):
            yield from settings.setting_problem(
                "wrong",
                f"{_packing_field(settings)} with {model_type}: recurrent state leaks from one document into the next",
                constraints.QWEN3_5_PACKED,
                *fields,
                sets=sets,
            )
        elif settings.packed and isinstance(package, Absent):
            yield from settings.setting_problem(
                "refuses",
                f"{_packing_field(settings)} with {model_type}: flash-linear-attention is not installed",
                constraints.LINEAR_ATTENTION_MISSING,
                *fields,
                advice="pip install flash-linear-attention",
            )
        return
    cause = _packing_field(settings) if settings.packed else f"sequence_parallel_size {size}"
    yield from settings.setting_problem(
        "wrong",
        f"{cause} with {model_type}: recurrent state leaks from one document or shard into the next",
        constraints.RECURRENT_LAYERS,
        *fields,
        sets=sets,
    )


def _qwen3_5_drops_borders(settings: MsSwiftReading) -> bool:
    """Return whether the layers of Qwen3.5 are called without document boundaries, by ms-swift or by transformers."""
    version = settings.snapshot.version("transformers") if settings.snapshot is not None else None
    is_old = isinstance(version, Known) and version.value < Version(RECURRENT_VARLEN["qwen3_5"])
    return is_old or not settings.is_at_least(ms_swift.QWEN3_5_PACKED_SINCE)


def vision_packing_needs_old_transformers(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check packing of Qwen's vision models: ms-swift patched them through a name that transformers 4.53 removed."""
    model_type = settings.model.model_type if settings.model is not None else ""
    version = settings.snapshot.version("transformers") if settings.snapshot is not None else None
    is_new = isinstance(version, Known) and version.value >= Version(FLASH_NAME_GONE_SINCE)
    if not settings.packed or model_type not in PATCHED_VISION_MODELS or not is_new:
        return
    yield from settings.setting_problem(
        "refuses",
        f"{_packing_field(settings)} with {model_type} under transformers {FLASH_NAME_GONE_SINCE} or newer: "
        f"module 'transformers.models.{model_type}.modeling_{model_type}' has no attribute '_flash_attention_forward'",
        constraints.VISION_PACKING_PATCH,
        "packing",
        "padding_free",
        installs=("transformers>=4.51,<4.53",),
        advice="or ms-swift>=3.8.0 with transformers>=4.54,<4.57, in which transformers separates text "
        "positions itself",
    )


def sequence_parallel_needs_newer_transformers(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check ms-swift's own Ulysses: it imports a name of transformers 4.52, while METADATA allows older releases."""
    version = settings.snapshot.version("transformers") if settings.snapshot is not None else None
    is_old = isinstance(version, Known) and version.value < Version(FLASH_CHECK_SINCE)
    if settings.sequence_parallel_size < 2 or settings.uses_xtuner or not is_old:
        return
    message = (
        f"sequence_parallel_size {settings.sequence_parallel_size} under transformers before {FLASH_CHECK_SINCE}: "
        "cannot import name 'is_flash_attn_available' from 'transformers.modeling_flash_attention_utils'"
    )
    required = read_requirements("ms_swift", settings.version)
    upper = next((line.removeprefix("transformers") for line in required if line.startswith("transformers")), "")
    yield from settings.setting_problem(
        "refuses",
        message,
        constraints.SEQUENCE_PARALLEL_IMPORT,
        "sequence_parallel_size",
        installs=(f"transformers>={FLASH_CHECK_SINCE}{',' + upper if upper else ''}",),
    )


def rlhf_without_sequence_parallel(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check for preference learning with sequence parallelism before 3.4.1, when xtuner's did not support it."""
    if settings.verb == "rlhf" and settings.sequence_parallel_size > 1:
        yield from settings.setting_problem(
            "refuses",
            f"sequence_parallel_size {settings.sequence_parallel_size} with {settings.trainer}",
            constraints.RLHF_SEQUENCE_PARALLEL,
            "sequence_parallel_size",
            sets={"ring_size": "1"},
        )


def reference_without_adapter(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check for a trained LoRA that goes on against the model without it, because `ref_adapters` does not name it."""
    is_full = "full" in (settings.get("tuner_type"), settings.get("train_type"))
    others = ("ref_adapters", "ref_model", "resume_from_checkpoint")
    is_other = is_full or settings.trainer not in ("dpo", "kto", "grpo") or settings.has_any(*others)
    if settings.verb == "rlhf" and settings.get_text("adapters") and settings.get("beta") != 0 and not is_other:
        yield from settings.setting_problem(
            "replaces",
            f"{settings.trainer} of a trained adapter: the reference is the model without it",
            constraints.REFERENCE_WITHOUT_ADAPTER,
            "adapters",
            advice="set ref_adapters (since 3.8.0) to the same checkpoint",
            mild=True,
        )


def deepspeed_over_one_process(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check for DeepSpeed in one process with several GPUs, over which ms-swift then spreads the model (`is_mp`)."""
    names = ("NPROC_PER_NODE", "NNODES", "SWIFT_SINGLE_DEVICE_MODE")
    gpus = len(re.findall(r"\d+", settings.environ.get("CUDA_VISIBLE_DEVICES", "")))
    is_alone = find_command(settings.launch) == "swift" and settings.environ.keys().isdisjoint(names)
    if is_alone and not settings.launch.launchers and gpus > 1 and settings.get_text("deepspeed"):
        yield from settings.setting_problem(
            "refuses",
            f"one process with {gpus} GPUs and deepspeed: ValueError",
            constraints.DEEPSPEED_OVER_GPUS,
            "deepspeed",
            advice=f"NPROC_PER_NODE={gpus}",
        )


def misplaced_config_file(settings: MsSwiftReading) -> Iterator[SettingProblem]:
    """Check for `--config file.yaml`: accepted from 3.10 to 4.0; since 4.1 the file is the first argument."""
    setting = next((setting for setting in settings.unknown if setting.name == "--config"), None)
    if setting is None:
        return
    first, removed = ms_swift.CONFIG_OPTION_RANGE
    first_argument, not_yet = (
        find_constraint(ranges, settings.version)
        for ranges in (constraints.CONFIG_IS_FIRST_ARGUMENT, constraints.NO_CONFIG_OPTION_YET)
    )
    if first_argument is not None:
        command = f"swift {settings.verb} {setting.value}"
        yield SettingProblem(
            "refuses",
            f"--config is not an option since {removed}: the file is the first argument, {command}",
            (first_argument.evidence,),
            setting.location,
            advice=f"{command} …",
        )
    elif not_yet is not None:
        yield SettingProblem(
            "refuses", f"--config is not an option before {first}", (not_yet.evidence,), setting.location
        )


BEHAVIOURS: tuple[Callable[[MsSwiftReading], Iterator[SettingProblem]], ...] = (
    options_without_value,
    packing_without_flash,
    unsupported_rlhf_types,
    derived_ring_refused,
    indivisible_heads,
    left_padding_refused,
    packing_with_lazy_tokenize,
    recurrent_layers_leak,
    vision_packing_needs_old_transformers,
    sequence_parallel_needs_newer_transformers,
    rlhf_without_sequence_parallel,
    reference_without_adapter,
    deepspeed_over_one_process,
    misplaced_config_file,
)
