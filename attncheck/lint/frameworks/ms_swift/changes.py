"""Settings of an ms-swift launch, written in the names of one release."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from attncheck.core.job import DROP, Job
from attncheck.core.launch import Edit, Launch
from attncheck.lint.fields.edits import Changes, edits
from attncheck.lint.fields.written import number, switched
from attncheck.lint.frameworks.ms_swift import tables as ms_swift
from attncheck.lint.frameworks.ms_swift.values import Values, field_name, values

Wanted = Iterator[tuple[str, str | None]]
FIELDS: Mapping[str, str] = {
    "attn_implementation": "attn_impl",
    "ring_size": "sequence_parallel_size",
    "tensor_parallel": "deepspeed_autotp_size",
    "batch": "per_device_train_batch_size",
    "padding_side": "padding_side",
}
SWITCHED: Mapping[str, str] = {
    "deterministic": "full_determinism",
    "liger": "use_liger_kernel",
    "gradient_checkpointing": "gradient_checkpointing",
}
PRECISIONS: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def changes(launch: Launch, kind: str, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename what the job's release does not know, and set `sets`."""
    if kind not in ms_swift.TRAINERS:
        return ()
    found = values(launch, kind, job.version)
    made = Changes()
    _rename(made, found, job)
    for key, value in sets.items():
        for name, text in _fields(found, job, key, value):
            made.set(found.given, name, text)
    return edits(launch, made, lambda name, value: f"--{name} {shlex.quote(value)}")


def _rename(made: Changes, found: Values, job: Job) -> None:
    here = ms_swift.names(job.version, found.kind == "rlhf")
    places = {(each.name, each.location) for each in job.unknown_settings if each.now}
    for setting in found.strange:
        name = field_name(setting.name, here)
        new = ms_swift.RENAMED.get(name, "")
        if (setting.name, setting.location) in places and new in here and new not in found.given:
            made.settings[setting] = (new, setting.value)


def _fields(found: Values, job: Job, key: str, value: str) -> Wanted:
    """Yield the fields of the release that a key sets, None for those to take out."""
    text = None if value == DROP else value
    if key in FIELDS:
        yield FIELDS[key], text
    elif key in SWITCHED:
        yield SWITCHED[key], text and switched(value)
    elif key == "packing":
        yield from _packing(found, value)
    elif key == "precision" and value in PRECISIONS:
        yield "torch_dtype", PRECISIONS[value]
        yield from ((name, str(value == name).lower()) for name in ("bf16", "fp16") if name in found.given)
    elif key == "max_length":
        yield "packing_length" if "packing_length" in found.given else "max_length", text
    elif key == "global_batch":
        yield from _accumulation(found, job, value)
    elif key not in ("heads_k_stride", "precision"):
        yield key.removeprefix("--").replace("-", "_"), text


def _packing(found: Values, value: str) -> Wanted:
    """Yield packing; to turn it off padding_free, which joins rows too, goes with it."""
    if value == "on":
        yield "packing", "true"
        return
    written = [name for name in ("packing", "padding_free") if name in found.given]
    yield from ((name, "false") for name in written)
    if "packing_length" in found.given:
        yield "packing_length", None


def _accumulation(found: Values, job: Job, value: str) -> Wanted:
    """Yield the accumulation that makes a step of `value` rows, where that comes out even."""
    ranks = getattr(job.world_size, "value", 1) // found.size
    rows = found.number("per_device_train_batch_size") * max(ranks, 1)
    whole = number(value, 0)
    if whole and whole % rows == 0:
        yield "gradient_accumulation_steps", str(whole // rows)
