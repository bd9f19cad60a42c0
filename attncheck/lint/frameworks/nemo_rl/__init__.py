"""NeMo-RL (NVIDIA-NeMo/RL): `uv run examples/run_grpo.py --config x.yaml policy.…=…`, or its YAML file alone.

A configuration inherits from others (`defaults:`), and Hydra-like overrides change it. The policy trains with DTensor
(a model from transformers or NeMo AutoModel) or with Megatron-core. The effects of settings were read in the tags
v0.3.0 to v0.7.0. With DTensor, packing uses flash_attention_2 and context parallelism uses SDPA, regardless of the
setting (v0.7.0 nemo_rl/models/automodel/setup.py:325-330).
"""

import re
import shlex
from collections.abc import Iterator, Mapping

from attncheck.lint.fields import (
    COMMAND,
    Absent,
    Changes,
    Edit,
    Fact,
    Job,
    Key,
    Launch,
    Packing,
    Plan,
    Precision,
    SettingProblem,
    Snapshot,
    SourceLocation,
    changes_to_edits,
    switch_to_bool,
)
from attncheck.lint.frameworks import Framework, defer
from attncheck.lint.frameworks.nemo_rl.problems import find_problems
from attncheck.lint.frameworks.nemo_rl.settings import NemoReading, parse_launch_settings
from attncheck.lint.idle_programs import ENDS_AT_ONCE
from attncheck.lint.programs.places import find_own_program

TRAINERS = ("grpo", "sft", "dpo", "rm", "ppo", "distillation")
BACKENDS = ("policy.dtensor_cfg.", "policy.megatron_cfg.", "cluster.gpus_per_node")
SCRIPT = re.compile(r"(?:^|[/.])run_(?:vlm_)?(" + "|".join(TRAINERS) + r")(?:_\w+)?(?:\.py)?$")
OWN_PLACE = re.compile(r"(?:^|[/{$])nemo[-_]rl", re.IGNORECASE)  # cd /opt/nemo-rl, "$NEMO_RL_DIR"
MODULE = re.compile(r"nemo_rl\.algorithms\.(" + "|".join(TRAINERS) + r")\b")
PRECISIONS: Mapping[str, Precision] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
KEY_NAMES: Mapping[Key, tuple[str, ...]] = {
    "packing": ("policy.sequence_packing.enabled", "policy.dynamic_batching.enabled"),
    "precision": ("policy.precision",),
    "ring_size": ("{backend}.context_parallel_size",),
    "tensor_parallel": ("{backend}.tensor_parallel_size", "{backend}.tensor_model_parallel_size"),
    "gradient_checkpointing": ("{backend}.activation_checkpointing",),
    "max_length": ("policy.max_total_sequence_length",),
    "batch": ("policy.train_micro_batch_size",),
    "global_batch": ("policy.train_global_batch_size",),
}


def detect_trainer(launch: Launch) -> str:
    """Return what a NeMo-RL launch trains ("grpo"); "" for any other launch."""
    names = parse_launch_settings(launch).by_field.keys()
    script = SCRIPT.search(launch.words[0].text) if launch.words else None
    is_policy = any(name.startswith("policy.") for name in names)
    is_whole = "policy.model_name" in names and any(name.startswith(BACKENDS) for name in names)
    modules = map(MODULE.match, (*(word.text for word in launch.words[:1]), *(launch.trainers or ())))
    trained = {module[1] for module in modules if module}  # the module that runs, or those that the program uses
    if len(trained) == 1:
        return trained.pop()
    places = (
        launch.folder,
        *(text.strip("\"'") for text in launch.directories),
        *(word.text for word in launch.launcher_words),
    )
    if script and launch.trainers is None and any(map(OWN_PLACE.search, places)):
        return script[1]
    if script and is_policy and (is_whole or launch.file is None or "defaults" in names):
        return script[1]
    return next((name for name in TRAINERS if any(key.startswith(f"{name}.") for key in names)), "") if is_whole else ""


def _check_module(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of `python -m nemo_rl.algorithms.grpo`: the module defines what examples/run_grpo.py calls."""
    word = launch.words[0] if launch.words else None
    module = MODULE.fullmatch(word.text) if word is not None else None
    if word is not None and module and find_own_program(launch) is None:
        text = f"{word.text} {ENDS_AT_ONCE}"
        evidence = f"nemo-rl 0.5.0rc0 and 0.7.0: nemo_rl/algorithms/{module[1]}.py has no `if __name__ == '__main__'`"
        advice = f"start examples/run_{module[1]}.py"
        yield SettingProblem("no_step", text, (evidence,), word.location, advice=advice, mild=True)


def read_model_name(launch: Launch) -> str:
    """Return the model that the launch names; "" if it names none."""
    return parse_launch_settings(launch).get_text("policy.model_name")


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as one release reads it."""
    settings = parse_launch_settings(launch)
    trainer, world_size = detect_trainer(launch), _count_gpus(settings)
    plan = _build_plan(settings)
    names = {key: [name.format(backend=settings.backend) for name in names] for key, names in KEY_NAMES.items()}
    return Job(
        framework="nemo-rl",
        version=version,
        trainer=trainer,
        plan=plan,
        model=settings.get_text("policy.model_name"),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name or COMMAND),
        settings=settings.written,
        problems=(*find_problems(settings, trainer, version, world_size), *_check_module(launch)),
        world_size=world_size,
        gpus=settings.count_cluster(),
        nodes=settings.get_int("cluster.num_nodes", 1),
        tensor_parallel=settings.tensor_parallel,
        scheme=("megatron" if settings.is_megatron else "torch") if plan.ring_size > 1 else "",
        reinforcement=trainer in ("grpo", "ppo", "distillation"),
        locations={key: settings.find_location(*own) for key, own in names.items() if settings.has_any(*own)},
        remarks=settings.describe_unresolved([name for own in names.values() for name in own]),
    )


def _count_gpus(settings: NemoReading) -> Fact[int]:
    """Return how many GPUs train; the GPUs of separate generation are not counted."""
    if settings.has_any("policy.generation.colocated.enabled") and not settings.is_on(
        "policy.generation.colocated.enabled"
    ):
        return Absent("some of the cluster's GPUs are used only for generation")
    return settings.count_cluster()


def _build_plan(settings: NemoReading) -> Plan:
    packs = settings.is_on("policy.sequence_packing.enabled")
    packing: Packing = "cu_seqlens" if packs else "padding"
    ring_size = settings.context_parallel
    by_packing = "flash_attention_2" if packs and ring_size == 1 else "sdpa" if ring_size > 1 else ""
    return Plan(
        attn_implementation="transformer_engine" if settings.is_megatron else by_packing,
        packing=packing,
        precision=PRECISIONS.get(settings.get_text("policy.precision"), "bf16"),
        batch=settings.get_int("policy.train_micro_batch_size", 1),
        max_length=settings.get_int("policy.max_total_sequence_length", 1024),
        gradient_checkpointing=settings.is_on(f"{settings.backend}.activation_checkpointing"),
        ring_size=ring_size,
        environ=tuple(sorted(settings.launch.environ.items())),
    )


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that set `sets`; values from a parent's file are overridden in the launch's file or command."""
    settings, changes = parse_launch_settings(launch), Changes()
    own = {launch.source.name, launch.file.name if launch.file is not None else launch.source.name}
    by_field = {name: setting for name, setting in settings.by_field.items() if setting.location.source in own}
    for key, value in sets.items():
        names = [name.format(backend=settings.backend) for name in KEY_NAMES.get(key, (key,))]  # type: ignore[call-overload]
        name = next((name for name in names if name in settings.by_field), names[0])
        if "." not in name or key == "precision":
            return ()
        changes.set_field(by_field, name, switch_to_bool(value))
    return changes_to_edits(launch, changes, lambda name, value: shlex.quote(f"{name}={value}"))


FRAMEWORK = Framework(
    "nemo-rl",
    "nemo-rl",
    "0.7.0",
    detect_trainer,
    read_model_name,
    read,
    write,
    defer("lint.frameworks.nemo_rl.plan:format_plan"),
)
