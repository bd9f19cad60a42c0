"""What OpenRLHF does with settings of PPO, GRPO and REINFORCE++ (cli/train_ppo_ray.py) that it cannot serve.

Lines are those of the newest release that was read, 0.11.2; releases named are the first with the behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attncheck.core.job import DROP, SettingProblem
from attncheck.lint.frameworks.openrlhf.values import Values, at_least

GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
WITHOUT_VLLM_NO_MORE = "0.8.0"  # 0.7.5 trainer/ppo_utils/experience_maker.py:632 generates by itself
CLI = "cli/train_ppo_ray.py"


def no_engines(v: Values) -> Iterator[SettingProblem]:
    """Packing asserts vLLM engines, and from 0.8.0 on nothing else generates."""
    count = v.text("vllm.num_engines")
    if count is None or (count and v.number("vllm.num_engines") != 0):
        return
    name = v.local("vllm.num_engines")
    engines = {name: str(v.number("actor.num_gpus_per_node") or 1)} if v.on("train.colocate_all") else {}
    advice = "" if engines else f"give {name}"
    if v.packed:
        where = f"{CLI}:705: Only support `--packing_samples` with vLLM; without the flag: TypeError, None > 0"
        at = ("vllm.num_engines", "ds.packing_samples", "train.dynamic_batch_enable", "ds.ring_attn_size")
        yield from v.says("refuses", f"packing without {name}", where, *at, sets=engines, advice=advice)
    elif v.reaches(WITHOUT_VLLM_NO_MORE):
        where = "trainer/ppo_utils/samples_generator.py:213-219: an empty heap of engines"
        message = f"no {name}: nothing generates"
        yield from v.says("refuses", message, where, "vllm.num_engines", sets=engines, advice=advice)


def dynamic_batches(v: Values) -> Iterator[SettingProblem]:
    """Dynamic batches turn packing on; a row over the budget gets a micro batch of its own; too few rows: no step."""
    if not v.dynamic:
        return
    name = v.local("train.dynamic_batch_enable")
    if not v.on("ds.packing_samples"):
        where = f"{CLI}:691: Please --packing_samples to accelerate when --use_dynamic_batch is enabled"
        message = f"{name} turns {v.local('ds.packing_samples')} on"
        sets = {"packing": "on"}
        yield from v.says("replaces", message, where, "train.dynamic_batch_enable", sets=sets, mild=True)
    rollout, each, whole = (v.number(n) for n in ("rollout.batch_size", "rollout.n_samples_per_prompt", BATCH))
    if rollout and each and whole and rollout * each < whole:
        message = f"{v.local('rollout.batch_size')} {rollout} × {each} answers is less than {v.local(BATCH)} {whole}: "
        message += "no step is ever taken"
        where = "trainer/ppo_utils/replay_buffer.py:102-114, num_steps = 0"
        yield from v.says("no_step", message, where, BATCH, sets={"global_batch": str(rollout * each)})
    budget, length = v.number("train.max_tokens_per_gpu"), v.number("data.max_len")
    shares = v.ring * v.tensor_parallel
    if budget and length and length > budget * shares:
        message = f"a row may have {length} tokens, over {v.local('train.max_tokens_per_gpu')} {budget} × {shares}: "
        message += "such a row gets a micro batch of its own, and no check of memory"
        where = "utils/seqlen_balancing.py:234-247"
        yield from v.says("ignores", message, where, "train.max_tokens_per_gpu", "data.max_len", mild=True)


BATCH = "train.batch_size"


def vision(v: Values) -> Iterator[SettingProblem]:
    """Images: no critic, no packing, checked before a ring or dynamic batches turn packing on (0.10.0)."""
    name = "data.max_images_per_prompt"
    images = v.number(name)
    if not images or images <= 0:
        return
    if v.critic:
        message = f"{v.local(name)} {images} with a critic (estimator gae)"
        where = f"{CLI}:661: VLM training does not support critic model. Use --advantage_estimator other than 'gae'"
        advice = f"{v.local('algo.advantage.estimator')} reinforce_baseline, and more than one answer to a prompt"
        yield from v.says("refuses", message, where, "algo.advantage.estimator", name, advice=advice)
    if v.on("ds.packing_samples"):
        message = f"{v.local(name)} {images} with {v.local('ds.packing_samples')}"
        where = f"{CLI}:666: VLM training does not support --packing_samples. Packing collapses the batch dimension"
        sets = {"packing": "off", **({"ring_size": "1"} if v.ring > 1 else {}), **without_dynamic(v)}
        yield from v.says("refuses", message, where, "ds.packing_samples", sets=sets)
    elif v.packed:
        why = f"{v.local('ds.ring_attn_size')} {v.ring}" if v.ring > 1 else v.local("train.dynamic_batch_enable")
        message = f"{why} turns packing on after the check that refuses packing with images"
        where = f"{CLI}:666 runs before :686 and :691; packing parts image tokens from their pixel_values"
        sets = {**({"ring_size": "1"} if v.ring > 1 else {}), **without_dynamic(v)}
        at = ("ds.ring_attn_size", "train.dynamic_batch_enable")
        yield from v.says("wrong", message, where, *at, sets=sets)


def without_dynamic(v: Values) -> dict[str, str]:
    """Return the setting that takes dynamic batches out, where they are on."""
    return {v.local("train.dynamic_batch_enable"): DROP} if v.dynamic else {}


def places(v: Values) -> Iterator[SettingProblem]:
    """Colocated models must be of the same size: all with vLLM, actor and reference, critic and reward."""
    actor, engines = v.processes("actor"), v.engines
    every, asynchronous = v.on("train.colocate_all"), v.on("train.async_enable")
    if every and not asynchronous and actor and engines and actor != engines:
        message = f"{v.local('train.colocate_all')}: the actor has {actor} GPUs, vLLM {engines}"
        where = f"{CLI}:56: actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * "
        where += "vllm_tensor_parallel_size"
        size = v.number("vllm.tensor_parallel_size") or 1
        sets = {v.local("vllm.num_engines"): str(actor // size)} if actor % size == 0 else {}
        advice = "" if sets else "make engines × their tensor parallel size the actor's GPUs"
        at = ("vllm.num_engines", "train.colocate_all")
        yield from v.says("refuses", message, where, *at, sets=sets, advice=advice)
    if (every or v.on("train.colocate_actor_ref")) and v.reference:
        yield from _same_size(v, "actor", "ref", 41)
    if v.critic and v.on("train.colocate_critic_reward"):
        yield from _same_size(v, "critic", "reward", 117)


def _same_size(v: Values, one: str, other: str, line: int) -> Iterator[SettingProblem]:
    sizes = [(v.number(f"{role}.num_nodes"), v.number(f"{role}.num_gpus_per_node")) for role in (one, other)]
    if None in (*sizes[0], *sizes[1]) or sizes[0] == sizes[1]:
        return
    (nodes, gpus), (there, those) = sizes
    message = f"{one} and {other} share GPUs and differ: {nodes} nodes of {gpus} GPUs, {there} of {those}"
    where = f"{CLI}:{line}: num_nodes and num_gpus_per_node must be the same when colocate {one} and {other} model"
    sets = {v.local(f"{other}.num_nodes"): str(nodes), v.local(f"{other}.num_gpus_per_node"): str(gpus)}
    at = (f"{other}.num_gpus_per_node", f"{other}.num_nodes", f"{one}.num_gpus_per_node")
    yield from v.says("refuses", message, where, *at, sets=sets)


def one_answer(v: Values) -> Iterator[SettingProblem]:
    """A baseline over one answer: asserted, of dr_grpo since 0.11.0; before that its advantages were all 0."""
    estimator, each = v.text("algo.advantage.estimator"), v.number("rollout.n_samples_per_prompt")
    if estimator not in GROUPED or each is None or each > 1:
        return
    checked = estimator != "dr_grpo" or v.reaches("0.11.0")
    name = v.local("rollout.n_samples_per_prompt")
    message = f"{estimator} with {name} {each}" + ("" if checked else ": every advantage is 0")
    where = f"{CLI}:656: {estimator} requires n_samples_per_prompt > 1"
    at = ("rollout.n_samples_per_prompt", "algo.advantage.estimator")
    yield from v.says("refuses" if checked else "wrong", message, where, *at, advice=f"{name} 8, or another estimator")


def sample_batches(v: Values) -> Iterator[SettingProblem]:
    """Every group of actor processes needs a micro batch of answers (0.7.2)."""
    rollout, each, micro = (
        v.number(n) for n in ("rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.micro_batch_size")
    )
    actor = v.processes("actor")
    if rollout is None or each is None or not micro or not actor or not v.reaches("0.7.2"):
        return
    groups = actor // v.ring // v.tensor_parallel
    if each * rollout // micro >= groups:
        return
    name = v.local("rollout.micro_batch_size")
    message = f"{each} × {rollout} answers in micro batches of {micro} are fewer than {groups} groups of actors"
    where = f"{CLI}:757: The number of sample batches must be greater than or equal to the effective number of actor"
    sets = {name: str(each * rollout // groups)} if each * rollout >= groups else {}
    advice = "" if sets else f"a larger {v.local('rollout.batch_size')}"
    at = ("rollout.micro_batch_size", "rollout.batch_size")
    yield from v.says("refuses", message, where, *at, sets=sets, advice=advice)


def sleeping(v: Values) -> Iterator[SettingProblem]:
    """Sleep is for colocated, synchronous jobs; partial rollouts are for asynchronous ones."""
    every, asynchronous = v.on("train.colocate_all"), v.on("train.async_enable")
    sleep, partial = v.local("vllm.enable_sleep"), v.local("train.partial_rollout_enable")
    if v.on("vllm.enable_sleep") and not every:
        where = f"{CLI}:707: Set args.vllm.enable_sleep to False when args.train.colocate_all is disabled"
        message = f"{sleep} without {v.local('train.colocate_all')}"
        yield from v.says("ignores", message, where, "vllm.enable_sleep", sets={sleep: DROP}, mild=True)
    elif v.on("vllm.enable_sleep") and asynchronous:
        where = f"{CLI}:715: Async RLHF is not supported with --vllm.enable_sleep"
        message = f"{sleep} with {v.local('train.async_enable')}"
        yield from v.says("refuses", message, where, "vllm.enable_sleep", sets={sleep: DROP})
    if every and asynchronous:
        where = f"{CLI}:711: Using --colocate_all_models in async RLHF only colocates DeepSpeed models"
        message = f"{v.local('train.colocate_all')} with {v.local('train.async_enable')}: vLLM gets GPUs of its own"
        yield from v.says("replaces", message, where, "train.colocate_all", mild=True)
    if v.on("train.partial_rollout_enable") and not asynchronous:
        where = f"{CLI}:718: --train.partial_rollout_enable requires --train.async_enable"
        yield from v.says(
            "refuses", f"{partial} without {v.local('train.async_enable')}", where, "train.partial_rollout_enable",
            sets={v.local("train.async_enable"): "on"},
        )  # fmt: skip
    zero, here = v.number("ds.zero_stage"), v.installed("deepspeed")
    if v.on("ds.enable_sleep") and zero != 3 and here and not at_least(here, "0.17.6") and v.reaches("0.8.10"):
        where = "utils/deepspeed/deepspeed_utils.py:159: Only Zero stage 3 is currently supported"
        message = f"{v.local('ds.enable_sleep')} with ZeRO stage {zero} and deepspeed {here}"
        advice = 'pip install "deepspeed>0.17.5"'
        yield from v.says("refuses", message, where, "ds.enable_sleep", advice=advice)


def half_precision(v: Values) -> Iterator[SettingProblem]:
    """vLLM's weights are bfloat16 whatever the job's: the first transfer of weights refuses others."""
    told = v.text("ds.param_dtype") or (v.model is not None and v.precision != "bf16")
    if told and v.precision != "bf16" and v.engines != 0:
        message = f"{v.precision} beside vLLM, whose weights are always bfloat16: the first transfer of weights fails"
        where = "trainer/ray/vllm_engine.py:273 dtype bfloat16; trainer/ray/vllm_worker_wrap.py:39: mismatch dtype"
        yield from v.says("refuses", message, where, "ds.param_dtype", sets={"precision": "bf16"})


def old_vllm(v: Values) -> Iterator[SettingProblem]:
    """vLLM newer than 0.8.5 (since 0.9.1), than 0.10.0 for the correction of importance sampling."""
    here = v.installed("vllm")
    if not here or v.engines == 0:
        return
    if v.reaches("0.9.1") and not at_least(here, "0.8.5.post1"):
        where = "trainer/ray/vllm_engine.py:91: Streaming VLLM version must be greater than 0.8.5"
        yield from v.says("refuses", f"vllm {here}", where, advice='pip install "vllm>0.8.5"')
    corrects = v.text("algo.advantage.is_correction_level") in ("token", "seq")
    if corrects and not at_least(here, "0.10.0.post1") and v.reaches("0.8.9"):
        where = "trainer/ray/vllm_engine.py:296: vLLM > 0.10.0 is required for logprobs_mode"
        message = f"correction of importance sampling with vllm {here}"
        yield from v.says("refuses", message, where, LEVEL, advice='pip install "vllm>0.10.0"')


LEVEL = "algo.advantage.is_correction_level"


def correction(v: Values) -> Iterator[SettingProblem]:
    """Clipping is for the token's ratio; a divergence is bounded from above alone (0.11.2)."""
    if not v.reaches("0.11.2"):
        return
    level, mode, gating = (v.text(f"algo.advantage.is_correction_{each}") for each in ("level", "mode", "gating"))
    if mode == "clip" and (level == "seq" or gating not in ("ratio", None)):
        where = "models/loss.py:166: is_correction_mode=clip requires is_correction_level=token and gating=ratio"
        message = f"is_correction_mode clip with level {level} and gating {gating}"
        sets = {v.local("algo.advantage.is_correction_mode"): "mask"}
        yield from v.says("refuses", message, where, "algo.advantage.is_correction_mode", sets=sets)
    if len(v.given.get("algo.advantage.is_correction_threshold", ((), None))[0]) > 2:
        where = f"{CLI}:641: --algo.advantage.is_correction_threshold takes HIGH or LOW HIGH"
        message = "is_correction_threshold with more than two numbers"
        yield from v.says("refuses", message, where, "algo.advantage.is_correction_threshold", advice="LOW HIGH")
    bounds = (v.text("algo.advantage.is_correction_threshold") or "").strip("[]").replace(",", " ").split()
    low = bounds[0] if len(bounds) == 2 else "0"
    if gating in ("binary_kl", "tv") and level in ("token", "seq") and low.strip("0.") != "":
        where = "models/loss.py:171: is_correction_gating takes an upper bound only (a single delta)"
        message = f"is_correction_gating {gating} with a lower bound of {low}"
        advice = "--algo.advantage.is_correction_threshold with one number"
        at = ("algo.advantage.is_correction_threshold", "algo.advantage.is_correction_gating")
        yield from v.says("refuses", message, where, *at, advice=advice)


def no_reward(v: Values) -> Iterator[SettingProblem]:
    """A critic is made of the reward model's name where none is given for it."""
    named = v.wrote("critic.model_name_or_path") or v.wrote("reward.model_name_or_path")
    if v.critic and not named and not v.remote_reward:
        where = f"{CLI}:647: args.reward.model_name_or_path.split on None"
        message = f"neither {v.local('reward.model_name_or_path')} nor {v.local('reward.remote_url')}, and a critic"
        advice = "name a reward model, a remote reward or a function"
        yield from v.says("refuses", message, where, "algo.advantage.estimator", advice=advice)


def data(v: Values) -> Iterator[SettingProblem]:
    """Evaluation and filtering want rewards from elsewhere; more prompts than a step takes want asynchrony."""
    if v.wrote("eval.dataset") and v.text("eval.dataset") and not v.remote_reward and v.reaches("0.7.0"):
        where = f"{CLI}:721: `--eval_dataset` requires either `--remote_rm_url` or `--agent_func_path`"
        advice = f"{v.local('reward.remote_url')} or {v.local('train.agent_func_path')}"
        message = f"{v.local('eval.dataset')} without a remote reward or an agent"
        yield from v.says("refuses", message, where, "eval.dataset", advice=advice)
    filtering = "algo.dynamic_filtering_enable"
    if v.on(filtering) and not v.remote_reward:
        where = f"{CLI}:752: remote_rm_url or agent_func_path must be specified when using dynamic filtering"
        message = f"{v.local(filtering)} without a remote reward or an agent"
        yield from v.says("refuses", message, where, filtering, sets={v.local(filtering): DROP})
    elif v.on(filtering) and (v.number("rollout.n_samples_per_prompt") or 2) <= 1:
        where = f"{CLI}:755: n_samples_per_prompt must be greater than 1 when using dynamic filtering"
        message = f"{v.local(filtering)} with {v.local('rollout.n_samples_per_prompt')} 1"
        yield from v.says("refuses", message, where, filtering, sets={v.local(filtering): DROP})
    most, rows = v.number("rollout.vllm_generate_batch_size"), v.number("rollout.batch_size")
    if most and rows and most > rows and not v.on("train.async_enable") and v.reaches("0.10.0"):
        name = v.local("rollout.vllm_generate_batch_size")
        where = f"{CLI}:742: over-sampling needs async queue to buffer extra batches"
        message = f"{name} {most} over {v.local('rollout.batch_size')} {rows} without {v.local('train.async_enable')}"
        yield from v.says("refuses", message, where, "rollout.vllm_generate_batch_size", sets={name: str(rows)})


REINFORCEMENT: tuple[Callable[[Values], Iterator[SettingProblem]], ...] = (
    *(no_engines, dynamic_batches, vision, places, one_answer, sample_batches, sleeping, half_precision, old_vllm),
    *(correction, no_reward, data),
)
