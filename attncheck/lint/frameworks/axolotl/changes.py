"""Settings of an axolotl launch, written in the names of one release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attncheck.core.job import DROP, Job
from attncheck.core.launch import Edit, Launch
from attncheck.lint.fields.edits import Changes, Spelled, edits
from attncheck.lint.fields.releases import fields
from attncheck.lint.fields.written import number, switched
from attncheck.lint.frameworks.axolotl import tables as axolotl
from attncheck.lint.frameworks.axolotl.values import Values, values

Wanted = Iterator[tuple[str, str | None]]
FIELDS: Mapping[str, str] = {
    "heads_k_stride": "heads_k_stride",
    "tensor_parallel": "tensor_parallel_size",
    "max_length": "sequence_len",
    "batch": "micro_batch_size",
}
SWITCHED: Mapping[str, str] = {"packing": "sample_packing", "gradient_checkpointing": "gradient_checkpointing"}
PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "bf16": {"bf16": "true"},
    "fp16": {"bf16": "false", "fp16": "true"},
    "fp32": {"bf16": "false", "fp16": "false"},
}


def changes(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename what the job's release does not know, and set `sets`."""
    found = values(launch, job.version)
    made = Changes()
    _rename(made, found, job)
    for key, value in sets.items():
        if key == "attn_implementation":
            _implementation(made, found, value)
            continue
        for name, text in _fields(found, job, key, value):
            made.set(found.given, name, text)
    return edits(launch, made, _spelled(launch, job.version))


def _rename(made: Changes, found: Values, job: Job) -> None:
    here = fields("axolotl", "names", job.version)
    places = {(each.name, each.location) for each in job.unknown_settings if each.now}
    for name, setting in found.given.items():
        if (setting.name, setting.location) not in places:
            continue
        new = next(iter(axolotl.now(job.version, name, setting.value, here)), "")
        field_name, _, value = new.partition(": ")
        if field_name and field_name not in found.given:
            made.settings[setting] = (field_name, value)


def _implementation(made: Changes, found: Values, value: str) -> None:
    """Name an implementation as the release does: by attn_implementation, before 0.17 by a boolean."""
    text = None if value == DROP else value
    written = [name for name in ("attn_implementation", *axolotl.BOOLEANS) if name in found.given]
    old = not found.reaches(axolotl.NAMED)
    flag = axolotl.SWITCHES.get(text or "") if old else None
    name, wanted = (flag, "true") if flag else ("attn_implementation", text)
    if old and flag is None and text is not None and not found.reaches(axolotl.PASSED_ON):
        return  # the release has no name for it
    kept = name if name in written else next(iter(written), "")
    for each in written:
        keep = each == kept and wanted is not None
        made.settings[found.given[each]] = (name, wanted or "") if keep else None
    if not written and wanted is not None:
        made.added[name] = wanted


def _fields(found: Values, job: Job, key: str, value: str) -> Wanted:
    """Yield the fields of the release that a key sets, None for those to take out."""
    text = None if value == DROP else value
    if key in FIELDS:
        yield FIELDS[key], text
    elif key in SWITCHED:
        yield SWITCHED[key], text and switched(value)
        if key == "packing" and value == "off" and "eval_sample_packing" in found.given:
            yield "eval_sample_packing", None
    elif key == "precision":
        yield from _precision(found, value)
    elif key == "ring_size":
        yield from _ring_size(found, text)
    elif key == "global_batch":
        yield from _accumulation(found, job, value)
    elif key == "liger" and value == "off":
        yield from ((name, "false") for name in found.given if name.startswith("liger_") and found.parsed[name])
    elif key not in ("liger", "deterministic", "padding_side"):
        yield key.removeprefix("--").replace("-", "_"), text


def _precision(found: Values, value: str) -> Wanted:
    for name, text in PRECISIONS.get(value, {}).items():
        if text == "true" or name in found.given or name == "bf16":
            yield name, text
    if value in PRECISIONS:
        unwanted = ("bfloat16", "float16", *(("fp16",) if value == "bf16" else ()))
        yield from ((name, None) for name in unwanted if name in found.given)


def _ring_size(found: Values, text: str | None) -> Wanted:
    new = found.reaches(axolotl.CONTEXT_PARALLEL)
    name, other = ("context_parallel_size", "sequence_parallel_degree")[:: 1 if new else -1]
    if name in found.given or other not in found.given:
        yield name, text
        yield from ((each, None) for each in (other,) if each in found.given)
    else:
        yield other, None
        yield name, text


def _accumulation(found: Values, job: Job, value: str) -> Wanted:
    """Yield the accumulation that makes a step of `value` rows, where that comes out even."""
    ranks = getattr(job.world_size, "value", 1) // (found.ring * found.number("tensor_parallel_size"))
    rows = found.number("micro_batch_size") * max(ranks, 1)
    whole = number(value, 0)
    if whole and whole % rows == 0:
        yield "gradient_accumulation_steps", str(whole // rows)


def _spelled(launch: Launch, version: str) -> Spelled:
    """Return how the command writes a field: `axolotl train` knows switches, the module takes values for all."""
    known = fields("axolotl", "names", version)
    click = bool(launch.words) and launch.words[0].text == "axolotl"

    def spelled(name: str, value: str) -> str:
        option = name.replace("_", "-")
        if click and known.get(name, ("",))[0] == "bool" and value in ("true", "false"):
            return f"--{option}" if value == "true" else f"--no-{option}"
        return f"--{option} {value}" if click else f"--{name}={value}"

    return spelled
