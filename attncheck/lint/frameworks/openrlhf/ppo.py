"""Problems with settings of PPO, GRPO and REINFORCE++ (cli/train_ppo_ray.py) that OpenRLHF cannot honour.

`constraints` says which releases have each and where it was read.
"""

from collections.abc import Callable, Iterator

from attncheck.lint.fields import DROP, Consequence, Constraints, SettingProblem
from attncheck.lint.frameworks.openrlhf import constraints
from attncheck.lint.frameworks.openrlhf.values import Values, is_known_at_least

GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")


def missing_vllm_engines(values: Values) -> Iterator[SettingProblem]:
    """Check for a job without vLLM engines: packing asserts them, and since 0.8.0 nothing else generates."""
    engines = values.find_text("vllm.num_engines")
    if engines is None or (engines and values.find_int("vllm.num_engines") != 0):
        return
    option = values.option("vllm.num_engines")
    sets = {option: str(values.find_int("actor.num_gpus_per_node") or 1)} if values.is_on("train.colocate_all") else {}
    advice = "" if sets else f"give {option}"
    if values.packed:
        yield from values.setting_problem(
            "refuses",
            f"packing without {option}",
            constraints.PACKING_WITHOUT_VLLM,
            "vllm.num_engines",
            "ds.packing_samples",
            "train.dynamic_batch_enable",
            "ds.ring_attn_size",
            sets=sets,
            advice=advice,
        )
    else:
        yield from values.setting_problem(
            "refuses",
            f"no {option}: nothing generates rollouts",
            constraints.NOTHING_GENERATES,
            "vllm.num_engines",
            sets=sets,
            advice=advice,
        )


def dynamic_batch_problems(values: Values) -> Iterator[SettingProblem]:
    """Check dynamic batches: they turn packing on, run rows over the budget separately, and may leave no step."""
    if not values.has_dynamic_batches:
        return
    option = values.option("train.dynamic_batch_enable")
    if not values.is_on("ds.packing_samples"):
        ranges = constraints.DYNAMIC_TURNS_PACKING_ON
        message = f"{option} turns {values.option('ds.packing_samples')} on"
        yield from values.setting_problem(
            "replaces", message, ranges, "train.dynamic_batch_enable", sets={"packing": "on"}, mild=True
        )
    prompts, answers, global_batch = (
        values.find_int(name) for name in ("rollout.batch_size", "rollout.n_samples_per_prompt", GLOBAL_BATCH)
    )
    if prompts and answers and global_batch and prompts * answers < global_batch:
        message = f"{values.option('rollout.batch_size')} {prompts} × {answers} answers is less than "
        message += f"{values.option(GLOBAL_BATCH)} {global_batch}: no step is ever taken"
        yield from values.setting_problem(
            "no_step",
            message,
            constraints.DYNAMIC_WITHOUT_STEP,
            GLOBAL_BATCH,
            sets={"global_batch": str(prompts * answers)},
        )
    budget, max_length = values.find_int("train.max_tokens_per_gpu"), values.find_int("data.max_len")
    ranks_per_row = values.ring_size * values.tensor_parallel
    if budget and max_length and max_length > budget * ranks_per_row:
        budget_option = values.option("train.max_tokens_per_gpu")
        message = f"a row may have {max_length} tokens, over {budget_option} {budget} × {ranks_per_row}: "
        message += "such a row gets its own micro batch, and its memory is not checked"
        yield from values.setting_problem(
            "ignores",
            message,
            constraints.DYNAMIC_ROW_OVER_BUDGET,
            "train.max_tokens_per_gpu",
            "data.max_len",
            mild=True,
        )


GLOBAL_BATCH = "train.batch_size"


def image_problems(values: Values) -> Iterator[SettingProblem]:
    """Check images with a critic or packing: refused, before a ring or dynamic batches can turn it on (0.10.0)."""
    name = "data.max_images_per_prompt"
    images = values.find_int(name)
    if not images or images <= 0:
        return
    if values.has_critic:
        yield from values.setting_problem(
            "refuses",
            f"{values.option(name)} {images} with a critic (estimator gae)",
            constraints.IMAGES_WITH_CRITIC,
            "algo.advantage.estimator",
            name,
            advice=(
                f"{values.option('algo.advantage.estimator')} reinforce_baseline, and more than one response per prompt"
            ),
        )
    without_packing = {**({"ring_size": "1"} if values.ring_size > 1 else {}), **drop_dynamic_batches(values)}
    if values.is_on("ds.packing_samples"):
        yield from values.setting_problem(
            "refuses",
            f"{values.option(name)} {images} with {values.option('ds.packing_samples')}",
            constraints.IMAGES_WITH_PACKING,
            "ds.packing_samples",
            sets={"packing": "off", **without_packing},
        )
    elif values.packed:
        cause = values.option("train.dynamic_batch_enable")
        if values.ring_size > 1:
            cause = f"{values.option('ds.ring_attn_size')} {values.ring_size}"
        yield from values.setting_problem(
            "wrong",
            f"{cause} enables packing after the check that refuses packing with images",
            constraints.IMAGES_BEFORE_PACKING,
            "ds.ring_attn_size",
            "train.dynamic_batch_enable",
            sets=without_packing,
        )


def drop_dynamic_batches(values: Values) -> dict[str, str]:
    """Return the setting that turns dynamic batches off; {} if they are not on."""
    return {values.option("train.dynamic_batch_enable"): DROP} if values.has_dynamic_batches else {}


def unequal_colocated_models(values: Values) -> Iterator[SettingProblem]:
    """Check for colocated models of different sizes: all models and vLLM, actor and reference, critic and reward."""
    actor_gpus, vllm_gpus = values.count_role_gpus("actor"), values.vllm_gpus
    colocate_all, is_async = values.is_on("train.colocate_all"), values.is_on("train.async_enable")
    if colocate_all and not is_async and actor_gpus and vllm_gpus and actor_gpus != vllm_gpus:
        message = f"{values.option('train.colocate_all')}: the actor has {actor_gpus} GPUs, vLLM {vllm_gpus}"
        ranges = constraints.COLOCATED_WITH_VLLM
        tensor_parallel = values.find_int("vllm.tensor_parallel_size") or 1
        engines = str(actor_gpus // tensor_parallel)
        sets = {values.option("vllm.num_engines"): engines} if actor_gpus % tensor_parallel == 0 else {}
        yield from values.setting_problem(
            "refuses",
            message,
            ranges,
            "vllm.num_engines",
            "train.colocate_all",
            sets=sets,
            advice="" if sets else "set engines × their tensor parallel size to the actor's GPUs",
        )
    shares_all = colocate_all and values.is_at_least(constraints.COLOCATE_ALL_SINCE)
    if (shares_all or values.is_on("train.colocate_actor_ref")) and values.has_reference:
        yield from _check_same_size(values, "actor", "ref", constraints.COLOCATED_ACTOR)
    if values.has_critic and values.is_on("train.colocate_critic_reward"):
        yield from _check_same_size(values, "critic", "reward", constraints.COLOCATED_CRITIC)


def _check_same_size(values: Values, first: str, second: str, ranges: Constraints) -> Iterator[SettingProblem]:
    roles = (first, second)
    sizes = [(values.find_int(f"{role}.num_nodes"), values.find_int(f"{role}.num_gpus_per_node")) for role in roles]
    if None in (*sizes[0], *sizes[1]) or sizes[0] == sizes[1]:
        return
    (nodes, gpus), (second_nodes, second_gpus) = sizes
    message = f"{first} and {second} share GPUs but differ: {nodes} nodes of {gpus} GPUs, "
    message += f"{second_nodes} of {second_gpus}"
    sets = {values.option(f"{second}.num_nodes"): str(nodes)}
    sets[values.option(f"{second}.num_gpus_per_node")] = str(gpus)
    yield from values.setting_problem(
        "refuses",
        message,
        ranges,
        *(f"{second}.num_gpus_per_node", f"{second}.num_nodes", f"{first}.num_gpus_per_node"),
        sets=sets,
    )


def baseline_over_one_answer(values: Values) -> Iterator[SettingProblem]:
    """Check for a baseline over one response: refused, for dr_grpo since 0.11.0; before, its advantages were all 0."""
    estimator, answers = values.find_text("algo.advantage.estimator"), values.find_int("rollout.n_samples_per_prompt")
    if estimator not in GROUPED or answers is None or answers > 1:
        return
    is_asserted = estimator != "dr_grpo" or values.is_at_least("0.11.0")
    option = values.option("rollout.n_samples_per_prompt")
    message = f"{estimator} with {option} {answers}" + ("" if is_asserted else ": every advantage is 0")
    ranges = constraints.BASELINE[estimator] if is_asserted else constraints.ADVANTAGE_OF_ZERO
    located_at = ("rollout.n_samples_per_prompt", "algo.advantage.estimator")
    consequence: Consequence = "refuses" if is_asserted else "wrong"
    yield from values.setting_problem(
        consequence, message, ranges, *located_at, advice=f"{option} 8, or another estimator"
    )


def too_few_sample_batches(values: Values) -> Iterator[SettingProblem]:
    """Check for fewer micro batches of answers than groups of actor processes, each of which needs one (0.7.2)."""
    names = ("rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.micro_batch_size")
    prompts, answers, micro_batch = (values.find_int(name) for name in names)
    actor_gpus = values.count_role_gpus("actor")
    if prompts is None or answers is None or not micro_batch or not actor_gpus:
        return
    groups = actor_gpus // values.ring_size // values.tensor_parallel
    if answers * prompts // micro_batch >= groups:
        return
    option = values.option("rollout.micro_batch_size")
    message = (
        f"{answers} × {prompts} answers in micro batches of {micro_batch} are fewer than {groups} groups of actors"
    )
    ranges = constraints.SAMPLE_BATCHES
    sets = {option: str(answers * prompts // groups)} if answers * prompts >= groups else {}
    yield from values.setting_problem(
        "refuses",
        message,
        ranges,
        "rollout.micro_batch_size",
        "rollout.batch_size",
        sets=sets,
        advice="" if sets else f"a larger {values.option('rollout.batch_size')}",
    )


def sleep_and_async_problems(values: Values) -> Iterator[SettingProblem]:
    """Check for sleep in asynchronous mode, and for partial rollouts without it.

    OpenRLHF switches sleep off without colocation, which changes nothing, because the engines share no GPU.
    """
    colocate_all, is_async = values.is_on("train.colocate_all"), values.is_on("train.async_enable")
    sleep, partial_rollout = values.option("vllm.enable_sleep"), values.option("train.partial_rollout_enable")
    async_option = values.option("train.async_enable")
    if values.is_on("vllm.enable_sleep") and colocate_all and is_async:
        yield from values.setting_problem(
            "refuses",
            f"{sleep} with {async_option}",
            constraints.SLEEP_WITH_ASYNC,
            "vllm.enable_sleep",
            sets={sleep: DROP},
        )
    if colocate_all and is_async:
        yield from values.setting_problem(
            "replaces",
            f"{values.option('train.colocate_all')} with {async_option}: vLLM gets separate GPUs",
            constraints.COLOCATION_WITH_ASYNC,
            "train.colocate_all",
            mild=True,
        )
    if values.is_on("train.partial_rollout_enable") and not is_async:
        yield from values.setting_problem(
            "refuses",
            f"{partial_rollout} without {async_option}",
            constraints.PARTIAL_WITHOUT_ASYNC,
            "train.partial_rollout_enable",
            sets={async_option: "on"},
        )
    zero_stage, deepspeed = values.find_int("ds.zero_stage"), values.installed_version("deepspeed")
    is_old = bool(deepspeed) and not is_known_at_least(deepspeed, "0.17.6")
    if values.is_on("ds.enable_sleep") and zero_stage != 3 and is_old and not values.is_on("ds.adam_offload"):
        yield from values.setting_problem(
            "refuses",
            f"{values.option('ds.enable_sleep')} with ZeRO stage {zero_stage} and deepspeed {deepspeed}",
            constraints.SLEEP_OF_DEEPSPEED,
            "ds.enable_sleep",
            advice='pip install "deepspeed>0.17.5"',
        )


def precision_unlike_vllm(values: Values) -> Iterator[SettingProblem]:
    """Check for weights not in bfloat16, vLLM's only dtype: the first weight transfer fails."""
    is_known = values.find_text("ds.param_dtype") or (values.model is not None and values.precision != "bf16")
    if is_known and values.precision != "bf16" and values.vllm_gpus != 0:
        message = f"{values.precision} alongside vLLM, whose weights are always bfloat16: "
        message += "the first weight transfer fails"
        yield from values.setting_problem(
            "refuses", message, constraints.PRECISION_UNLIKE_VLLM, "ds.param_dtype", sets={"precision": "bf16"}
        )


def vllm_too_old(values: Values) -> Iterator[SettingProblem]:
    """Check for a vLLM not newer than 0.8.5 (since 0.9.1), or than 0.10.0 with importance-sampling correction."""
    vllm = values.installed_version("vllm")
    if not vllm or values.vllm_gpus == 0:
        return
    if not is_known_at_least(vllm, "0.8.5.post1"):
        yield from values.setting_problem(
            "refuses", f"vllm {vllm}", constraints.VLLM_TOO_OLD, advice='pip install "vllm>0.8.5"'
        )
    corrects = values.find_text("algo.advantage.is_correction_level") in ("token", "seq")
    if corrects and not is_known_at_least(vllm, "0.10.0.post1"):
        yield from values.setting_problem(
            "refuses",
            f"importance-sampling correction with vllm {vllm}",
            constraints.VLLM_TOO_OLD_FOR_CORRECTION,
            CORRECTION_LEVEL,
            advice='pip install "vllm>0.10.0"',
        )


CORRECTION_LEVEL = "algo.advantage.is_correction_level"


def invalid_correction(values: Values) -> Iterator[SettingProblem]:
    """Check for clipped ratios other than the token's, a lower bound for a divergence, and three bounds (0.11.2)."""
    fields = ("level", "mode", "gating")
    level, mode, gating = (values.find_text(f"algo.advantage.is_correction_{field}") for field in fields)
    if mode == "clip" and (level == "seq" or gating not in ("ratio", None)):
        yield from values.setting_problem(
            "refuses",
            f"is_correction_mode clip with level {level} and gating {gating}",
            constraints.CLIP_OF_SEQUENCES,
            "algo.advantage.is_correction_mode",
            sets={values.option("algo.advantage.is_correction_mode"): "mask"},
        )
    if len(values.settings.get("algo.advantage.is_correction_threshold", ((), None))[0]) > 2:
        yield from values.setting_problem(
            "refuses",
            "is_correction_threshold with more than two numbers",
            constraints.THREE_THRESHOLDS,
            "algo.advantage.is_correction_threshold",
            advice="LOW HIGH",
        )
    bounds = (values.find_text("algo.advantage.is_correction_threshold") or "").strip("[]").replace(",", " ").split()
    lower_bound = bounds[0] if len(bounds) == 2 else "0"
    if gating in ("binary_kl", "tv") and level in ("token", "seq") and lower_bound.strip("0.") != "":
        yield from values.setting_problem(
            "refuses",
            f"is_correction_gating {gating} with a lower bound of {lower_bound}",
            constraints.LOWER_BOUND_OF_DIVERGENCE,
            "algo.advantage.is_correction_threshold",
            "algo.advantage.is_correction_gating",
            advice="--algo.advantage.is_correction_threshold with one number",
        )


def critic_without_reward_model(values: Values) -> Iterator[SettingProblem]:
    """Check for a critic without a name if there is no reward model whose name it could use."""
    has_reward_model = values.has_any("critic.model_name_or_path") or values.has_any("reward.model_name_or_path")
    if values.has_critic and not has_reward_model and not values.has_remote_reward:
        ranges = constraints.CRITIC_WITHOUT_REWARD_MODEL
        reward_model, reward_url = values.option("reward.model_name_or_path"), values.option("reward.remote_url")
        yield from values.setting_problem(
            "refuses",
            f"neither {reward_model} nor {reward_url}, and a critic",
            ranges,
            "algo.advantage.estimator",
            advice="name a reward model, a remote reward or a function",
        )


def evaluation_and_filtering_problems(values: Values) -> Iterator[SettingProblem]:
    """Check for evaluation or filtering without a remote reward, and for too many prompts without asynchronous mode."""
    evaluates = values.has_any("eval.dataset") and bool(values.find_text("eval.dataset"))
    if evaluates and not values.has_remote_reward:
        ranges: Constraints = constraints.EVALUATION_WITHOUT_REWARD
        advice = f"{values.option('reward.remote_url')} or {values.option('train.agent_func_path')}"
        message = f"{values.option('eval.dataset')} without a remote reward or an agent"
        yield from values.setting_problem("refuses", message, ranges, "eval.dataset", advice=advice)
    filtering = "algo.dynamic_filtering_enable"
    if values.is_on(filtering) and not values.has_remote_reward:
        ranges = constraints.FILTERING_WITHOUT_REWARD
        message = f"{values.option(filtering)} without a remote reward or an agent"
        yield from values.setting_problem("refuses", message, ranges, filtering, sets={values.option(filtering): DROP})
    elif values.is_on(filtering) and (values.find_int("rollout.n_samples_per_prompt") or 2) <= 1:
        ranges = constraints.FILTERING_OF_ONE_ANSWER
        message = f"{values.option(filtering)} with {values.option('rollout.n_samples_per_prompt')} 1"
        yield from values.setting_problem("refuses", message, ranges, filtering, sets={values.option(filtering): DROP})
    generated, prompts = values.find_int("rollout.vllm_generate_batch_size"), values.find_int("rollout.batch_size")
    is_async = values.is_on("train.async_enable")
    if generated and prompts and generated > prompts and not is_async:
        option = values.option("rollout.vllm_generate_batch_size")
        ranges = constraints.OVERSAMPLING_WITHOUT_ASYNC
        message = f"{option} {generated} over {values.option('rollout.batch_size')} {prompts} "
        message += f"without {values.option('train.async_enable')}"
        yield from values.setting_problem(
            "refuses", message, ranges, "rollout.vllm_generate_batch_size", sets={option: str(prompts)}
        )


REINFORCEMENT_CHECKS: tuple[Callable[[Values], Iterator[SettingProblem]], ...] = (
    missing_vllm_engines,
    dynamic_batch_problems,
    image_problems,
    unequal_colocated_models,
    baseline_over_one_answer,
    too_few_sample_batches,
    sleep_and_async_problems,
    precision_unlike_vllm,
    vllm_too_old,
    invalid_correction,
    critic_without_reward_model,
    evaluation_and_filtering_problems,
)
