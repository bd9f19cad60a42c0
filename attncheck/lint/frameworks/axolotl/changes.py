"""Edits that write settings into an axolotl launch, in the names of one release."""

from collections.abc import Iterator, Mapping

from attncheck.lint.fields import (
    DROP,
    Changes,
    Edit,
    Job,
    Launch,
    OptionFormatter,
    changes_to_edits,
    read_fields,
    switch_to_bool,
    to_int,
)
from attncheck.lint.frameworks.axolotl import tables as axolotl
from attncheck.lint.frameworks.axolotl.values import AxolotlReading, read_settings

FieldValues = Iterator[tuple[str, str | None]]  # a field and its value; None removes it
VALUE_FIELDS: Mapping[str, str] = {
    "heads_k_stride": "heads_k_stride",
    "tensor_parallel": "tensor_parallel_size",
    "max_length": "sequence_len",
    "batch": "micro_batch_size",
}
SWITCH_FIELDS: Mapping[str, str] = {"packing": "sample_packing", "gradient_checkpointing": "gradient_checkpointing"}
PRECISION_FIELDS: Mapping[str, Mapping[str, str]] = {
    "bf16": {"bf16": "true"},
    "fp16": {"bf16": "false", "fp16": "true"},
    "fp32": {"bf16": "false", "fp16": "false"},
}


def make_edits(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename the settings unknown to the job's release, and set `sets`."""
    settings = read_settings(launch, job.version)
    changes = Changes()
    _rename_settings(changes, settings, job)
    for key, value in sets.items():
        if key == "attn_implementation":
            _set_implementation(changes, settings, value)
            continue
        for name, text in _translate_key(settings, job, key, value):
            changes.set_field(settings.by_field, name, text)
    return changes_to_edits(launch, changes, _make_option_formatter(launch, job.version))


def _rename_settings(changes: Changes, settings: AxolotlReading, job: Job) -> None:
    known_names = read_fields("axolotl", "names", job.version)
    refused = {(unknown.name, unknown.location): unknown for unknown in job.unknown_settings}
    for name, setting in settings.by_field.items():
        unknown = refused.get((setting.name, setting.location))
        if unknown is None:
            continue
        if not (unknown.now or unknown.near or unknown.dropped):
            changes.settings[setting] = None
        new_name = next(iter(axolotl.find_new_names(name, setting.value, known_names)), "")
        field_name, _, value = new_name.partition(": ")
        if field_name and field_name not in settings.by_field:
            changes.settings[setting] = (field_name, value)


def _set_implementation(changes: Changes, settings: AxolotlReading, value: str) -> None:
    """Set an implementation in the release's form: `attn_implementation`, or a boolean before 0.17."""
    text = None if value == DROP else value
    present = [name for name in ("attn_implementation", *axolotl.FLAG_IMPLEMENTATIONS) if name in settings.by_field]
    by_flags = not settings.is_at_least(axolotl.FLAGS_DEPRECATED_SINCE)
    flag = axolotl.IMPLEMENTATION_FLAGS.get(text or "") if by_flags else None
    name, new_value = (flag, "true") if flag else ("attn_implementation", text)
    if by_flags and flag is None and text is not None and not settings.is_at_least(axolotl.ATTN_IMPLEMENTATION_SINCE):
        return  # the release cannot name it
    kept = name if name in present else next(iter(present), "")
    for field in present:
        keep = field == kept and new_value is not None
        changes.settings[settings.by_field[field]] = (name, new_value or "") if keep else None
    if not present and new_value is not None:
        changes.added[name] = new_value


def _translate_key(settings: AxolotlReading, job: Job, key: str, value: str) -> FieldValues:
    """Yield the fields of the release that a key sets, with their values; None removes a field."""
    text = None if value == DROP else value
    if key in VALUE_FIELDS:
        yield VALUE_FIELDS[key], text
    elif key in SWITCH_FIELDS:
        yield SWITCH_FIELDS[key], text and switch_to_bool(value)
        if key == "packing" and value == "off" and "eval_sample_packing" in settings.by_field:
            yield "eval_sample_packing", None
    elif key == "precision":
        yield from _translate_precision(settings, value)
    elif key == "ring_size":
        yield from _translate_ring_size(settings, text)
    elif key == "global_batch":
        yield from _translate_global_batch(settings, job, value)
    elif key == "liger" and value == "off":
        yield from (
            (name, "false") for name in settings.by_field if name.startswith("liger_") and settings.parsed_values[name]
        )
    elif key not in ("liger", "deterministic", "padding_side"):
        yield key.removeprefix("--").replace("-", "_"), text


def _translate_precision(settings: AxolotlReading, value: str) -> FieldValues:
    for name, text in PRECISION_FIELDS.get(value, {}).items():
        if text == "true" or name in settings.by_field or name == "bf16":
            yield name, text
    if value in PRECISION_FIELDS:
        removed = ("bfloat16", "float16", *(("fp16",) if value == "bf16" else ()))
        yield from ((name, None) for name in removed if name in settings.by_field)


def _translate_ring_size(settings: AxolotlReading, text: str | None) -> FieldValues:
    is_new = settings.is_at_least(axolotl.CONTEXT_PARALLEL_SINCE)
    name, other = ("context_parallel_size", "sequence_parallel_degree")[:: 1 if is_new else -1]
    if name in settings.by_field or other not in settings.by_field:
        yield name, text
        yield from ((field, None) for field in (other,) if field in settings.by_field)
    else:
        yield other, None
        yield name, text


def _translate_global_batch(settings: AxolotlReading, job: Job, value: str) -> FieldValues:
    """Yield the accumulation that makes a step of `value` rows, if it divides evenly."""
    ranks = getattr(job.world_size, "value", 1) // (settings.ring_size * settings.get_int("tensor_parallel_size"))
    rows = settings.get_int("micro_batch_size") * max(ranks, 1)
    global_batch = to_int(value, 0)
    if global_batch and global_batch % rows == 0:
        yield "gradient_accumulation_steps", str(global_batch // rows)


def _make_option_formatter(launch: Launch, version: str) -> OptionFormatter:
    """Return a formatter of options: `axolotl train` has switches; the module's options all take a value."""
    known_fields = read_fields("axolotl", "names", version)
    is_click = bool(launch.words) and launch.words[0].text == "axolotl"

    def format_option(name: str, value: str) -> str:
        option = name.replace("_", "-")
        if is_click and known_fields.get(name, ("",))[0] == "bool" and value in ("true", "false"):
            return f"--{option}" if value == "true" else f"--no-{option}"
        return f"--{option} {value}" if is_click else f"--{name}={value}"

    return format_option
