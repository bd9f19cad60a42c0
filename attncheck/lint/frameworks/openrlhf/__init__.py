"""OpenRLHF: `openrlhf.cli.train_sft`, `train_dpo`, `train_rm`, `train_ppo_ray` and those that older releases had.

Options are read as argparse reads them, under the names of any release 0.5.0 to 0.11.2, and written in those of one.
What the release turns on or replaces by itself is in the job's plan; what it refuses is in its objections. GPUs of
PPO are those of all roles, counted as cli/train_ppo_ray.py:36-140 of 0.11.2 makes its placement groups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.job import DROP, Job, Key, UnknownSetting
from attncheck.core.launch import Edit, Launch, SourceLocation
from attncheck.core.model import Model
from attncheck.core.plan import PRECISIONS, RING_NAMES, CrossEntropy, Plan
from attncheck.core.snapshot import Snapshot
from attncheck.lint.frameworks import Framework
from attncheck.lint.frameworks.openrlhf import names
from attncheck.lint.frameworks.openrlhf.behaviour import objections
from attncheck.lint.frameworks.openrlhf.changes import edits
from attncheck.lint.frameworks.openrlhf.plan import plan_settings
from attncheck.lint.frameworks.openrlhf.values import Given, Values, given
from attncheck.lint.launchers.options import EVERY_GPU

MODULE = re.compile(r"(?:.*/)?openrlhf[./]cli[./]train_(\w+?)(?:\.py)?|(?:.*/)?train_(ppo_ray)\.py")
LEFT = ("rm", "ppo")  # cli/train_rm.py:38, trainer/ray/ppo_actor.py: pad on the left; the others on the right
FLASH_CROSS_ENTROPY = ("0.6.2", "0.7.0")  # models/utils.py:109 of DPO and PPO; SFT's own loss went with 0.7.0
FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")  # packing replaces what is not named so
KEYS: Mapping[Key, str] = {
    "attn_implementation": "ds.attn_implementation",
    "packing": "ds.packing_samples",
    "precision": "ds.param_dtype",
    "ring_size": "ds.ring_attn_size",
    "heads_k_stride": "ds.ring_attn_head_stride",
    "tensor_parallel": "ds.tensor_parallel_size",
    "deterministic": "train.full_determinism_enable",
    "liger": "ds.use_liger_kernel",
    "max_length": "data.max_len",
    "batch": "train.micro_batch_size",
    "global_batch": "train.batch_size",
}


def trainer(launch: Launch) -> str:
    """Return which trainer a launch starts ("sft", "ppo"), "" where it is none of OpenRLHF's."""
    found = MODULE.fullmatch(launch.words[0].text) if launch.words else None
    name = (found[1] or found[2]) if found else ""
    name = "ppo" if name == "ppo_ray" else name
    return name if name in names.trainers() else ""


def model(launch: Launch) -> str:
    """Return the model as written, "" where none is."""
    kind = trainer(launch)
    written = given(launch, kind, names.releases()[-1])
    wanted = ("pretrain", "model.model_name_or_path", "actor.model_name_or_path")
    return next((each.values[0] for each in reversed(written) if each.name in wanted and each.values), "")


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it; a setting that it does not know counts under its new name."""
    kind = trainer(launch)
    written = given(launch, kind, version)
    described = snapshot.model.value if isinstance(snapshot.model, Known) else None
    values = _values(launch, kind, version, written, snapshot, described)
    world = _world(launch, values)
    values = replace(values, world=world.value if isinstance(world, Known) else None)
    return Job(
        framework="openrlhf",
        version=version,
        trainer=kind,
        plan=_plan(launch, values),
        model=model(launch),
        location=values.start,
        settings=tuple(each.setting for each in written),
        unknown_settings=_unknown(kind, version, written),
        problems=objections(values),
        world_size=world,
        gpus=_gpus(values) if kind == "ppo" else world,
        nodes=_nodes(launch, values),
        tensor_parallel=values.tensor_parallel,
        scheme="llama3" if values.ring > 1 else "",
        hooked=("flash_attention_2",),
        packs_with=FLASH,
        requires=_requires(kind, version),
        reinforcement=kind == "ppo",
        imports=("flash_attn",),
        locations=_places(values),
        remarks=_remarks(launch, written),
    )


def _values(
    launch: Launch, kind: str, version: str, written: tuple[Given, ...], snapshot: Snapshot, described: Model | None
) -> Values:
    all_ = {each.name: each.values for each in written if each.name}
    found = {}
    for each in written:
        for name, values in names.modern(kind, (each.name, each.values), all_) if each.name else ():
            found[name] = (values, each.setting)
    start = launch.words[0].location if launch.words else SourceLocation(launch.source.name)
    return Values(kind, version, found, None, snapshot, described, start, written)


def _world(launch: Launch, values: Values) -> Fact[int]:
    """Return how many processes train: of PPO the actor's, else those that the launcher starts."""
    if values.trainer == "ppo":
        actor = values.processes("actor")
        return Known(actor) if actor is not None else Absent("only running can tell how many GPUs the actor has")
    nodes, processes = launch.nodes, launch.processes
    here = len(values.snapshot.visible_devices())
    if isinstance(processes, Absent) and processes.reason.endswith(EVERY_GPU) and here:
        processes = Known(here)
    if isinstance(nodes, Known) and isinstance(processes, Known):
        return Known(nodes.value * processes.value)
    return nodes if not isinstance(nodes, Known) else processes


def _gpus(values: Values) -> Fact[int]:
    """Return the GPUs that Ray must have free at once, over all roles."""
    sizes = {role: values.processes(role) for role in values.roles()}
    every, engines = values.on("train.colocate_all"), values.engines
    shared = {"ref"} if every or values.on("train.colocate_actor_ref") else set()
    if values.critic and values.on("train.colocate_critic_reward"):
        shared.add("reward")  # in a group of its own even where all are colocated (cli/train_ppo_ray.py:115-124)
    elif every:
        shared |= {"critic", "reward"}
    if every and not values.on("train.async_enable"):
        engines = 0
    wanted = [engines, *(size for role, size in sizes.items() if role not in shared)]
    if any(size is None for size in wanted):
        return Absent("only running can tell how many GPUs a role has")
    return Known(sum(size or 0 for size in wanted))


def _nodes(launch: Launch, values: Values) -> int:
    if values.trainer == "ppo":
        return max(1, *(values.number(f"{role}.num_nodes") or 1 for role in values.roles()))
    return launch.nodes.value if isinstance(launch.nodes, Known) else 1


def _requires(kind: str, version: str) -> tuple[str, ...]:
    """Return what the release's METADATA requires; vllm comes with an extra, for PPO."""
    found = names.requires(version)
    return tuple(
        name + specifier for name, specifier in found.items() if specifier and (name != "vllm" or kind == "ppo")
    )


def _plan(launch: Launch, values: Values) -> Plan:
    micro = 1 if values.dynamic else values.number("train.micro_batch_size") or 1
    checkpointing = ("actor" if values.trainer == "ppo" else "model") + ".gradient_checkpointing_enable"
    precision = values.precision
    return Plan(
        attn_implementation=values.implementation,
        packing="position_ids" if values.packed else "padding",
        padding_side="left" if values.trainer in LEFT else "right",
        precision=next((each for each in PRECISIONS if each == precision), "bf16"),
        batch=micro,
        accumulation=_accumulation(values, micro),
        max_length=values.number("data.max_len") or 0,
        gradient_checkpointing=values.on(checkpointing),
        liger=values.on("ds.use_liger_kernel"),
        cross_entropy=_cross_entropy(values),
        deterministic=values.on("train.full_determinism_enable"),
        compile=values.on("ds.deepcompile"),
        ring_size=values.ring,
        heads_k_stride=values.number("ds.ring_attn_head_stride") or 1,
        environ=tuple(sorted(launch.environ.items())),
        # models/ring_attn_utils.py:9-20 `patch_transformers_for_ring_flash_attn`
        shims=(RING_NAMES,) if values.ring > 1 and values.reaches("0.10.2") else (),
    )


def _accumulation(values: Values, micro: int) -> int:
    """Return utils/deepspeed/deepspeed.py:110 `accumulated_gradient`, where the processes are known."""
    whole = values.number("train.batch_size")
    if values.dynamic or not values.world or not whole:
        return 1
    return max(1, whole * values.ring * values.tensor_parallel // micro // values.world)


def _cross_entropy(values: Values) -> CrossEntropy:
    if values.trainer in ("rm", "prm"):
        return "torch"
    return "flash_attn" if values.reaches(FLASH_CROSS_ENTROPY[values.trainer == "sft"]) else "torch"


def _places(values: Values) -> dict[str, SourceLocation]:
    role = "actor" if values.trainer == "ppo" else "model"
    settings = {**KEYS, "gradient_checkpointing": f"{role}.gradient_checkpointing_enable"}
    return {key: values.place(name) for key, name in settings.items() if values.wrote(name)}


def _unknown(kind: str, version: str, written: tuple[Given, ...]) -> tuple[UnknownSetting, ...]:
    """Return the settings that the release does not know, with what they are called there; () of a trainer gone."""
    if not names.offers(kind, version):
        return ()
    all_ = {each.name: each.values for each in written if each.name}
    found = []
    for each in written:
        if each.known or not each.words[0].known:
            continue
        now = names.translated(kind, version, (each.name, each.values), all_) if each.name else ()
        told = tuple(_told(name, values, each.values) for name, values in now)
        since = names.since(kind, version, each.name) if each.name else ""
        near = "" if each.name else names.near(kind, version, each.setting.name)
        found.append(UnknownSetting(each.setting.name, each.setting.location, told, since, near))
    return tuple(found)


def _told(name: str, values: tuple[str, ...], before: tuple[str, ...]) -> str:
    return f"--{name}" if values == before else " ".join([f"--{name}", *values])


def _remarks(launch: Launch, written: tuple[Given, ...]) -> tuple[str, ...]:
    hidden = [each.setting for each in written if not each.setting.known]
    return tuple(f"{each.name} {each.value}".strip() + ": only running can tell its value" for each in hidden)


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename what is in `job.unknown` and set `sets`, in the names of `job.version`."""
    written = given(launch, job.trainer, job.version)
    unknown = {(each.name, each.location) for each in job.unknown_settings}
    return edits(launch, job.trainer, job.version, written, unknown, _own(job, sets))


def _own(job: Job, sets: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in OpenRLHF's newest names; what has none there is left out."""
    role = "actor" if job.trainer == "ppo" else "model"
    own = {**KEYS, "gradient_checkpointing": f"{role}.gradient_checkpointing_enable"}
    keys = {str(key): name for key, name in own.items()}
    return {
        keys.get(key, key.removeprefix("--")): value
        for key, value in sets.items()
        if key != "padding_side" and not (key == "precision" and value not in ("bf16", "fp16", DROP))
    }


FRAMEWORK = Framework("openrlhf", "openrlhf", "0.11.2", trainer, model, read, write, plan_settings)
