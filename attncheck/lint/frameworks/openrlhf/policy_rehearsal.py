"""Scales down a launch of OpenRLHF's reinforcement learning to the actor's update, and determines its objective.

The launch's own command parses its options, and OpenRLHF validates them. Then `attncheck.rehearsal.drivers.openrlhf`
replaces Ray, vLLM and the reward: it builds OpenRLHF's own actor and passes it rollouts.

Sources, openrlhf 0.11.2: cli/train_ppo_ray.py (options), trainer/ray/ppo_actor.py:234 (`training_step`),
models/loss.py:10 (`aggregate_loss`: over the tokens or the responses of the step, across ranks too) and :102
(`PolicyLoss`), utils/loss_utils.py:56 (which counts them: since 0.10.4). Before, the loss is each micro-batch's mean
(0.9.3 models/loss.py:175, 0.5.0 models/loss.py:48), which dynamic batches weight by their rows (0.9.3
trainer/ppo_utils/replay_buffer.py:286), except in 0.10.3 (models/loss.py:10: their tokens across ranks).
"""

from collections.abc import Mapping

from attncheck.lint.fields import DROP, Job, Launch, is_at_least
from attncheck.lint.fields.cutting import (
    LEARNING_RATE,
    WITHOUT_CUDA,
    JobCut,
    Materials,
    Normalisation,
    Objective,
    PolicyGradient,
    cut_attention,
    get_setting,
    is_number,
    is_on,
)

SINCE = "0.4.0"  # forks of it are read as 0.5.0, whose actor was read
STEP_MEAN_SINCE = "0.10.4"
TOKEN_MEAN_SINCE = "0.7.0"  # before, in padded rows, a response's mean; 0.6.0 does not divide by the temperature
PROGRAM = "openrlhf.cli.train_ppo_ray"  # also the beginning of forks' own
ROWS = 6  # responses in a rank's step: micro-batches of different lengths
TOKENS = 128  # in a micro-batch, if its size is given in tokens; no rollout is longer
AGGREGATIONS: Mapping[str, Normalisation] = {"token-mean": "step_tokens", "seq-mean-token-mean": "document_tokens"}
LEFT_OUT = (
    *("logger.wandb.key", "logger.wandb.org", "logger.wandb.group", "logger.tensorboard_dir", "use_ms"),
    *("eval.dataset", "ckpt.save_hf", "ckpt.load_enable", "rollout.vllm_generate_batch_size"),
    *("critic.freezing_steps", "data.prompt_dataset", "data.prompt_probs", "data.prompt_split", "pretrain_data"),
    *("ds.enable_sleep", "vllm.enable_sleep", "train.enable_ema"),
)
TERMS = {  # terms of the loss that are switched off, and their descriptions
    "algo.kl.use_loss": "its KL term",
    "actor.entropy_coef": "its entropy",
    "algo.advantage.is_correction_level": "the correction for the rollout policy",
    "algo.advantage.is_correction_mode": "",
    "algo.advantage.is_correction_gating": "",
    "algo.advantage.is_correction_threshold": "",
}
GPU_SETTINGS = {  # settings that are removed if there is no GPU, and their descriptions
    "ds.load_in_4bit": "quantised weights",
    "ds.use_liger_kernel": "liger-kernel",
    "ds.adam_offload": "Adam's offload",
    "ds.deepcompile": "DeepCompile",
    "ds.overlap_comm": "overlapped communication",
}
# Below stage 3, deepspeed 0.19.6 runtime/zero/stage_1_and_2.py:955 restarts the accumulation at each batch of a step
# that has gradient_accumulation_steps=1 from utils/deepspeed/deepspeed.py:451.
DYNAMIC_CORRECTIONS = ({"ds.zero_stage": "3"}, {"train.dynamic_batch_enable": DROP})
STANDS_FOR = "only OpenRLHF's actor is updated, with synthetic rollouts: no vLLM, reward, critic or Ray"


def cut_policy(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of `openrlhf.cli.train_ppo_ray`, or why it is not rehearsed."""
    program = launch.words[0].text if launch.words else ""
    if not program.startswith(PROGRAM):
        return f"OpenRLHF's {job.trainer} is not rehearsed yet; only sft and the actor of {PROGRAM} are"
    if not is_at_least(job.version, SINCE):
        return f"openrlhf {job.version}'s actor is not rehearsed; only {SINCE} and later are"
    if not is_number(_read_temperature(job)):
        return "rollout.temperature is known only at run time, so the loss cannot be rehearsed"
    aggregation = _read_aggregation(job)
    if aggregation not in AGGREGATIONS:
        return f"actor.loss_agg_mode {aggregation} is not one of OpenRLHF's: {', '.join(AGGREGATIONS)} are"
    attention = cut_attention(job, materials)
    left_out = [] if materials.uses_gpu else [name for name in GPU_SETTINGS if is_on(job, name.replace("-", "_"))]
    terms = [name for name in TERMS if get_setting(job, name) is not None]
    sets = {**dict.fromkeys((*LEFT_OUT, *terms, *left_out), DROP), **attention.sets, **_cut_sizes(job, materials)}
    remarks = [STANDS_FOR, *attention.remarks]
    remarks += [
        f"the loss is judged without {TERMS[name]} ({name}), which is off in the rehearsal"
        for name in terms
        if TERMS[name]
    ]
    remarks += [f"{GPU_SETTINGS[name]} ({name}) needs a GPU, and this machine has none: left out" for name in left_out]
    return JobCut(
        sets,
        "messages",
        _define_objective(job),
        environ={} if materials.uses_gpu else WITHOUT_CUDA,
        emulates_flash_attn=not materials.uses_gpu,  # it is always imported
        driver="openrlhf",
        remarks=tuple(remarks),
        corrections=DYNAMIC_CORRECTIONS if is_on(job, "train.dynamic_batch_enable") else (),
    )


def _cut_sizes(job: Job, materials: Materials) -> dict[str, str]:
    """Return the settings of size: a small model, few responses, and steps that save nothing."""
    ranks = min(getattr(job.world_size, "value", 1), materials.processes)
    engines = get_setting(job, "vllm.num_engines") or "0"
    responses = 1 if (get_setting(job, "rollout.n_samples_per_prompt") or "1") == "1" else 2  # per prompt
    rows = ROWS * ranks
    return {
        "actor.model_name_or_path": materials.model,
        "actor.num_nodes": "1",
        "actor.num_gpus_per_node": str(ranks),
        "train.micro_batch_size": str(materials.batch),
        "train.batch_size": str(rows),
        "train.max_tokens_per_gpu": str(TOKENS),
        "train.max_epochs": "1",
        "rollout.batch_size": str(rows // responses),
        "rollout.n_samples_per_prompt": str(responses),
        "rollout.micro_batch_size": str(materials.batch),
        **({} if is_at_least(job.version, TOKEN_MEAN_SINCE) else {"rollout.temperature": DROP}),
        "critic.num_nodes": "1",  # up to 0.6.4 the actor's ranks must be a multiple of these, and of the engines
        "critic.num_gpus_per_node": "1",
        **({} if engines == "0" else {"vllm.num_engines": str(ranks)}),
        "vllm.sync_backend": "gloo",  # with nccl, the actor checks vLLM's version
        "algo.kl.init_coef": "0",
        "actor.adam.lr": LEARNING_RATE,
        "actor.lr_scheduler": "constant",  # before it was an option, a cosine
        "actor.lr_warmup_ratio": "0",
        "ckpt.output_dir": materials.output,
        "ckpt.path": f"{materials.output}/checkpoints",
    }


def _read_temperature(job: Job) -> str:
    return get_setting(job, "rollout.temperature") or "1.0" if is_at_least(job.version, TOKEN_MEAN_SINCE) else "1.0"


def _read_aggregation(job: Job) -> str:
    if get_setting(job, "actor.policy_loss_type") == "gspo":
        return "seq-mean-token-mean"
    return get_setting(job, "actor.loss_agg_mode") or "token-mean"


def _define_objective(job: Job) -> Objective:
    """Return the objective of the actor's update in its first step."""
    loss, aggregation = get_setting(job, "actor.policy_loss_type") or "ppo", _read_aggregation(job)
    mean, policy = AGGREGATIONS[aggregation], PolicyGradient(temperature=float(_read_temperature(job)))
    source = f"openrlhf {job.version} models/loss.py: {loss}, {aggregation}"
    if is_at_least(job.version, STEP_MEAN_SINCE):
        return Objective("assistant", (mean,), f"{source}, over the step of all ranks", policy)
    is_of_rows = not is_at_least(job.version, TOKEN_MEAN_SINCE) and job.plan.packing == "padding"
    if mean == "step_tokens" and not is_of_rows:
        mean = "batch_rows" if is_on(job, "train.dynamic_batch_enable") else "batch_tokens"
    return Objective("assistant", ("document_tokens" if is_of_rows else mean,), f"{source}, over each batch", policy)
