"""Reads ms-swift's `megatron sft`, `pt` and `rlhf`, which train with Megatron and its own attention.

Names are those of the wheels 3.3.0 to 4.6.0 (megatron/argument/megatron_args.py, in 4.x megatron/arguments/
megatron_args.py). Each also has Megatron-LM's options, with underscores. No table has these names: an unknown one is
reported only if the class itself was read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attncheck.lint.arguments import parse_options
from attncheck.lint.fields import Fact, Job, Launch, Plan, Precision, Reading, Setting, is_at_least
from attncheck.lint.frameworks.megatron.problems import find_undivided_sizes

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


@dataclass(frozen=True)
class MegatronReading(Reading):
    """The settings by field, without defaults."""

    by_field: Mapping[str, Setting]

    def is_on(self, name: str) -> bool:
        """Return whether a field is true; an option without a value is."""
        return self.has_any(name) and (not self.by_field[name].value or super().is_on(name))


def read_megatron_settings(launch: Launch, leading_words: int) -> MegatronReading:
    """Return the settings; the command's options override the file's keys."""
    options = parse_options(launch.words[leading_words:], lambda name: "many", launch.source)
    settings = {entry.name: entry for entry in launch.entries}
    return MegatronReading({**settings, **{option.name.lstrip("-").replace("-", "_"): option for option in options}})


def build_megatron_job(job: Job, launch: Launch, reading: MegatronReading, world_size: Fact[int]) -> Job:
    """Return the job with Megatron's sizes as far as they are read; its other arguments are not judged."""
    ranks = reading.get_int("context_parallel_size", 1)
    is_padding_free = reading.is_on("padding_free")
    if not reading.has_any("padding_free"):
        is_padding_free = is_at_least(job.version, PADDING_FREE_SINCE)
    plan = Plan(
        attn_implementation="transformer_engine",
        packing="cu_seqlens" if reading.is_on("packing") or is_padding_free else "padding",
        precision=_resolve_precision(reading),
        batch=reading.get_int("micro_batch_size", 1),
        accumulation=1,
        max_length=next((n for name in KEY_FIELDS["max_length"] if (n := reading.get_int(name))), 2048),
        deterministic=reading.is_on("deterministic_mode"),
        ring_size=ranks,
        environ=tuple(sorted(launch.environ.items())),
    )
    return replace(
        job,
        plan=plan,
        settings=tuple(reading.by_field.values()),
        problems=tuple(find_undivided_sizes(reading, SIZES, world_size)),
        world_size=world_size,
        gpus=world_size,
        tensor_parallel=reading.get_int("tensor_model_parallel_size", 1),
        scheme="megatron" if ranks > 1 else "",
        locations={key: reading.find_location(*names) for key, names in KEY_FIELDS.items() if reading.has_any(*names)},
    )


def _resolve_precision(reading: MegatronReading) -> Precision:
    if reading.is_on("fp16") or reading.get_text("torch_dtype") == "float16":
        return "fp16"
    return "fp32" if reading.get_text("torch_dtype") == "float32" else "bf16"
