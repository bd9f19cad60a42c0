"""Megatron-LM's own command line: `torchrun … pretrain_gpt.py --tensor-model-parallel-size 8 …`, and its forks.

Megatron has its own attention, models and parallelism. Therefore nothing known of transformers, FSDP or DeepSpeed
applies, and the job is never read as theirs. It runs from a source tree, which most users have changed: known names
come only from the program next to the launch, and without it no name is judged. Its distribution is megatron-core. Its
requirements were read in the tags core_v0.6.0 to core_v0.19.0 (megatron/training/arguments.py, `validate_args`)."""

import shlex
from collections.abc import Mapping

from attncheck.lint.fields import (
    COMMAND,
    Changes,
    Edit,
    Fact,
    Job,
    Key,
    Known,
    Launch,
    Plan,
    Snapshot,
    SourceLocation,
    changes_to_edits,
)
from attncheck.lint.frameworks import Framework, defer
from attncheck.lint.frameworks.megatron.options import MegatronReading, is_own_launch, parse_launch_options
from attncheck.lint.frameworks.megatron.problems import find_problems

KEY_NAMES: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("attention-backend", "transformer-impl", "use-flash-attn"),
    "packing": ("reset-attention-mask", "reset-position-ids", "sft"),
    "precision": ("bf16", "fp16"),
    "ring_size": ("context-parallel-size",),
    "tensor_parallel": ("tensor-model-parallel-size",),
    "deterministic": ("deterministic-mode",),
    "gradient_checkpointing": ("recompute-granularity", "recompute-activations"),
    "max_length": ("seq-length",),
    "batch": ("micro-batch-size",),
    "global_batch": ("global-batch-size",),
}
WRITTEN_KEYS: Mapping[str, str] = {
    "ring_size": "context-parallel-size",
    "max_length": "seq-length",
    "batch": "micro-batch-size",
    "global_batch": "global-batch-size",
    "tensor_parallel": "tensor-model-parallel-size",
}


def detect_trainer(launch: Launch) -> str:
    """Return "pretrain" or "sft" for a launch of Megatron-LM, "" for any other."""
    if not is_own_launch(launch):
        return ""
    return "sft" if parse_launch_options(launch).is_on("sft") else "pretrain"


def read_model_name(launch: Launch) -> str:
    """Return "": Megatron builds its model from options."""
    return ""


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as one release of megatron-core reads it."""
    options = parse_launch_options(launch)
    world_size = _count_processes(launch)
    return Job(
        framework="megatron",
        version=version,
        trainer=detect_trainer(launch),
        plan=_build_plan(options, world_size),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name or COMMAND),
        settings=options.all_settings,
        problems=tuple(find_problems(options, version, world_size, snapshot)),
        world_size=world_size,
        gpus=world_size,
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else 1,
        tensor_parallel=options.get_int("tensor-model-parallel-size", 1),
        scheme="megatron" if (options.get_int("context-parallel-size", 1)) > 1 else "",
        locations={key: options.find_location(*names) for key, names in KEY_NAMES.items() if options.has_any(*names)},
        remarks=_format_remarks(options),
        unknown=("precision",) if options.is_open and not options.has_any(*KEY_NAMES["precision"]) else (),
    )


def _count_processes(launch: Launch) -> Fact[int]:
    if isinstance(launch.nodes, Known) and isinstance(launch.processes, Known):
        return Known(launch.nodes.value * launch.processes.value)
    return launch.processes if isinstance(launch.nodes, Known) else launch.nodes


def _build_plan(options: MegatronReading, world_size: Fact[int]) -> Plan:
    batch = options.get_int("micro-batch-size", 1)
    return Plan(
        attn_implementation="megatron_local" if options.is_local else "transformer_engine",
        packing="cu_seqlens" if options.is_on("sft") else "padding",
        positions="reset" if options.is_on("reset-position-ids") or options.is_on("sft") else "running",
        precision="bf16" if options.is_on("bf16") else "fp16" if options.is_on("fp16") else "fp32",
        batch=batch,
        accumulation=_count_accumulation_steps(options, world_size, batch),
        max_length=options.get_int("seq-length") or options.get_int("encoder-seq-length") or 1024,
        gradient_checkpointing=options.has_any("recompute-granularity") or options.is_on("recompute-activations"),
        deterministic=options.is_on("deterministic-mode"),
        ring_size=options.get_int("context-parallel-size", 1),
        environ=tuple(sorted(options.launch.environ.items())),
    )


def _count_accumulation_steps(options: MegatronReading, world_size: Fact[int], batch: int) -> int:
    """Return the number of micro batches in a step of the data-parallel group; 1 if not known."""
    rows = options.get_int("global-batch-size")
    groups = world_size.value // options.model_parallel_size if isinstance(world_size, Known) else 0
    return max(rows // (batch * groups), 1) if groups else 1


def _format_remarks(options: MegatronReading) -> tuple[str, ...]:
    decisive = {name for names in KEY_NAMES.values() for name in names} | {"pipeline-model-parallel-size"}
    remarks = [
        f"--{name} {setting.value}".strip() + ": its value is known only at run time"
        for name, setting in options.by_field.items()
        if name in decisive and not setting.known
    ]
    if options.is_open:
        remarks.append("some options are known only at run time, so a missing option may still be set")
    return tuple(remarks)


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that set `sets`; none if one of them has no option."""
    if not WRITTEN_KEYS.keys() >= sets.keys():
        return ()
    options, changes = parse_launch_options(launch), Changes()
    for key, value in sets.items():
        changes.set_field(options.by_field, WRITTEN_KEYS[key], value)
    return changes_to_edits(launch, changes, lambda name, value: f"--{name} {shlex.quote(value)}")


FRAMEWORK = Framework(
    "megatron",
    "megatron-core",
    "0.19.0",
    detect_trainer,
    read_model_name,
    read,
    write,
    defer("lint.frameworks.megatron.plan:format_plan"),
)
