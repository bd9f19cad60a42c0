"""Reads ms-swift's `megatron sft`, `pt` and `rlhf`, which train with Megatron and its own attention.

Names are those of the wheels 3.3.0 to 4.6.0 (megatron/argument/megatron_args.py, in 4.x megatron/arguments/
megatron_args.py). Each also has Megatron-LM's options, with underscores. No name is reported as unknown, because
Megatron's options depend on the installed Megatron.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from attncheck.lint.arguments import parse_options
from attncheck.lint.fields import (
    Fact,
    Job,
    Known,
    Launch,
    Plan,
    Precision,
    Setting,
    SettingProblem,
    SourceLocation,
    is_at_least,
    is_true,
    parse_value,
    to_int,
)

PADDING_FREE_SINCE = "3.7.0"  # megatron/argument/megatron_args.py:80, on by default
SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
KEY_FIELDS = {
    "attn_implementation": ("attention_backend", "attn_impl"),
    "packing": ("packing", "padding_free"),
    "precision": ("torch_dtype", "bf16", "fp16"),
    "ring_size": ("context_parallel_size",),
    "tensor_parallel": ("tensor_model_parallel_size",),
    "deterministic": ("deterministic_mode",),
    "max_length": ("packing_length", "max_length", "seq_length"),
    "batch": ("micro_batch_size",),
    "global_batch": ("global_batch_size",),
}
Settings = Mapping[str, Setting]


def parse_megatron_settings(launch: Launch, leading_words: int) -> dict[str, Setting]:
    """Return the settings by field; the command's options override the file's keys."""
    options = parse_options(launch.words[leading_words:], lambda name: "many", launch.source)
    settings = {entry.name: entry for entry in launch.entries}
    return {**settings, **{option.name.lstrip("-").replace("-", "_"): option for option in options}}


def build_megatron_job(job: Job, launch: Launch, settings: Settings, world_size: Fact[int]) -> Job:
    """Return the job with Megatron's sizes as far as they are read; its other arguments are not judged."""
    ranks = _get_int(settings, "context_parallel_size", 1)
    written = {key: [settings[name] for name in names if name in settings] for key, names in KEY_FIELDS.items()}
    is_packed = _is_on(settings, "packing") or (
        _is_on(settings, "padding_free") if "padding_free" in settings else is_at_least(job.version, PADDING_FREE_SINCE)
    )
    plan = Plan(
        attn_implementation="transformer_engine",
        packing="cu_seqlens" if is_packed else "padding",
        precision=_resolve_precision(settings),
        batch=_get_int(settings, "micro_batch_size", 1),
        accumulation=1,
        max_length=next((n for name in KEY_FIELDS["max_length"] if (n := _get_int(settings, name, 0))), 2048),
        deterministic=_is_on(settings, "deterministic_mode"),
        ring_size=ranks,
        environ=tuple(sorted(launch.environ.items())),
    )
    return replace(
        job,
        plan=plan,
        settings=tuple(settings.values()),
        problems=tuple(_sizes_do_not_divide(settings, world_size)),
        world_size=world_size,
        gpus=world_size,
        tensor_parallel=_get_int(settings, "tensor_model_parallel_size", 1),
        scheme="megatron" if ranks > 1 else "",
        locations={key: settings_of_key[0].location for key, settings_of_key in written.items() if settings_of_key},
    )


def _sizes_do_not_divide(settings: Settings, world_size: Fact[int]) -> Iterator[SettingProblem]:
    """Check sizes with pipeline stages; without stages, the rule on sequence and tensor parallelism covers them."""
    tensor, stages, context = (_get_int(settings, name, 1) for name in SIZES)
    total = tensor * stages * context
    if not isinstance(world_size, Known) or world_size.value % total == 0 or world_size.value % (tensor * context):
        return
    message = f"tensor x pipeline x context parallel {tensor} x {stages} x {context} does not divide {world_size.value}"
    evidence = ("megatron-core 0.15.0 megatron/training/arguments.py:372: not divisible by total_model_size",)
    setting = settings.get("pipeline_model_parallel_size")
    yield SettingProblem("refuses", f"{message} processes", evidence, setting.location if setting else SourceLocation())


def _resolve_precision(settings: Settings) -> Precision:
    if _is_on(settings, "fp16") or _get_text(settings, "torch_dtype") == "float16":
        return "fp16"
    return "fp32" if _get_text(settings, "torch_dtype") == "float32" else "bf16"


def _get_text(settings: Settings, name: str) -> str:
    setting = settings.get(name)
    return setting.value.strip() if setting is not None and setting.known else ""


def _get_int(settings: Settings, name: str, fallback: int) -> int:
    number = to_int(parse_value(_get_text(settings, name)), fallback)
    return number if number > 0 else fallback


def _is_on(settings: Settings, name: str) -> bool:
    setting = settings.get(name)
    return setting is not None and (not setting.value or is_true(parse_value(_get_text(settings, name))))
