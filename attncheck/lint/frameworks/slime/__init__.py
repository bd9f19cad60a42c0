"""slime (THUDM/slime) and its fork miles (radixark/miles): `python3 train.py --actor-num-gpus-per-node 8 …`, on Ray.

Its argument parser extends Megatron's. A row is always several documents joined with cu_seqlens (v0.3.1
slime/backends/megatron_utils/data.py:94-113), in bfloat16 unless `--fp16` is set (megatron_utils/arguments.py:151;
v0.1.0:11). Releases v0.2.0 to v0.2.2 and miles also train transformers' models with FSDP (`--train-backend fsdp`,
fsdp_utils/arguments.py: flash_attention_2 by default). Unknown names are dropped silently (`ignore_unknown_args=True`),
so no name is refused.
"""

import shlex
from collections.abc import Mapping

from attncheck.lint.fields import (
    COMMAND,
    Absent,
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
from attncheck.lint.frameworks.megatron.options import MegatronReading, parse_launch_options
from attncheck.lint.frameworks.slime.problems import find_problems

TELLTALE_OPTIONS = frozenset(  # two identify slime; from v0.1.0 to v0.3.1 slime/utils/arguments.py and miles
    {
        *("--actor-num-nodes", "--actor-num-gpus-per-node", "--rollout-num-gpus", "--rollout-num-gpus-per-engine"),
        *("--rollout-batch-size", "--n-samples-per-prompt", "--num-rollout", "--hf-checkpoint", "--prompt-data"),
    }
)
ESTIMATORS = ("grpo", "gspo", "cispo", "ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
KEY_NAMES: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("attention-backend", "transformer-impl", "attn-implementation"),
    "packing": ("use-dynamic-batch-size", "qkv-format"),
    "precision": ("fp16", "bf16"),
    "ring_size": ("context-parallel-size",),
    "tensor_parallel": ("tensor-model-parallel-size",),
    "deterministic": ("deterministic-mode",),
    "gradient_checkpointing": ("recompute-granularity", "recompute-activations", "gradient-checkpointing"),
    "max_length": ("max-tokens-per-gpu", "rollout-max-response-len"),
    "batch": ("micro-batch-size",),
    "global_batch": ("global-batch-size",),
}
WRITTEN_KEYS: Mapping[str, str] = {
    "ring_size": "context-parallel-size",
    "tensor_parallel": "tensor-model-parallel-size",
    "batch": "micro-batch-size",
    "global_batch": "global-batch-size",
    "lr": "lr",
}
DEFAULT_GPUS = {"actor-num-nodes": 1, "actor-num-gpus-per-node": 8}  # v0.3.1 slime/utils/arguments.py:39-42


def detect_trainer(launch: Launch) -> str:
    """Return what a launch of slime trains ("grpo", "sft"); "" for any other launch."""
    words = launch.words
    if not words or not words[0].text.endswith(".py"):
        return ""
    if len({word.text.partition("=")[0] for word in words[1:]} & TELLTALE_OPTIONS) < 2:
        return ""
    options = parse_launch_options(launch)
    if options.get_text("loss-type") == "sft_loss":
        return "sft"
    estimator = options.get_text("advantage-estimator")
    return estimator if estimator in ESTIMATORS else "grpo"


def read_model_name(launch: Launch) -> str:
    """Return the model that the launch names; "" if it names none."""
    return parse_launch_options(launch).get_text("hf-checkpoint")


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as one release reads it."""
    options = parse_launch_options(launch)
    is_fsdp = options.get_text("train-backend") == "fsdp"
    trainer, world_size = detect_trainer(launch), _count_gpus(options)
    return Job(
        framework="slime",
        version=version,
        trainer=trainer,
        plan=_build_plan(options, is_fsdp),
        model=read_model_name(launch),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name or COMMAND),
        settings=options.all_settings,
        problems=tuple(find_problems(options, version, world_size)),
        world_size=world_size,
        gpus=world_size if options.is_on("colocate") else Absent("the launch does not state how many nodes Ray has"),
        nodes=options.get_int("actor-num-nodes", 1),
        tensor_parallel=options.get_int("tensor-model-parallel-size", 1),
        scheme="megatron" if (options.get_int("context-parallel-size", 1)) > 1 and not is_fsdp else "",
        reinforcement=trainer != "sft",
        locations={key: options.find_location(*names) for key, names in KEY_NAMES.items() if options.has_any(*names)},
        remarks=_format_remarks(options),
    )


def _count_gpus(options: MegatronReading) -> Fact[int]:
    """Return how many GPUs train."""
    count = 1
    for name, default in DEFAULT_GPUS.items():
        size = options.get_int(name) or (0 if options.has_any(name) else default)
        if not size:
            return Absent(f"--{name} is known only at run time")
        count *= size
    return Known(count)


def _build_plan(options: MegatronReading, is_fsdp: bool) -> Plan:
    own = "megatron_local" if options.is_local else "transformer_engine"
    is_padded = options.get_text("qkv-format") == "bshd"
    tokens = options.get_int("max-tokens-per-gpu") if options.is_on("use-dynamic-batch-size") else None
    return Plan(
        attn_implementation=(options.get_text("attn-implementation") or "flash_attention_2") if is_fsdp else own,
        packing="position_ids" if is_fsdp else "padding" if is_padded else "cu_seqlens",
        positions="running" if is_padded else "reset",
        precision="fp16" if options.is_on("fp16") else "bf16",
        batch=1 if tokens else options.get_int("micro-batch-size", 1),
        max_length=tokens or options.get_int("rollout-max-response-len") or 1024,
        gradient_checkpointing=options.has_any(*KEY_NAMES["gradient_checkpointing"]),
        deterministic=options.is_on("deterministic-mode"),
        ring_size=1 if is_fsdp else options.get_int("context-parallel-size", 1),
        environ=tuple(sorted(options.launch.environ.items())),
    )


def _format_remarks(options: MegatronReading) -> tuple[str, ...]:
    decisive = {name for names in KEY_NAMES.values() for name in names}
    remarks = [
        f"--{name} {setting.value}".strip() + ": its value is known only at run time"
        for name, setting in options.by_field.items()
        if name in decisive and not setting.known
    ]
    if options.has_any("custom-config-path"):
        remarks.append("--custom-config-path: its file replaces options, and was not read")
    return tuple(remarks)


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that set `sets`; none if one of them has no option."""
    options, changes = parse_launch_options(launch), Changes()
    for key, value in sets.items():
        name = key.removeprefix("--") if key.startswith("--") else WRITTEN_KEYS.get(key, "")
        if not name:
            return ()
        changes.set_field(options.by_field, name, value)
    return changes_to_edits(launch, changes, lambda name, value: f"--{name} {shlex.quote(value)}".removesuffix(" ''"))


FRAMEWORK = Framework(
    "slime",
    "slime",
    "0.3.1",
    detect_trainer,
    read_model_name,
    read,
    write,
    defer("lint.frameworks.slime.plan:format_plan"),
    cut=defer("lint.frameworks.slime.rehearsal:cut"),
)
