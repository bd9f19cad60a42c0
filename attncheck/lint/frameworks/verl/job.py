"""Reads a verl launch as a job: its training, data and attention."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from attncheck.lint.fields import (
    COMMAND,
    KEYS,
    Absent,
    Fact,
    Job,
    Known,
    Launch,
    Plan,
    Precision,
    SettingProblem,
    Snapshot,
    SourceLocation,
    UnknownSetting,
)
from attncheck.lint.frameworks.verl import tables
from attncheck.lint.frameworks.verl.batches import SEPARATE_ROLLOUT_CONFIGS
from attncheck.lint.frameworks.verl.given import (
    CONFIG_NAME_OPTIONS,
    OVERRIDE,
    OWN_PROGRAMS,
    HydraInputs,
    Override,
    find_trainer,
    parse_hydra_inputs,
    resolve_config,
    starts_main_ppo,
)
from attncheck.lint.frameworks.verl.objections import find_setting_problems
from attncheck.lint.frameworks.verl.roles import ACTOR, FLASH_IMPLEMENTATIONS, LaunchConfig
from attncheck.lint.frameworks.verl.unknown import find_unknown_settings
from attncheck.lint.frameworks.verl.values import UnresolvedValue, compose_values, override_to_setting
from attncheck.lint.programs.hydra_configs import FOUND_BY_NAME
from attncheck.lint.programs.places import find_own_program

# Of the configuration, by the programs of all releases.
READ_TABLES = ("ray_kwargs", "ray_init", "critic")
MISSING_TABLES = (
    "verl 0.9.1 trainer/main_ppo.py:63, run_ppo: reads config.ray_kwargs; 0.6.1:62; 0.4.1:44 reads config.ray_init, "
    "and 0.2.0:54 config.critic"
)
DTYPES: Mapping[str, Precision] = {
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "float"), "fp32"),
}
NO_FLASH_CROSS_ENTROPY = "VERL_DISABLE_FLASH_ATTN_CE"  # utils/torch_functional.py 0.9.1:95, since 0.9.0
RESOURCE_POOLS = (  # GPUs in addition to the trainer's: (switch, nodes, GPUs per node)
    ("reward_model.enable_resource_pool", "reward_model.nnodes", "reward_model.n_gpus_per_node"),
    ("reward.reward_model.enable_resource_pool", "reward.reward_model.nnodes", "reward.reward_model.n_gpus_per_node"),
)


def read_job(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the launch as one version of verl reads it."""
    release = tables.find_release(version)
    inputs = resolve_config(parse_hydra_inputs(launch), release)
    unknown_settings = tuple(find_unknown_settings(inputs, release))
    new_inputs = resolve_config(with_new_names(inputs, unknown_settings), release)
    config = LaunchConfig(release, new_inputs, compose_values(new_inputs, release))
    world_size = _count_processes(config, launch)
    job = Job(
        framework="verl",
        version=version,
        trainer=find_trainer(launch) or ("ppo" if config.is_reinforcement else "sft"),
        plan=_build_plan(config, launch, snapshot, world_size),
        model=find_model(launch),
        location=_locate_launch(launch),
        settings=(*inputs.entries, *(override_to_setting(override) for override in inputs.overrides)),
        unknown_settings=unknown_settings,
        world_size=world_size,
        gpus=_count_gpus(config, world_size),
        nodes=_count_nodes(config, launch),
        tensor_parallel=max(config.values.get_int(*config.find_keys("tensor_parallel"), fallback=1), 1),
        scheme=_sequence_parallel_scheme(config),
        hooked=_hooked_implementations(config),
        reinforcement=config.is_reinforcement,
        requires=release.required_packages(config.values.get_text("actor_rollout_ref.rollout.name")),
        imports=_required_imports(config),
        locations=_locate_settings(config),
        remarks=(*_collect_remarks(config), *_describe_unread_columns(config, unknown_settings)),
    )
    lacking = tuple(_find_missing_tables(launch, inputs))
    return replace(job, problems=lacking or tuple(find_setting_problems(config, job, snapshot)))


def _find_missing_tables(launch: Launch, inputs: HydraInputs) -> Iterator[SettingProblem]:
    """Yield the problem of a configuration of the user's for verl's program, without `defaults` that add verl's own."""
    program = launch.program
    name = next((word for word in launch.words if word.text.partition("=")[0] in CONFIG_NAME_OPTIONS), None)
    if program is None or name is None or inputs.module != OWN_PROGRAMS[0] or not inputs.is_foreign:
        return
    names = {key.partition(".")[0] for key in (*program.options, *(item.key for item in inputs.overrides))}
    is_whole = not program.groups and set(program.gaps) <= {FOUND_BY_NAME}
    if is_whole and names.isdisjoint(READ_TABLES) and find_own_program(launch) is None:
        places = (option.place.rpartition(":")[0] for option in program.options.values())
        text = f"{next(places, program.path)} has no defaults list, so it lacks verl's own tables, such as ray_kwargs"
        advice = "add defaults: [ppo_trainer, _self_], and hydra.searchpath: [pkg://verl.trainer.config]"
        yield SettingProblem("refuses", text, (MISSING_TABLES,), name.location, advice=advice, universal=True)


def find_model(launch: Launch) -> str:
    """Return the model as the launch names it, or its script's configuration file; "" if none does."""
    inputs = parse_hydra_inputs(launch)
    own = inputs.tree_options if starts_main_ppo(launch) else {}
    pairs = [(name, option.default) for name, option in own.items() if option.default is not None]
    pairs += [(entry.name, entry.value) for entry in inputs.entries]
    pairs += [(override.key, override.value) for override in inputs.overrides]
    model_keys = ("actor_rollout_ref.model.path", "model.path", "model.partial_pretrain")
    models = [value.strip().strip("\"'") for key, value in pairs if key in model_keys]
    return models[-1] if models else ""


def with_new_names(inputs: HydraInputs, unknown_settings: tuple[UnknownSetting, ...]) -> HydraInputs:
    """Return the inputs with every renamed setting under its name in this release."""
    new_names = {(setting.location, setting.name): setting.now[0] for setting in unknown_settings if setting.now}
    overrides = tuple(_rename_override(override, new_names) for override in inputs.overrides)
    entries = tuple(
        replace(entry, name=new_names.get((entry.location, entry.name), entry.name)) for entry in inputs.entries
    )
    config_names = (name.partition("=")[2] for name in new_names.values() if name.startswith("--config-name="))
    return replace(inputs, overrides=overrides, entries=entries, config_name=next(config_names, inputs.config_name))


def _rename_override(override: Override, new_names: Mapping[tuple[SourceLocation, str], str]) -> Override:
    match = OVERRIDE.fullmatch(new_names.get((override.word.location, override.prefix + override.key), ""))
    return override if match is None else override._replace(prefix=match["prefix"] or "", key=match["key"])


def _build_plan(config: LaunchConfig, launch: Launch, snapshot: Snapshot, world_size: Fact[int]) -> Plan:
    values = config.values
    ring_size = config.sequence_parallel_size()
    micro_batch = max(values.get_int(*config.batch_keys(), fallback=1), 1)
    return Plan(
        attn_implementation=_effective_implementation(config),
        packing="position_ids" if _is_packed(config) else "padding",
        precision=_effective_precision(config),
        batch=micro_batch,
        accumulation=_accumulation_steps(config, micro_batch, ring_size, world_size),
        max_length=max(_max_length(config), 1),
        gradient_checkpointing=values.is_on(*config.find_keys("gradient_checkpointing")),
        liger=values.is_on(*config.find_keys("liger")) and config.is_fsdp,
        cross_entropy="flash_attn" if _uses_triton_cross_entropy(config, launch, snapshot) else "torch",
        deterministic=values.is_on(f"{config.engine_key}.full_determinism"),
        ring_size=ring_size,
        scheme="ulysses" if _sequence_parallel_scheme(config) == "ulysses" else "llama3",
        environ=tuple(sorted({**launch.environ, **_worker_environ(config)}.items())),
    )


def _worker_environ(config: LaunchConfig) -> dict[str, str]:
    """Return the variables that `ray_kwargs.ray_init.runtime_env.env_vars` sets in every worker.

    verl 0.9.1 trainer/main_ppo.py:62-72 and 0.6.0 :60-64 merge it into verl's own and pass it to `ray.init`; 0.5.0 :59
    uses only verl's own.
    """
    if not config.is_at_least("0.6.0"):
        return {}
    pairs = [(entry.name, entry.value) for entry in config.inputs.entries]
    pairs += [(override.key, override.value) for override in config.inputs.overrides]
    marked = ((*key.rpartition("ray_kwargs.ray_init.runtime_env.env_vars."), value) for key, value in pairs)
    return {name: value.strip("\"'") for _, mark, name, value in marked if mark}


def _effective_implementation(config: LaunchConfig) -> str:
    """Return the implementation that trains the policy: flash_attention_2, or the requested one if it is read."""
    requested = config.values.get_text(config.attn_implementation_key) if config.attn_implementation_key else ""
    if config.strategy == "megatron":
        return "transformer_engine"  # it selects flash-attn, cuDNN or its own kernel, none of them through transformers
    if config.strategy == "torchtitan":
        return "flex_attention" if requested.startswith("flex") else "sdpa"
    return requested or "flash_attention_2"


def _is_packed(config: LaunchConfig) -> bool:
    """Return whether rows are packed; `fsdp_sft_trainer` packs only with Ulysses (0.4.1:299, `use_sp`)."""
    keys = config.find_keys("packing")
    is_on = config.values.is_on(*keys) or not keys
    return is_on and (not config.is_old_sft or config.sequence_parallel_size() > 1)


def _effective_precision(config: LaunchConfig) -> Precision:
    if not config.is_fsdp:
        return "bf16"
    weight_dtype = DTYPES.get(config.values.get_text(f"{config.engine_key}.model_dtype"), "fp32")
    compute_dtype = DTYPES.get(config.values.get_text(*config.precision_keys()), "bf16")
    if config.is_old_sft:
        compute_dtype = "bf16"
    if compute_dtype == "bf16" and weight_dtype == "fp32":
        return "autocast"
    return weight_dtype if compute_dtype == "bf16" else compute_dtype


def _max_length(config: LaunchConfig) -> int:
    if not config.is_reinforcement:
        return config.values.get_int("data.max_length", fallback=1024)
    return config.values.get_int("data.max_prompt_length") + config.values.get_int("data.max_response_length")


def _accumulation_steps(config: LaunchConfig, micro_batch: int, ring_size: int, ranks: Fact[int]) -> int:
    """Return the number of micro batches in an optimiser step; 1 with dynamic batches or unknown numbers."""
    values = config.values
    if config.is_old_sft:  # trainer/fsdp_sft_trainer.py 0.4.1:114: each group's part is divided into micro batches
        groups = ranks.value // ring_size if isinstance(ranks, Known) else 0
        return max(values.get_int("data.train_batch_size") // (groups * micro_batch), 1) if groups else 1
    world_size = values.get_int("trainer.n_gpus_per_node") * values.get_int("trainer.nnodes", fallback=1)
    is_dynamic = values.is_on(f"{ACTOR}.use_dynamic_bsz")
    if not config.is_reinforcement or is_dynamic or not world_size or ring_size > world_size:
        return 1
    rows = values.get_int(f"{ACTOR}.ppo_mini_batch_size") * values.get_int("actor_rollout_ref.rollout.n")
    return max(rows // (world_size // ring_size * micro_batch), 1)


def _uses_triton_cross_entropy(config: LaunchConfig, launch: Launch, snapshot: Snapshot) -> bool:
    """Return whether flash-attn's Triton kernel computes log-probabilities (utils/torch_functional.py 0.9.1:90-107)."""
    if not (config.is_reinforcement and config.is_fsdp and snapshot.lists("flash-attn")):
        return False
    is_deterministic = config.values.is_on(f"{config.engine_key}.full_determinism")
    is_disabled = launch.environ.get(NO_FLASH_CROSS_ENTROPY) == "1" or is_deterministic
    return not (is_disabled and config.is_at_least("0.9.0"))


def _count_processes(config: LaunchConfig, launch: Launch) -> Fact[int]:
    nodes = config.values.find_int("trainer.nnodes")
    gpus_per_node = config.values.find_int("trainer.n_gpus_per_node")
    if config.is_reinforcement or config.inputs.module.endswith("_ray"):
        if nodes is None or gpus_per_node is None:
            return Absent("trainer.nnodes or trainer.n_gpus_per_node is not known before the launch runs")
        return Known(nodes * gpus_per_node)
    if isinstance(launch.nodes, Known) and isinstance(launch.processes, Known):
        return Known(launch.nodes.value * launch.processes.value)
    return launch.processes if isinstance(launch.nodes, Known) else launch.nodes


def _count_gpus(config: LaunchConfig, world_size: Fact[int]) -> Fact[int]:
    if not isinstance(world_size, Known):
        return world_size
    if config.values.get_text("trainer.device") not in ("", "cuda"):
        return Absent("trainer.device is not an NVIDIA GPU")
    return Known(world_size.value + sum(nodes * gpus_per_node for nodes, gpus_per_node in _list_other_pools(config)))


def _list_other_pools(config: LaunchConfig) -> list[tuple[int, int]]:
    """Return the number of nodes of each pool besides the trainer's, with the GPUs of a node."""
    values = config.values
    pools = [
        (values.get_int(nodes), values.get_int(gpus_per_node))
        for switch, nodes, gpus_per_node in RESOURCE_POOLS
        if values.is_on(switch)
    ]
    if config.inputs.config_name.startswith(SEPARATE_ROLLOUT_CONFIGS):
        pools.append((values.get_int("rollout.nnodes", fallback=1), values.get_int("rollout.n_gpus_per_node")))
    return pools


def _count_nodes(config: LaunchConfig, launch: Launch) -> int:
    """Return the number of nodes that the launch names, those of all pools together."""
    if config.is_reinforcement:
        own_nodes = sum(nodes for nodes, _ in _list_other_pools(config))
        return max(config.values.get_int("trainer.nnodes", fallback=1), 1) + own_nodes
    return launch.nodes.value if isinstance(launch.nodes, Known) else 1


def _sequence_parallel_scheme(config: LaunchConfig) -> str:
    if config.sequence_parallel_size() < 2:
        return ""
    if config.strategy == "megatron":
        return "megatron"
    return "ulysses" if config.is_fsdp or config.strategy == "veomni" else "torch"


def _hooked_implementations(config: LaunchConfig) -> tuple[str, ...]:
    """Return the implementations that use `_flash_attention_forward`, which Ulysses replaces.

    models/transformers/monkey_patch.py 0.9.1:544-552; kernels of the Hub use it too, under any name. VeOmni has its own
    Ulysses, in its own attention.
    """
    if _sequence_parallel_scheme(config) != "ulysses" or config.strategy == "veomni":
        return ()
    implementation = _effective_implementation(config)
    return (*FLASH_IMPLEMENTATIONS, implementation) if "/" in implementation else FLASH_IMPLEMENTATIONS


def _required_imports(config: LaunchConfig) -> tuple[str, ...]:
    """Return the modules that are imported with any implementation.

    workers/actor/dp_actor.py imports flash_attn at its top up to 0.5.0 (0.3.0.post1:34; only with CUDA: 0.5.0:40),
    utils/attention_utils.py at the first packed row up to 0.9.0 (0.9.0:30); 0.9.1 has its own (0.9.1:70-78).
    """
    if not config.is_fsdp or config.is_at_least("0.9.1"):
        return ()
    return ("flash_attn",) if not config.is_at_least("0.6.0") or _is_packed(config) else ()


def _locate_settings(config: LaunchConfig) -> dict[str, SourceLocation]:
    locations: dict[str, SourceLocation] = {}
    for key in KEYS:
        names = config.find_keys(key)
        if config.values.has_any(*names):
            locations[key] = config.values.find_location(*names)
    for name in ("data.max_prompt_length", "data.max_response_length"):
        if config.values.has_any(name):
            locations.setdefault("max_length", config.values.find_location(name))
    return locations


def _locate_launch(launch: Launch) -> SourceLocation:
    if launch.words:
        return launch.words[0].location
    return launch.entries[0].location if launch.entries else SourceLocation(launch.source.name or COMMAND)


def _describe_unread_columns(config: LaunchConfig, unknown_settings: tuple[UnknownSetting, ...]) -> tuple[str, ...]:
    """Return a remark if a launch of the newer SFT trainer names data columns that it does not read.

    trainer/sft_trainer.py 0.9.1:478 uses MultiTurnSFTDataset unless data.custom_cls names another class.
    """
    removed_keys = [setting.name for setting in unknown_settings if not setting.now]
    columns = [key for key in removed_keys if key in ("data.prompt_key", "data.response_key")]
    if not columns or config.is_reinforcement:
        return ()
    reads = "verl.trainer.sft_trainer reads conversations (data.messages_key)"
    return (f"{', '.join(columns)}: {reads}; convert the data",)


def _collect_remarks(config: LaunchConfig) -> tuple[str, ...]:
    inputs, values = config.inputs, config.values
    remarks = [f"{word.text}: known only at run time" for word in inputs.unresolved_words]
    unresolved_keys = [
        name
        for name, setting in values.written_settings.items()
        if not setting.known or isinstance(values.by_key.get(name), UnresolvedValue)
    ]
    deciding_keys = {name for key in KEYS for name in config.find_keys(key)} | {
        "trainer.nnodes",
        "trainer.n_gpus_per_node",
    }
    remarks += [f"{name}: its value is known only at run time" for name in unresolved_keys if name in deciding_keys]
    if inputs.is_foreign and inputs.module:
        name = inputs.config_name or inputs.module
        remarks.append(f"{name} is not one of verl's configurations, so only verl's keys are judged")
    return tuple(remarks)
