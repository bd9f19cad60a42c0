"""What OpenRLHF does with settings of PPO, GRPO and REINFORCE++ (cli/train_ppo_ray.py) that it cannot honour.

Line numbers are those of the newest release that was read, 0.11.2; releases named are the first with the behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attncheck.core.job import DROP, Consequence, SettingProblem
from attncheck.lint.frameworks.openrlhf.values import Values, is_known_at_least

GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
VLLM_REQUIRED_SINCE = "0.8.0"  # 0.7.5 trainer/ppo_utils/experience_maker.py:632 generates by itself
PPO_CLI = "cli/train_ppo_ray.py"


def missing_vllm_engines(values: Values) -> Iterator[SettingProblem]:
    """A job without vLLM engines: packing asserts them, and from 0.8.0 on nothing else generates."""
    engines = values.text("vllm.num_engines")
    if engines is None or (engines and values.number("vllm.num_engines") != 0):
        return
    option = values.option("vllm.num_engines")
    sets = {option: str(values.number("actor.num_gpus_per_node") or 1)} if values.is_on("train.colocate_all") else {}
    advice = "" if sets else f"give {option}"
    if values.packed:
        evidence = f"{PPO_CLI}:705: Only support `--packing_samples` with vLLM; without the flag: TypeError, None > 0"
        located_at = ("vllm.num_engines", "ds.packing_samples", "train.dynamic_batch_enable", "ds.ring_attn_size")
        yield from values.setting_problem(
            "refuses", f"packing without {option}", evidence, *located_at, sets=sets, advice=advice
        )
    elif values.is_at_least(VLLM_REQUIRED_SINCE):
        evidence = "trainer/ppo_utils/samples_generator.py:213-219: an empty heap of engines"
        message = f"no {option}: nothing generates"
        yield from values.setting_problem("refuses", message, evidence, "vllm.num_engines", sets=sets, advice=advice)


def dynamic_batch_problems(values: Values) -> Iterator[SettingProblem]:
    """Dynamic batches turn packing on; a row over the budget gets a micro batch of its own; too few rows: no step."""
    if not values.has_dynamic_batches:
        return
    option = values.option("train.dynamic_batch_enable")
    if not values.is_on("ds.packing_samples"):
        evidence = f"{PPO_CLI}:691: Please --packing_samples to accelerate when --use_dynamic_batch is enabled"
        message = f"{option} turns {values.option('ds.packing_samples')} on"
        sets = {"packing": "on"}
        yield from values.setting_problem(
            "replaces", message, evidence, "train.dynamic_batch_enable", sets=sets, mild=True
        )
    prompts, answers, global_batch = (
        values.number(name) for name in ("rollout.batch_size", "rollout.n_samples_per_prompt", GLOBAL_BATCH)
    )
    if prompts and answers and global_batch and prompts * answers < global_batch:
        message = f"{values.option('rollout.batch_size')} {prompts} × {answers} answers is less than "
        message += f"{values.option(GLOBAL_BATCH)} {global_batch}: no step is ever taken"
        evidence = "trainer/ppo_utils/replay_buffer.py:102-114, num_steps = 0"
        yield from values.setting_problem(
            "no_step", message, evidence, GLOBAL_BATCH, sets={"global_batch": str(prompts * answers)}
        )
    budget, max_length = values.number("train.max_tokens_per_gpu"), values.number("data.max_len")
    ranks_per_row = values.ring_size * values.tensor_parallel
    if budget and max_length and max_length > budget * ranks_per_row:
        budget_option = values.option("train.max_tokens_per_gpu")
        message = f"a row may have {max_length} tokens, over {budget_option} {budget} × {ranks_per_row}: "
        message += "such a row gets a micro batch of its own, and no check of memory"
        evidence = "utils/seqlen_balancing.py:234-247"
        yield from values.setting_problem(
            "ignores", message, evidence, "train.max_tokens_per_gpu", "data.max_len", mild=True
        )


GLOBAL_BATCH = "train.batch_size"


def image_problems(values: Values) -> Iterator[SettingProblem]:
    """Images with a critic or packing: refused, but before a ring or dynamic batches turn packing on (0.10.0)."""
    name = "data.max_images_per_prompt"
    images = values.number(name)
    if not images or images <= 0:
        return
    if values.has_critic:
        message = f"{values.option(name)} {images} with a critic (estimator gae)"
        evidence = f"{PPO_CLI}:661: VLM training does not support critic model. "
        evidence += "Use --advantage_estimator other than 'gae'"
        advice = f"{values.option('algo.advantage.estimator')} reinforce_baseline, and more than one answer to a prompt"
        yield from values.setting_problem("refuses", message, evidence, "algo.advantage.estimator", name, advice=advice)
    without_packing = {**({"ring_size": "1"} if values.ring_size > 1 else {}), **drop_dynamic_batches(values)}
    if values.is_on("ds.packing_samples"):
        message = f"{values.option(name)} {images} with {values.option('ds.packing_samples')}"
        evidence = f"{PPO_CLI}:666: VLM training does not support --packing_samples. "
        evidence += "Packing collapses the batch dimension"
        sets = {"packing": "off", **without_packing}
        yield from values.setting_problem("refuses", message, evidence, "ds.packing_samples", sets=sets)
    elif values.packed:
        cause = values.option("train.dynamic_batch_enable")
        if values.ring_size > 1:
            cause = f"{values.option('ds.ring_attn_size')} {values.ring_size}"
        message = f"{cause} turns packing on after the check that refuses packing with images"
        evidence = f"{PPO_CLI}:666 runs before :686 and :691; packing parts image tokens from their pixel_values"
        located_at = ("ds.ring_attn_size", "train.dynamic_batch_enable")
        yield from values.setting_problem("wrong", message, evidence, *located_at, sets=without_packing)


def drop_dynamic_batches(values: Values) -> dict[str, str]:
    """Return the setting that turns dynamic batches off, {} where they are not on."""
    return {values.option("train.dynamic_batch_enable"): DROP} if values.has_dynamic_batches else {}


def unequal_colocated_models(values: Values) -> Iterator[SettingProblem]:
    """Colocated models of different sizes: all with vLLM, actor and reference, critic and reward."""
    actor_gpus, vllm_gpus = values.count_role_gpus("actor"), values.vllm_gpus
    colocate_all, is_async = values.is_on("train.colocate_all"), values.is_on("train.async_enable")
    if colocate_all and not is_async and actor_gpus and vllm_gpus and actor_gpus != vllm_gpus:
        message = f"{values.option('train.colocate_all')}: the actor has {actor_gpus} GPUs, vLLM {vllm_gpus}"
        evidence = f"{PPO_CLI}:56: actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * "
        evidence += "vllm_tensor_parallel_size"
        tensor_parallel = values.number("vllm.tensor_parallel_size") or 1
        engines = str(actor_gpus // tensor_parallel)
        sets = {values.option("vllm.num_engines"): engines} if actor_gpus % tensor_parallel == 0 else {}
        advice = "" if sets else "make engines × their tensor parallel size the actor's GPUs"
        located_at = ("vllm.num_engines", "train.colocate_all")
        yield from values.setting_problem("refuses", message, evidence, *located_at, sets=sets, advice=advice)
    if (colocate_all or values.is_on("train.colocate_actor_ref")) and values.has_reference:
        yield from _check_same_size(values, "actor", "ref", 41)
    if values.has_critic and values.is_on("train.colocate_critic_reward"):
        yield from _check_same_size(values, "critic", "reward", 117)


def _check_same_size(values: Values, first: str, second: str, line: int) -> Iterator[SettingProblem]:
    roles = (first, second)
    sizes = [(values.number(f"{role}.num_nodes"), values.number(f"{role}.num_gpus_per_node")) for role in roles]
    if None in (*sizes[0], *sizes[1]) or sizes[0] == sizes[1]:
        return
    (nodes, gpus), (second_nodes, second_gpus) = sizes
    message = f"{first} and {second} share GPUs and differ: {nodes} nodes of {gpus} GPUs, "
    message += f"{second_nodes} of {second_gpus}"
    evidence = f"{PPO_CLI}:{line}: num_nodes and num_gpus_per_node must be the same when colocate "
    evidence += f"{first} and {second} model"
    sets = {values.option(f"{second}.num_nodes"): str(nodes)}
    sets[values.option(f"{second}.num_gpus_per_node")] = str(gpus)
    located_at = (f"{second}.num_gpus_per_node", f"{second}.num_nodes", f"{first}.num_gpus_per_node")
    yield from values.setting_problem("refuses", message, evidence, *located_at, sets=sets)


def baseline_over_one_answer(values: Values) -> Iterator[SettingProblem]:
    """A baseline over one answer: asserted, of dr_grpo since 0.11.0; before that its advantages were all 0."""
    estimator, answers = values.text("algo.advantage.estimator"), values.number("rollout.n_samples_per_prompt")
    if estimator not in GROUPED or answers is None or answers > 1:
        return
    is_asserted = estimator != "dr_grpo" or values.is_at_least("0.11.0")
    option = values.option("rollout.n_samples_per_prompt")
    message = f"{estimator} with {option} {answers}" + ("" if is_asserted else ": every advantage is 0")
    evidence = f"{PPO_CLI}:656: {estimator} requires n_samples_per_prompt > 1"
    located_at = ("rollout.n_samples_per_prompt", "algo.advantage.estimator")
    consequence: Consequence = "refuses" if is_asserted else "wrong"
    advice = f"{option} 8, or another estimator"
    yield from values.setting_problem(consequence, message, evidence, *located_at, advice=advice)


def too_few_sample_batches(values: Values) -> Iterator[SettingProblem]:
    """Fewer micro batches of answers than groups of actor processes, each of which needs one (0.7.2)."""
    names = ("rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.micro_batch_size")
    prompts, answers, micro_batch = (values.number(name) for name in names)
    actor_gpus = values.count_role_gpus("actor")
    if prompts is None or answers is None or not micro_batch or not actor_gpus or not values.is_at_least("0.7.2"):
        return
    groups = actor_gpus // values.ring_size // values.tensor_parallel
    if answers * prompts // micro_batch >= groups:
        return
    option = values.option("rollout.micro_batch_size")
    message = (
        f"{answers} × {prompts} answers in micro batches of {micro_batch} are fewer than {groups} groups of actors"
    )
    evidence = f"{PPO_CLI}:757: The number of sample batches must be greater than or equal to "
    evidence += "the effective number of actor"
    sets = {option: str(answers * prompts // groups)} if answers * prompts >= groups else {}
    advice = "" if sets else f"a larger {values.option('rollout.batch_size')}"
    located_at = ("rollout.micro_batch_size", "rollout.batch_size")
    yield from values.setting_problem("refuses", message, evidence, *located_at, sets=sets, advice=advice)


def sleep_and_async_problems(values: Values) -> Iterator[SettingProblem]:
    """Sleep without colocation or with asynchrony; partial rollouts without asynchrony."""
    colocate_all, is_async = values.is_on("train.colocate_all"), values.is_on("train.async_enable")
    sleep, partial_rollout = values.option("vllm.enable_sleep"), values.option("train.partial_rollout_enable")
    async_option = values.option("train.async_enable")
    if values.is_on("vllm.enable_sleep") and not colocate_all:
        evidence = f"{PPO_CLI}:707: Set args.vllm.enable_sleep to False when args.train.colocate_all is disabled"
        message = f"{sleep} without {values.option('train.colocate_all')}"
        yield from values.setting_problem(
            "ignores", message, evidence, "vllm.enable_sleep", sets={sleep: DROP}, mild=True
        )
    elif values.is_on("vllm.enable_sleep") and is_async:
        evidence = f"{PPO_CLI}:715: Async RLHF is not supported with --vllm.enable_sleep"
        message = f"{sleep} with {async_option}"
        yield from values.setting_problem("refuses", message, evidence, "vllm.enable_sleep", sets={sleep: DROP})
    if colocate_all and is_async:
        evidence = f"{PPO_CLI}:711: Using --colocate_all_models in async RLHF only colocates DeepSpeed models"
        message = f"{values.option('train.colocate_all')} with {async_option}: vLLM gets GPUs of its own"
        yield from values.setting_problem("replaces", message, evidence, "train.colocate_all", mild=True)
    if values.is_on("train.partial_rollout_enable") and not is_async:
        evidence = f"{PPO_CLI}:718: --train.partial_rollout_enable requires --train.async_enable"
        message = f"{partial_rollout} without {async_option}"
        sets = {async_option: "on"}
        yield from values.setting_problem("refuses", message, evidence, "train.partial_rollout_enable", sets=sets)
    zero_stage, deepspeed = values.number("ds.zero_stage"), values.installed_version("deepspeed")
    is_old = bool(deepspeed) and not is_known_at_least(deepspeed, "0.17.6")
    if values.is_on("ds.enable_sleep") and zero_stage != 3 and is_old and values.is_at_least("0.8.10"):
        evidence = "utils/deepspeed/deepspeed_utils.py:159: Only Zero stage 3 is currently supported"
        message = f"{values.option('ds.enable_sleep')} with ZeRO stage {zero_stage} and deepspeed {deepspeed}"
        advice = 'pip install "deepspeed>0.17.5"'
        yield from values.setting_problem("refuses", message, evidence, "ds.enable_sleep", advice=advice)


def precision_unlike_vllm(values: Values) -> Iterator[SettingProblem]:
    """Weights of another dtype than vLLM's, which are always bfloat16: the first transfer of weights refuses them."""
    is_known = values.text("ds.param_dtype") or (values.model is not None and values.precision != "bf16")
    if is_known and values.precision != "bf16" and values.vllm_gpus != 0:
        message = f"{values.precision} beside vLLM, whose weights are always bfloat16: "
        message += "the first transfer of weights fails"
        evidence = "trainer/ray/vllm_engine.py:273 dtype bfloat16; trainer/ray/vllm_worker_wrap.py:39: mismatch dtype"
        yield from values.setting_problem("refuses", message, evidence, "ds.param_dtype", sets={"precision": "bf16"})


def vllm_too_old(values: Values) -> Iterator[SettingProblem]:
    """vLLM not newer than 0.8.5 (since 0.9.1), or than 0.10.0 with correction of importance sampling."""
    vllm = values.installed_version("vllm")
    if not vllm or values.vllm_gpus == 0:
        return
    if values.is_at_least("0.9.1") and not is_known_at_least(vllm, "0.8.5.post1"):
        evidence = "trainer/ray/vllm_engine.py:91: Streaming VLLM version must be greater than 0.8.5"
        yield from values.setting_problem("refuses", f"vllm {vllm}", evidence, advice='pip install "vllm>0.8.5"')
    corrects = values.text("algo.advantage.is_correction_level") in ("token", "seq")
    if corrects and not is_known_at_least(vllm, "0.10.0.post1") and values.is_at_least("0.8.9"):
        evidence = "trainer/ray/vllm_engine.py:296: vLLM > 0.10.0 is required for logprobs_mode"
        message = f"correction of importance sampling with vllm {vllm}"
        yield from values.setting_problem(
            "refuses", message, evidence, CORRECTION_LEVEL, advice='pip install "vllm>0.10.0"'
        )


CORRECTION_LEVEL = "algo.advantage.is_correction_level"


def invalid_correction(values: Values) -> Iterator[SettingProblem]:
    """Clipping of another thing than the token's ratio; a lower bound of a divergence; three bounds (0.11.2)."""
    if not values.is_at_least("0.11.2"):
        return
    fields = ("level", "mode", "gating")
    level, mode, gating = (values.text(f"algo.advantage.is_correction_{field}") for field in fields)
    if mode == "clip" and (level == "seq" or gating not in ("ratio", None)):
        evidence = "models/loss.py:166: is_correction_mode=clip requires is_correction_level=token and gating=ratio"
        message = f"is_correction_mode clip with level {level} and gating {gating}"
        sets = {values.option("algo.advantage.is_correction_mode"): "mask"}
        yield from values.setting_problem("refuses", message, evidence, "algo.advantage.is_correction_mode", sets=sets)
    if len(values.settings.get("algo.advantage.is_correction_threshold", ((), None))[0]) > 2:
        evidence = f"{PPO_CLI}:641: --algo.advantage.is_correction_threshold takes HIGH or LOW HIGH"
        message = "is_correction_threshold with more than two numbers"
        yield from values.setting_problem(
            "refuses", message, evidence, "algo.advantage.is_correction_threshold", advice="LOW HIGH"
        )
    bounds = (values.text("algo.advantage.is_correction_threshold") or "").strip("[]").replace(",", " ").split()
    lower_bound = bounds[0] if len(bounds) == 2 else "0"
    if gating in ("binary_kl", "tv") and level in ("token", "seq") and lower_bound.strip("0.") != "":
        evidence = "models/loss.py:171: is_correction_gating takes an upper bound only (a single delta)"
        message = f"is_correction_gating {gating} with a lower bound of {lower_bound}"
        advice = "--algo.advantage.is_correction_threshold with one number"
        located_at = ("algo.advantage.is_correction_threshold", "algo.advantage.is_correction_gating")
        yield from values.setting_problem("refuses", message, evidence, *located_at, advice=advice)


def critic_without_reward_model(values: Values) -> Iterator[SettingProblem]:
    """A critic without a name of its own and without a reward model, whose name it would take."""
    has_reward_model = values.is_written("critic.model_name_or_path") or values.is_written("reward.model_name_or_path")
    if values.has_critic and not has_reward_model and not values.has_remote_reward:
        evidence = f"{PPO_CLI}:647: args.reward.model_name_or_path.split on None"
        reward_model, reward_url = values.option("reward.model_name_or_path"), values.option("reward.remote_url")
        message = f"neither {reward_model} nor {reward_url}, and a critic"
        advice = "name a reward model, a remote reward or a function"
        yield from values.setting_problem("refuses", message, evidence, "algo.advantage.estimator", advice=advice)


def evaluation_and_filtering_problems(values: Values) -> Iterator[SettingProblem]:
    """Evaluation or filtering without a remote reward; more prompts than a step takes without asynchrony."""
    evaluates = values.is_written("eval.dataset") and bool(values.text("eval.dataset"))
    if evaluates and not values.has_remote_reward and values.is_at_least("0.7.0"):
        evidence = f"{PPO_CLI}:721: `--eval_dataset` requires either `--remote_rm_url` or `--agent_func_path`"
        advice = f"{values.option('reward.remote_url')} or {values.option('train.agent_func_path')}"
        message = f"{values.option('eval.dataset')} without a remote reward or an agent"
        yield from values.setting_problem("refuses", message, evidence, "eval.dataset", advice=advice)
    filtering = "algo.dynamic_filtering_enable"
    if values.is_on(filtering) and not values.has_remote_reward:
        evidence = f"{PPO_CLI}:752: remote_rm_url or agent_func_path must be specified when using dynamic filtering"
        message = f"{values.option(filtering)} without a remote reward or an agent"
        yield from values.setting_problem(
            "refuses", message, evidence, filtering, sets={values.option(filtering): DROP}
        )
    elif values.is_on(filtering) and (values.number("rollout.n_samples_per_prompt") or 2) <= 1:
        evidence = f"{PPO_CLI}:755: n_samples_per_prompt must be greater than 1 when using dynamic filtering"
        message = f"{values.option(filtering)} with {values.option('rollout.n_samples_per_prompt')} 1"
        yield from values.setting_problem(
            "refuses", message, evidence, filtering, sets={values.option(filtering): DROP}
        )
    generated, prompts = values.number("rollout.vllm_generate_batch_size"), values.number("rollout.batch_size")
    is_async = values.is_on("train.async_enable")
    if generated and prompts and generated > prompts and not is_async and values.is_at_least("0.10.0"):
        option = values.option("rollout.vllm_generate_batch_size")
        evidence = f"{PPO_CLI}:742: over-sampling needs async queue to buffer extra batches"
        message = f"{option} {generated} over {values.option('rollout.batch_size')} {prompts} "
        message += f"without {values.option('train.async_enable')}"
        yield from values.setting_problem(
            "refuses", message, evidence, "rollout.vllm_generate_batch_size", sets={option: str(prompts)}
        )


REINFORCEMENT_CHECKS: tuple[Callable[[Values], Iterator[SettingProblem]], ...] = (
    *(missing_vllm_engines, dynamic_batch_problems, image_problems, unequal_colocated_models),
    *(baseline_over_one_answer, too_few_sample_batches, sleep_and_async_problems, precision_unlike_vllm),
    *(vllm_too_old, invalid_correction, critic_without_reward_model, evaluation_and_filtering_problems),
)
