"""Edits that write settings into an ms-swift launch, in the names of one release."""

import shlex
from collections.abc import Iterator, Mapping

from attncheck.lint.fields import DROP, Changes, Edit, Job, Launch, changes_to_edits, switch_to_bool, to_int
from attncheck.lint.frameworks.ms_swift import tables as ms_swift
from attncheck.lint.frameworks.ms_swift.values import MsSwiftReading, read_settings

FieldValues = Iterator[tuple[str, str | None]]  # a field and its value; None removes it
VALUE_FIELDS: Mapping[str, str] = {
    "attn_implementation": "attn_impl",
    "ring_size": "sequence_parallel_size",
    "tensor_parallel": "deepspeed_autotp_size",
    "batch": "per_device_train_batch_size",
    "padding_side": "padding_side",
}
SWITCH_FIELDS: Mapping[str, str] = {
    "deterministic": "full_determinism",
    "liger": "use_liger_kernel",
    "gradient_checkpointing": "gradient_checkpointing",
}
PRECISION_DTYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def make_edits(launch: Launch, verb: str, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename the settings unknown to the job's release, and set `sets`."""
    if verb not in ms_swift.VERBS:
        return ()
    settings = read_settings(launch, verb, job.version)
    changes = Changes()
    _rename_settings(changes, settings, job)
    for key, value in sets.items():
        for name, text in _translate_key(settings, job, key, value):
            for release_name, release_text in _to_release(settings, name, text):
                changes.set_field(settings.by_field, release_name, release_text)
    return changes_to_edits(launch, changes, lambda name, value: f"--{name} {shlex.quote(value)}")


def _rename_settings(changes: Changes, settings: MsSwiftReading, job: Job) -> None:
    """Give each setting its new name, and remove those that the release has under none.

    A setting is left unchanged if the launch also sets the new name.
    """
    refused = {(unknown.name, unknown.location): unknown for unknown in job.unknown_settings}
    for setting in settings.unknown:
        unknown = refused.get((setting.name, setting.location))
        if unknown is not None and not unknown.now and not unknown.near:
            changes.settings[setting] = None
    for setting, (name, value) in settings.renamed.items():
        if (setting.name, setting.location) in refused:
            is_same = not setting.known or value == (setting.value or value)
            if settings.by_field.get(name) is setting:
                changes.settings[setting] = (name, setting.value if is_same else value)


def _translate_key(settings: MsSwiftReading, job: Job, key: str, value: str) -> FieldValues:
    """Yield the fields of the release that a key sets, with their values; None removes a field."""
    text = None if value == DROP else value
    if key in VALUE_FIELDS:
        yield VALUE_FIELDS[key], text
    elif key in SWITCH_FIELDS:
        yield SWITCH_FIELDS[key], text and switch_to_bool(value)
    elif key == "packing":
        yield from _translate_packing(settings, value)
    elif key == "precision" and value in PRECISION_DTYPES:
        yield "torch_dtype", PRECISION_DTYPES[value]
        yield from ((name, str(value == name).lower()) for name in ("bf16", "fp16") if name in settings.by_field)
    elif key == "max_length":
        yield "packing_length" if "packing_length" in settings.by_field else "max_length", text
    elif key == "global_batch":
        yield from _translate_global_batch(settings, job, value)
    elif key not in ("heads_k_stride", "precision"):
        yield key.removeprefix("--").replace("-", "_"), text


def _to_release(settings: MsSwiftReading, name: str, text: str | None) -> FieldValues:
    """Yield a field of the newest release under this release's name; nothing if it has none."""
    is_flash = text in ms_swift.FLASH_IMPLEMENTATIONS
    if not settings.is_at_least(ms_swift.HUGGING_FACE_SINCE):
        if name == "attn_impl" and text is not None:
            text = str(is_flash).lower()
        elif name == "torch_dtype":
            text = next((short for short, dtype in PRECISION_DTYPES.items() if dtype == text), text)
        name = ms_swift.OLD_NAMES.get(name, name)
    elif name == "attn_impl" and is_flash and not settings.is_at_least(ms_swift.FLASH_NAMES_SINCE):
        text = "flash_attn"
    if name in ms_swift.read_option_rows(settings.version, settings.verb == "rlhf"):
        yield name, text


def _translate_packing(settings: MsSwiftReading, value: str) -> FieldValues:
    """Yield packing; if it is turned off, padding_free, which joins rows too, is turned off with it."""
    if value == "on":
        yield "packing", "true"
        return
    present = [name for name in ("packing", "padding_free") if name in settings.by_field]
    yield from ((name, "false") for name in present)
    if "packing_length" in settings.by_field:
        yield "packing_length", None


def _translate_global_batch(settings: MsSwiftReading, job: Job, value: str) -> FieldValues:
    """Yield the accumulation that makes a step of `value` rows, if it divides evenly."""
    ranks = getattr(job.world_size, "value", 1) // settings.sequence_parallel_size
    rows = settings.rows * max(ranks, 1)
    global_batch = to_int(value, 0)
    if global_batch and global_batch % rows == 0:
        yield "gradient_accumulation_steps", str(global_batch // rows)
