"""Rollouts are sampled from a truncated distribution, but the trainer scores them with the full one.

What it checks: top_p, top_k and min_p for the rollouts of a reinforcement-learning launch that weights samples by the
ratio of the trainer's probability to the rollout engine's (TRL does by default). A top_k of 1 samples nothing: if
advantages are those within a prompt's group (GRPO, RLOO), they are all 0, whatever the temperature.

Why it matters: the rollout engine normalises over the remaining tokens, the trainer over all of them. The log of the
ratio is off by the log of the remaining probability, from the first step. This bias looks like a mismatch of kernels,
and importance sampling multiplies it into the gradient.

What to do: sample rollouts from the full distribution: top_p 1, no top_k, no min_p. Sample as you like in evaluation.

Source: trl 1.16.0, trainer/grpo_trainer.py and generation/vllm_generation.py (`logprobs_mode="processed_logprobs"`:
after top_p and top_k) alongside trainer/utils.py (`selective_log_softmax` over the whole vocabulary); verl 0.9.1,
workers/config/rollout.py; huggingface/trl#6789, #4772. The correction is linted again (tests/lint/test_rollouts.py).
"""

from collections.abc import Mapping, Sequence

from attncheck.core.launch import Setting
from attncheck.doctor.queries import change_settings, describe_job, is_between, weighs_by_rollout
from attncheck.doctor.rules import Fix, Job, Problem, Problems, Rule, Snapshot, about_job

WHOLE: Mapping[str, str] = {"top_p": "1.0", "min_p": "0.0"}  # values that keep every token; top_k differs by framework
NO_TOP_K: Mapping[str, str] = {"trl": "0"}  # other frameworks use -1, as vLLM does
GROUPS = ("grpo", "rloo")  # trainers whose advantages compare the completions of a prompt
SCORES_ALIKE = {"nemo-rl": "0.6.0"}  # the trainer also filters by top_p and top_k: need_top_k_or_top_p_filtering
NOT_ROLLOUTS = ("val_kwargs", "eval", "validation", "distill")


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    since = SCORES_ALIKE.get(job.framework)
    for setting in job.settings if job.trainer in GROUPS else ():
        if _option(setting) == "top_k" and _truncates(setting) and float(setting.value) == 1.0:
            yield Problem(
                message=f"{describe_job(job)} samples with {_describe(setting)}: all completions of a prompt are alike",
                evidence=("advantages are differences within a prompt's group of completions, so they are all 0",),
                fixes=(_make_fix(job, [setting]),),
                subject=f"{describe_job(job)} {_own_name(setting)}",
                locations=(setting.location,),
            )
            return
    if not job.reinforcement or not weighs_by_rollout(job) or (since and is_between(job.version, since)):
        return
    truncating = [setting for setting in job.settings if _truncates(setting)]
    if not truncating:
        return
    yield Problem(
        message=f"{describe_job(job)} samples with {', '.join(map(_describe, truncating))} but scores "
        "over the whole vocabulary",
        evidence=("the two are normalised over different tokens, so ratios are biased from the first step",),
        fixes=(_make_fix(job, truncating),),
        subject=describe_job(job),
        locations=tuple(setting.location for setting in truncating),
    )


def _make_fix(job: Job, truncating: Sequence[Setting]) -> Fix:
    values = {_own_name(s): WHOLE.get(_option(s)) or NO_TOP_K.get(job.framework, "-1") for s in truncating}
    return change_settings("sample from the whole distribution, as training does", values)


def _own_name(setting: Setting) -> str:
    return setting.name.lstrip("-+")


def _option(setting: Setting) -> str:
    return _own_name(setting).rpartition(".")[2].replace("-", "_")


def _describe(setting: Setting) -> str:
    return f"{_own_name(setting)} {setting.value}"


def _truncates(setting: Setting) -> bool:
    is_rollouts = _option(setting) in ("top_p", "top_k", "min_p") and setting.known
    if not is_rollouts or any(word in setting.name for word in NOT_ROLLOUTS):
        return False
    try:
        value = float(setting.value)
    except ValueError:
        return False
    return 0 < value < 1 if _option(setting) == "top_p" else value > 0


RULE = Rule("ATN424", "warning", check, needs=frozenset({"job", "rl"}))
