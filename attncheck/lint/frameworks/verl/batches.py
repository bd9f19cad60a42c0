"""verl's arithmetic of batches, token budgets and parallel sizes: its assertions before and in the first step.

`constraints` says which releases have each and where it was read.
"""

from collections.abc import Iterator, Mapping

from attncheck.core.arithmetic import largest_divisor
from attncheck.lint.fields import Constraints, Job, Known, SettingProblem
from attncheck.lint.frameworks.verl import constraints
from attncheck.lint.frameworks.verl.roles import ACTOR, REF, LaunchConfig

ROLLOUT = "actor_rollout_ref.rollout"
OWN_AGENTS = f"{ROLLOUT}.agent.agent_loop_config_path"
SEPARATE_ROLLOUT_CONFIGS = ("one_step_off_ppo", "fully_async_ppo")


def find_batch_problems(config: LaunchConfig, job: Job) -> Iterator[SettingProblem]:
    """Yield the assertions that the sizes of the launch violate."""
    world_size = job.world_size.value if isinstance(job.world_size, Known) else 0
    if not config.is_reinforcement:
        yield from _indivisible_sft_batch(config, job, world_size)
        return
    if not config.is_validated:
        return
    yield from _ambiguous_micro_batches(config)
    yield from _mini_batch_over_train_batch(config)
    yield from _token_budgets_too_small(config, job)
    if world_size > 0 and not config.inputs.config_name.startswith(SEPARATE_ROLLOUT_CONFIGS):
        yield from _indivisible_rollout_batch(config, world_size)
        yield from _indivisible_mini_batches(config, job, world_size)
        yield from _indivisible_parallel_sizes(config, world_size)


def _refused_setting(
    message: str, ranges: Constraints, config: LaunchConfig, *keys: str, **fields: object
) -> Iterator[SettingProblem]:
    """Yield a problem if the release refuses the setting, located at the first of `keys` that is set.

    `fields` are those of the problem: sets, advice, mild.
    """
    constraint = config.find_constraint(ranges)
    if constraint is None:
        return
    sets = fields.get("sets")
    yield SettingProblem(
        "refuses",
        message,
        (constraint.evidence,),
        config.values.find_location(*keys),
        dict(sets) if isinstance(sets, Mapping) else {},
        str(fields.get("advice", "")),
        mild=bool(fields.get("mild", False)),
    )


def _has_dynamic_batches(config: LaunchConfig, owner: str = ACTOR) -> bool:
    return config.values.is_on(f"{owner}.use_dynamic_bsz")


def _ambiguous_micro_batches(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Check that exactly one form of a micro batch's size is set."""
    micro_batches = [(ACTOR, "ppo_micro_batch_size", ACTOR), (ROLLOUT, "log_prob_micro_batch_size", ACTOR)]
    if config.has_reference or not config.is_at_least(constraints.REFERENCE_CHECKED_UNTIL):
        micro_batches.append((REF, "log_prob_micro_batch_size", ACTOR))
    if config.has_critic:
        micro_batches.append(("critic", "ppo_micro_batch_size", "critic"))
    for owner, name, decider in micro_batches:
        total_key, per_gpu_key = f"{owner}.{name}", f"{owner}.{name}_per_gpu"
        if _has_dynamic_batches(config, decider) or total_key not in config.values.by_key:
            continue
        set_keys = [key for key in (total_key, per_gpu_key) if config.values.get(key) is not None]
        if len(set_keys) == 1:
            continue
        yield from _refused_setting(
            f"{total_key} and {per_gpu_key} are both {'set' if set_keys else 'unset'}: set exactly one",
            constraints.AMBIGUOUS_MICRO_BATCH,
            config,
            *set_keys,
            f"{decider}.use_dynamic_bsz",
            advice=f"{per_gpu_key} alone" if set_keys else f"{per_gpu_key}=1, or {decider}.use_dynamic_bsz=True",
        )


def _mini_batch_over_train_batch(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Check for a mini batch larger than the batch."""
    train_batch = config.values.find_int("data.train_batch_size")
    for owner in (ACTOR, *(["critic"] if config.has_critic else [])):
        mini_batch = config.values.find_int(f"{owner}.ppo_mini_batch_size")
        if train_batch is None or mini_batch is None or train_batch >= mini_batch:
            continue
        if _has_dynamic_batches(config, owner):
            continue
        yield from _refused_setting(
            f"data.train_batch_size={train_batch} is less than {owner}.ppo_mini_batch_size={mini_batch}",
            constraints.MINI_BATCH_OVER_TRAIN_BATCH,
            config,
            f"{owner}.ppo_mini_batch_size",
            "data.train_batch_size",
            sets={f"{owner}.ppo_mini_batch_size": str(train_batch)},
        )


def _indivisible_rollout_batch(config: LaunchConfig, world_size: int) -> Iterator[SettingProblem]:
    """Check that prompts times answers divide evenly among the GPUs."""
    values = config.values
    rows = values.get_int("data.train_batch_size") * values.get_int(f"{ROLLOUT}.n", fallback=1)
    divisor = world_size
    if config.strategy == "megatron" and config.find_constraint(constraints.MEGATRON_SIZES):
        product = _megatron_product(config)
        if world_size % product:
            return
        divisor = world_size // product * max(values.get_int(*config.batch_keys(), fallback=1), 1)
    if rows < 1 or rows % divisor == 0 or (_has_dynamic_batches(config) and config.is_at_least("0.6.0")):
        return
    yield from _refused_setting(
        f"data.train_batch_size × {ROLLOUT}.n = {rows} is not divisible by {divisor}",
        constraints.ROLLOUT_BATCH,
        config,
        "data.train_batch_size",
        f"{ROLLOUT}.n",
        "trainer.n_gpus_per_node",
    )


def _indivisible_mini_batches(config: LaunchConfig, job: Job, world_size: int) -> Iterator[SettingProblem]:
    """Check that each rank's mini batch divides evenly into micro batches."""
    yield from _indivisible_mini_batch(config, ACTOR, world_size, job.plan.ring_size)
    if config.has_critic:
        yield from _indivisible_mini_batch(config, "critic", world_size, _critic_ring_size(config))


def _indivisible_mini_batch(
    config: LaunchConfig, owner: str, world_size: int, ring_size: int
) -> Iterator[SettingProblem]:
    """Check that the mini batch of one trained model (`owner`) divides evenly among ranks and micro batches."""
    values, is_new = config.values, not config.has_legacy_workers
    mini_batch, answers = values.find_int(f"{owner}.ppo_mini_batch_size"), values.find_int(f"{ROLLOUT}.n")
    micro_batch = values.get_int(f"{owner}.ppo_micro_batch_size_per_gpu")
    if not config.is_fsdp or mini_batch is None or answers is None or world_size % ring_size:
        return
    ranks = world_size // ring_size
    rows, remainder = divmod(mini_batch * answers, ranks)
    batch = f"{owner}.ppo_mini_batch_size={mini_batch} × {ROLLOUT}.n={answers} over {ranks} data-parallel ranks"
    keys = (f"{owner}.ppo_mini_batch_size", f"{owner}.ppo_micro_batch_size_per_gpu", f"{ROLLOUT}.n")
    if rows == 0 or (remainder and is_new):
        message = f"{batch}: not a whole number of rows per rank"
        if is_new:
            yield from _refused_setting(message, constraints.UNEVEN_MINI_BATCH, config, *keys)
        elif owner == ACTOR:
            yield from _refused_setting(message, constraints.EMPTY_MINI_BATCH, config, *keys)
        elif micro_batch > 0:
            yield from _refused_setting(message, constraints.EMPTY_CRITIC_MINI_BATCH, config, *keys)
    elif micro_batch > 0 and rows % micro_batch and not (is_new and _has_dynamic_batches(config, owner)):
        best = largest_divisor(rows, micro_batch)
        yield from _refused_setting(
            f"{batch}: {rows} rows on each do not divide evenly into micro batches of {micro_batch}",
            constraints.ENGINE_MICRO_BATCHES if is_new else constraints.MICRO_BATCHES,
            config,
            *(keys[1], keys[0]),
            sets={f"{owner}.ppo_micro_batch_size_per_gpu": str(best)},
        )


def _token_budgets_too_small(config: LaunchConfig, job: Job) -> Iterator[SettingProblem]:
    """Check for token budgets smaller than the longest row."""
    if not config.is_fsdp or config.values.has_any(OWN_AGENTS):  # which may cut their rows
        return
    ring_size = job.plan.ring_size
    budgets = [(ACTOR, f"{ACTOR}.ppo_max_token_len_per_gpu", ring_size, f"{ACTOR}.use_dynamic_bsz")]
    budgets += [
        (owner, f"{owner}.log_prob_max_token_len_per_gpu", ring_size, f"{owner}.log_prob_use_dynamic_bsz")
        for owner in (*[REF] * config.has_reference, ROLLOUT)
        if config.values.has_any(f"{owner}.log_prob_max_token_len_per_gpu")
    ]
    if config.has_critic:
        critic_size = _critic_ring_size(config)
        budgets.append(("critic", "critic.ppo_max_token_len_per_gpu", critic_size, "critic.use_dynamic_bsz"))
    for _, key, ranks, switch in budgets:
        budget = config.values.find_int(key)
        length = job.plan.max_length
        if budget is None or not config.values.is_on(switch) or budget * ranks >= length:
            continue
        over_ranks = f" × {ranks} ranks of Ulysses" if ranks > 1 else ""
        is_late = not config.has_legacy_workers
        yield from _refused_setting(
            f"{key}={budget}{over_ranks} is too small for a row of {length} tokens (prompt and response)"
            + ("; training stops at the first such row" if is_late else ""),
            constraints.TOKEN_BUDGET,
            config,
            key,
            "data.max_response_length",
            sets={key: str(-(-length // ranks))},
            mild=is_late,
        )


def _indivisible_parallel_sizes(config: LaunchConfig, world_size: int) -> Iterator[SettingProblem]:
    """Check for parallel sizes that do not divide the number of GPUs."""
    values = config.values
    product = _megatron_product(config)
    is_unchecked = _has_dynamic_batches(config) and config.is_at_least("0.6.0")
    if config.strategy == "megatron" and world_size % product and not is_unchecked:
        yield from _refused_setting(
            f"{world_size} GPUs do not divide by tensor × pipeline × context parallel = {product}",
            constraints.MEGATRON_SIZES,
            config,
            *(f"{config.engine_key}.{name}" for name in MEGATRON_SIZES),
            "trainer.n_gpus_per_node",
        )
    names = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    rollout_gpus = 1
    for name in names:
        rollout_gpus *= max(values.get_int(f"{ROLLOUT}.{name}", fallback=1), 1)
    if world_size % rollout_gpus and values.get("actor_rollout_ref.hybrid_engine") is not False:
        key = f"{ROLLOUT}.tensor_model_parallel_size"
        divisor = largest_divisor(world_size, rollout_gpus)
        is_megatron = config.strategy == "megatron"
        yield from _refused_setting(
            f"{key} (the rollout takes {rollout_gpus} GPUs) does not divide {world_size} GPUs",
            constraints.MEGATRON_ROLLOUT_SIZES if is_megatron else constraints.ROLLOUT_SIZES,
            config,
            key,
            "trainer.n_gpus_per_node",
            sets={key: str(divisor)},
        )


def _critic_ring_size(config: LaunchConfig) -> int:
    return max(config.values.get_int(config.critic_sequence_parallel_key, fallback=1), 1)


MEGATRON_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def _megatron_product(config: LaunchConfig) -> int:
    """Return Megatron's tensor × pipeline × context parallel size."""
    product = 1
    for name in MEGATRON_SIZES:
        product *= max(config.values.get_int(f"{config.engine_key}.{name}", fallback=1), 1)
    return product


def _indivisible_sft_batch(config: LaunchConfig, job: Job, world_size: int) -> Iterator[SettingProblem]:
    """Check that the batch of fine-tuning divides evenly among ranks and micro batches."""
    values, ring_size = config.values, job.plan.ring_size
    train_batch = values.find_int("data.train_batch_size")
    micro_batch = values.find_int("data.micro_batch_size_per_gpu")
    if train_batch is None or micro_batch is None or micro_batch < 1 or not config.is_fsdp:
        return
    if world_size < 1 or world_size % ring_size:
        return
    ranks = world_size // ring_size
    rows, remainder = divmod(train_batch, ranks)
    batch = f"data.train_batch_size={train_batch} over {ranks} data-parallel ranks"
    if rows == 0 or (remainder and config.is_old_sft):
        yield from _refused_setting(
            f"{batch}: not a whole number of rows per rank",
            constraints.OLD_SFT_RANKS if config.is_old_sft else constraints.EMPTY_SFT_BATCH,
            config,
            "data.train_batch_size",
        )
    elif rows % micro_batch and (config.is_old_sft or not values.is_on("data.use_dynamic_bsz")):
        best = largest_divisor(rows, micro_batch)
        yield from _refused_setting(
            f"{batch}: {rows} rows on each do not divide evenly into micro batches of {micro_batch}",
            constraints.OLD_SFT_MICRO_BATCHES if config.is_old_sft else constraints.ENGINE_MICRO_BATCHES,
            config,
            "data.micro_batch_size_per_gpu",
            "data.train_batch_size",
            sets={"batch": str(best)},
        )
