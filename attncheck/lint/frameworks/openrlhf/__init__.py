"""OpenRLHF: `openrlhf.cli.train_sft`, `train_dpo`, `train_rm`, `train_ppo_ray` and the trainers of older releases.

Options are read as argparse reads them, in the names of any release from 0.5.0 to 0.11.2, and written in the names of
one. The job's plan contains what the release turns on or replaces by default; its problems list what the release
refuses. GPUs of PPO are those of all roles, counted like the placement groups in cli/train_ppo_ray.py:36-140 of 0.11.2.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

from attncheck.core.model import Model
from attncheck.lint.fields import (
    DROP,
    PRECISIONS,
    RING_NAMES,
    Absent,
    CrossEntropy,
    Edit,
    Fact,
    Job,
    Key,
    Known,
    Launch,
    Plan,
    Snapshot,
    SourceLocation,
    UnknownSetting,
    list_releases,
)
from attncheck.lint.frameworks import Framework, defer
from attncheck.lint.frameworks.openrlhf import forks, names
from attncheck.lint.frameworks.openrlhf.behaviour import find_setting_problems
from attncheck.lint.frameworks.openrlhf.changes import build_edits
from attncheck.lint.frameworks.openrlhf.values import ParsedOption, Values, parse_trainer_options
from attncheck.lint.launchers.options import EVERY_GPU

LEFT_PADDED = ("rm", "ppo")  # cli/train_rm.py:38, trainer/ray/ppo_actor.py: padded on the left; the others on the right
FLASH_CROSS_ENTROPY = ("0.6.2", "0.7.0")  # models/utils.py:109 of DPO and PPO; SFT's own loss was removed in 0.7.0
# Packing replaces any other implementation.
FLASH_IMPLEMENTATIONS = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
NAMES_BY_KEY: Mapping[Key, str] = {
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


def find_trainer(launch: Launch) -> str:
    """Return the trainer that a launch starts ("sft", "ppo"); "" if it is not one of OpenRLHF's."""
    return forks.guess_trainer(forks.read_module_name(launch))


def find_model(launch: Launch) -> str:
    """Return the model as the launch names it; "" if it names none."""
    trainer = find_trainer(launch)
    if trainer not in names.list_trainers():
        return forks.find_model(launch)
    parsed_options = parse_trainer_options(launch, trainer, names.list_releases()[-1])
    model_names = ("pretrain", "model.model_name_or_path", "actor.model_name_or_path")
    models = (option.values[0] for option in reversed(parsed_options) if option.name in model_names and option.values)
    return next(models, "")


def read_job(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it; a setting unknown to it counts under its new name."""
    trainer, module_name = find_trainer(launch), forks.read_module_name(launch)
    if trainer not in names.list_trainers():
        return forks.read_job(launch, version, module_name)
    parsed_options = parse_trainer_options(launch, trainer, version)
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    values = _resolve_values(launch, trainer, version, parsed_options, snapshot, model)
    world_size = _count_processes(launch, values)
    values = replace(values, world_size=world_size.value if isinstance(world_size, Known) else None)
    job = Job(
        framework="openrlhf",
        version=version,
        trainer=trainer,
        plan=_build_plan(launch, values),
        model=find_model(launch),
        location=values.command_location,
        settings=tuple(option.setting for option in parsed_options),
        unknown_settings=_unknown_settings(trainer, version, parsed_options),
        problems=find_setting_problems(values),
        world_size=world_size,
        gpus=_count_gpus(values) if trainer == "ppo" else world_size,
        nodes=_count_nodes(launch, values),
        tensor_parallel=values.tensor_parallel,
        scheme="llama3" if values.ring_size > 1 else "",
        hooked=("flash_attention_2",),
        packs_with=FLASH_IMPLEMENTATIONS,
        requires=_required_packages(trainer, version),
        reinforcement=trainer == "ppo",
        imports=("flash_attn",),
        locations=_locate_settings(values),
        remarks=_describe_hidden_values(parsed_options),
    )
    return forks.leave_open(job, module_name) if forks.is_fork(module_name) else job


def _resolve_values(
    launch: Launch,
    trainer: str,
    version: str,
    parsed_options: tuple[ParsedOption, ...],
    snapshot: Snapshot,
    model: Model | None,
) -> Values:
    all_options = {option.name: option.values for option in parsed_options if option.name}
    settings = {}
    for option in parsed_options:
        named_values = (option.name, option.values)
        for name, values in names.to_newest_names(trainer, named_values, all_options) if option.name else ():
            settings[name] = (values, option.setting)
    command_location = launch.words[0].location if launch.words else SourceLocation(launch.source.name)
    return Values(trainer, version, settings, None, snapshot, model, command_location, parsed_options)


def _count_processes(launch: Launch, values: Values) -> Fact[int]:
    """Return how many processes train: the actor's in PPO, otherwise those that the launcher starts."""
    if values.trainer == "ppo":
        gpus = values.count_role_gpus("actor")
        return Known(gpus) if gpus is not None else Absent("the actor's GPU count is known only at run time")
    nodes, processes = launch.nodes, launch.processes
    devices = len(values.snapshot.visible_devices())
    if isinstance(processes, Absent) and processes.reason.endswith(EVERY_GPU) and devices:
        processes = Known(devices)
    if isinstance(nodes, Known) and isinstance(processes, Known):
        return Known(nodes.value * processes.value)
    return nodes if not isinstance(nodes, Known) else processes


def _count_gpus(values: Values) -> Fact[int]:
    """Return the number of GPUs that Ray must have free at once for all roles."""
    role_gpus = {role: values.count_role_gpus(role) for role in values.list_roles()}
    colocate_all, vllm_gpus = values.is_on("train.colocate_all"), values.vllm_gpus
    shared = {"ref"} if colocate_all or values.is_on("train.colocate_actor_ref") else set()
    if values.has_critic and values.is_on("train.colocate_critic_reward"):
        shared.add("reward")  # in its own group even if all are colocated (cli/train_ppo_ray.py:115-124)
    elif colocate_all:
        shared |= {"critic", "reward"}
    if colocate_all and not values.is_on("train.async_enable"):
        vllm_gpus = 0
    sizes = [vllm_gpus, *(size for role, size in role_gpus.items() if role not in shared)]
    if any(size is None for size in sizes):
        return Absent("a role's GPU count is known only at run time")
    return Known(sum(size or 0 for size in sizes))


def _count_nodes(launch: Launch, values: Values) -> int:
    if values.trainer == "ppo":
        return max(1, *(values.find_int(f"{role}.num_nodes") or 1 for role in values.list_roles()))
    return launch.nodes.value if isinstance(launch.nodes, Known) else 1


@cache
def _required_packages(trainer: str, version: str) -> tuple[str, ...]:
    """Return the packages that the release's METADATA requires.

    For PPO, also vllm: one extra pins it, and another takes any newer one (0.9.3: `vllm`, `vllm-latest`).
    """
    packages = dict(names.required_packages(version))
    vllm = packages.pop("vllm", "").replace("==", ">=")
    rows = {**packages, **({"vllm": vllm} if trainer == "ppo" else {})}
    return tuple(name + specifier for name, specifier in rows.items() if specifier)


def _build_plan(launch: Launch, values: Values) -> Plan:
    micro_batch = 1 if values.has_dynamic_batches else values.find_int("train.micro_batch_size") or 1
    checkpointing = ("actor" if values.trainer == "ppo" else "model") + ".gradient_checkpointing_enable"
    precision = values.precision
    return Plan(
        attn_implementation=values.attn_implementation,
        packing="position_ids" if values.packed else "padding",
        padding_side="left" if values.trainer in LEFT_PADDED else "right",
        precision=next((name for name in PRECISIONS if name == precision), "bf16"),
        batch=micro_batch,
        accumulation=_accumulation_steps(values, micro_batch),
        max_length=values.find_int("data.max_len") or 0,
        gradient_checkpointing=values.is_on(checkpointing),
        liger=values.is_on("ds.use_liger_kernel"),
        cross_entropy=_choose_cross_entropy(values),
        deterministic=values.is_on("train.full_determinism_enable"),
        compile=values.is_on("ds.deepcompile"),
        ring_size=values.ring_size,
        heads_k_stride=values.find_int("ds.ring_attn_head_stride") or 1,
        environ=tuple(sorted(launch.environ.items())),
        # models/ring_attn_utils.py:9-20 `patch_transformers_for_ring_flash_attn`
        shims=(RING_NAMES,) if values.ring_size > 1 and values.is_at_least("0.10.2") else (),
    )


def _accumulation_steps(values: Values, micro_batch: int) -> int:
    """Return `accumulated_gradient` (utils/deepspeed/deepspeed.py:110), if the number of processes is known."""
    global_batch = values.find_int("train.batch_size")
    if values.has_dynamic_batches or not values.world_size or not global_batch:
        return 1
    return max(1, global_batch * values.ring_size * values.tensor_parallel // micro_batch // values.world_size)


def _choose_cross_entropy(values: Values) -> CrossEntropy:
    if values.trainer in ("rm", "prm"):
        return "torch"
    return "flash_attn" if values.is_at_least(FLASH_CROSS_ENTROPY[values.trainer == "sft"]) else "torch"


def _locate_settings(values: Values) -> dict[str, SourceLocation]:
    role = "actor" if values.trainer == "ppo" else "model"
    option_names = {**NAMES_BY_KEY, "gradient_checkpointing": f"{role}.gradient_checkpointing_enable"}
    return {key: values.find_location(name) for key, name in option_names.items() if values.has_any(name)}


def _unknown_settings(
    trainer: str, version: str, parsed_options: tuple[ParsedOption, ...]
) -> tuple[UnknownSetting, ...]:
    """Return the settings that the release does not know, with their names there; () if it lacks the trainer."""
    if not names.has_trainer(trainer, version):
        return ()
    all_options = {option.name: option.values for option in parsed_options if option.name}
    unknown_settings = []
    for option in parsed_options:
        if option.known or not option.words[0].known:
            continue
        named_values = (option.name, option.values)
        new_options = names.translate_option(trainer, version, named_values, all_options) if option.name else ()
        now = tuple(
            " ".join([f"--{name}", *(values if values != option.values else ())]) for name, values in new_options
        )
        since = names.find_change_release(trainer, version, option.name) if option.name else ""
        near = "" if option.name else names.suggest_option(trainer, version, option.setting.name)
        unknown_settings.append(UnknownSetting(option.setting.name, option.setting.location, now, since, near))
    return tuple(unknown_settings)


def _describe_hidden_values(parsed_options: tuple[ParsedOption, ...]) -> tuple[str, ...]:
    hidden_settings = [option.setting for option in parsed_options if not option.setting.known]
    return tuple(
        f"{setting.name} {setting.value}".strip() + ": its value is known only at run time"
        for setting in hidden_settings
    )


def write_settings(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename `job.unknown_settings` and set `sets`, in the names of `job.version`."""
    if job.trainer not in names.list_trainers():
        return ()
    parsed_options = parse_trainer_options(launch, job.trainer, job.version)
    unknown_options = {(setting.name, setting.location) for setting in job.unknown_settings}
    return build_edits(launch, job.trainer, job.version, parsed_options, unknown_options, _translate_keys(job, sets))


def _translate_keys(job: Job, sets: Mapping[str, str]) -> dict[str, str]:
    """Return the settings under OpenRLHF's newest names; those without one are omitted."""
    role = "actor" if job.trainer == "ppo" else "model"
    option_names = {**NAMES_BY_KEY, "gradient_checkpointing": f"{role}.gradient_checkpointing_enable"}
    names_by_key = {str(key): name for key, name in option_names.items()}
    return {
        names_by_key.get(key, key.removeprefix("--")): value
        for key, value in sets.items()
        if key != "padding_side" and not (key == "precision" and value not in ("bf16", "fp16", DROP))
    }


FRAMEWORK = Framework(
    "openrlhf",
    "openrlhf",
    "0.11.2",
    find_trainer,
    find_model,
    read_job,
    write_settings,
    defer("lint.frameworks.openrlhf.plan:plan_settings"),
    cut=defer("lint.frameworks.openrlhf.rehearsal:cut"),
    releases=partial(list_releases, "openrlhf"),
    requires=partial(_required_packages, ""),
    own_programs=forks.list_own_modules(),
)
