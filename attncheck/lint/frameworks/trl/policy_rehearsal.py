"""Scales down a launch of TRL's GRPO or RLOO to the policy's update, and determines its objective.

The whole launch runs, except generation and rewards: `attncheck.rehearsal.drivers.trl` passes the launch's own trainer
made-up completions. Each prompt has two, one of which is rewarded.

Sources, trl 1.16.0: trainer/grpo_trainer.py (`_compute_loss`: `loss_type`), grpo_config.py. At the first step ratios
are 1 and the reference is the policy, so clipping and the KL term have no gradient; a sequence's ratio has the
gradients of its tokens' mean. trainer/rloo_trainer.py (`_compute_loss`: the mean over completions of -advantage × their
ratio; the KL term is part of the reward). GRPO of 0.24.0, 0.21.0, 0.19.1 and 0.16.1 (the loss and its default).
"""

from attncheck.lint.fields import DROP, Job, is_at_least
from attncheck.lint.fields.cutting import (
    DataForm,
    Materials,
    Normalisation,
    Objective,
    PolicyGradient,
    get_setting,
    is_number,
)

STANDS_FOR = "only TRL's policy is updated, with synthetic completions and rewards; nothing is generated"
COMPLETIONS = 2  # per prompt
DEFAULT_GENERATIONS = "8"  # trl 1.16.0 trainer/grpo_config.py
MAX_COMPLETION = 64  # in tokens; no made-up completion is longer
NORMALISATIONS: dict[str, Normalisation] = {
    "grpo": "document_tokens",
    "bnpo": "batch_tokens",
    "dr_grpo": "document_sums",
    "dapo": "step_tokens",
    "cispo": "step_tokens",
    "rloo": "document_sums",
}
LEFT_OUT = (
    *("use_vllm", "use_transformers_paged", "use_transformers_continuous_batching", "generation_batch_size"),
    *("steps_per_generation", "num_generations_eval", "max_prompt_length", "log_completions"),
    *("reward_model_name_or_path", "num_completions_to_print", "vllm_mode", "vllm_server_host"),
)
TERMS = {  # terms that are switched off, and their descriptions
    "top_entropy_quantile": "its mask of low-entropy tokens",
    "entropy_coef": "its entropy bonus",
    "use_adaptive_entropy": "its adaptive entropy bonus",
    "off_policy_mask_threshold": "its mask of off-policy sequences",
}


def cut_policy(job: Job, materials: Materials, is_own_script: bool) -> dict[str, str]:
    """Return the settings of a GRPO launch that limit generation, and the settings that are removed.

    A script may compute those of generation, so they are removed from any. It may read its own rewards and weights.
    """
    names = (*LEFT_OUT, *TERMS, *(() if is_own_script else ("reward_funcs", "reward_weights")))
    written = [name for name in names if get_setting(job, name) is not None or (is_own_script and name in LEFT_OUT)]
    iterations = {"num_iterations": "1"} if get_setting(job, "num_iterations") is not None else {}
    generations = get_setting(job, "num_generations") or DEFAULT_GENERATIONS
    prompts = job.plan.batch // max(int(generations), 1) if generations.isdecimal() else 1  # of a batch
    return {
        **dict.fromkeys(written, DROP),
        **iterations,
        **({"beta": "0.0"} if job.trainer == "rloo" else {}),
        "num_generations": str(COMPLETIONS),
        "max_completion_length": str(MAX_COMPLETION),
        "per_device_train_batch_size": str(COMPLETIONS * max(min(prompts, materials.batch), 1)),
    }


def list_policy_remarks(job: Job) -> tuple[str, ...]:
    """Return the remarks on the parts of a `trl grpo` launch that are not rehearsed."""
    penalty = ("the KL term of the rewards (beta) is off: at the first step it is 0",) if job.trainer == "rloo" else ()
    left_out = (name for name in TERMS if get_setting(job, name) is not None)
    return (
        STANDS_FOR,
        *penalty,
        *(f"the loss is judged without {TERMS[name]} ({name}), which is off in the rehearsal" for name in left_out),
    )


def read_policy(job: Job, is_own_script: bool) -> tuple[DataForm, Objective] | str:
    """Return the data's form and the objective of the policy's first update; or why it is not rehearsed."""
    is_rloo = job.trainer == "rloo"
    if is_rloo and not is_at_least(job.version, "0.23"):
        return f"TRL {job.version}'s RLOO generates inside its training loop: it is rehearsed since 0.23"
    loss = "rloo" if is_rloo else get_setting(job, "loss_type") or _name_default(job.version)
    if loss not in NORMALISATIONS:
        return f"TRL's GRPO loss {loss} is not rehearsed yet: {', '.join(NORMALISATIONS)} are"
    for name in ("temperature", "epsilon", "epsilon_high"):
        if not is_number(get_setting(job, name) or "1"):
            return f"{name} {get_setting(job, name)}: known only at run time, so the loss cannot be rehearsed"
    divisor = float(MAX_COMPLETION) if loss == "dr_grpo" else 1.0
    if loss == "cispo":  # log p is weighted by the ratio, limited by epsilon_high
        divisor = 1 / min(1.0, float(get_setting(job, "epsilon_high") or get_setting(job, "epsilon") or "0.2"))
    default = "1" if is_at_least(job.version, "0.17") else "0.9"
    divides = is_at_least(job.version, "0.16")  # logits are divided by the temperature
    temperature = float(get_setting(job, "temperature") or default) if divides else 1.0
    policy = PolicyGradient(of_ratio=loss != "cispo", divisor=divisor, temperature=temperature)
    source = f"trl {job.version} trainer/{job.trainer}_trainer.py: {loss}"
    form: DataForm = "prompt_texts" if is_own_script else "prompts"
    return form, Objective("assistant", (NORMALISATIONS[loss],), source, policy)


def _name_default(version: str) -> str:
    """Return a release's default loss: first the mean over rows, later over a batch's tokens, then over a step's."""
    if is_at_least(version, "0.22"):
        return "dapo"
    return "bnpo" if is_at_least(version, "0.16") else "grpo"
