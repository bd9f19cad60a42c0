"""Rollouts and training compute log-probabilities with different engines, and the launch does not correct for it.

What it checks: a reinforcement-learning launch with vLLM or SGLang rollouts that does not correct for the ratio of the
two probabilities, if its release can weight samples by it (verl since 0.6.0, TRL since 0.23.0, OpenRLHF since 0.8.9).

Why it matters: the effect is silent. Other kernels, other batch sizes and 8-bit rollouts give different
log-probabilities for the same weights. The ratio is not 1 on the first step, KL spikes, and entropy and reward may
collapse some hundred steps later. Whether the difference matters here must be measured, so this is a note.

What to do: let the framework measure and correct it. A mean difference beyond 0.01 in bfloat16 on a dense model points
to a defect, not to rounding.

Source: verl 0.9.1, trainer/config/algorithm.py (`RolloutCorrectionConfig`) and trainer/ppo/rollout_corr_helper.py
("Ensure rollout worker is configured to calculate_log_probs=true"), its settings since 0.6.0; trl 0.23.0 and 1.16.0,
trainer/grpo_config.py (on by default); openrlhf 0.11.2, cli/train_ppo_ray.py; vllm-project/vllm#22103. That the release
takes the settings is linted (tests/lint/test_rollouts.py); their effect needs a run.
"""

from collections.abc import Mapping

from attncheck.doctor.queries import change_settings, describe_job, is_between, weighs_by_rollout
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job

_VERL = {
    "actor_rollout_ref.rollout.calculate_log_probs": "True",
    "algorithm.rollout_correction.rollout_is": "token",
    "algorithm.rollout_correction.rollout_is_threshold": "2.0",
}
# Framework -> (first release with these settings, last, the settings that enable the correction).
CORRECTIONS: Mapping[str, tuple[tuple[str, str, Mapping[str, str]], ...]] = {
    "verl": (("0.6.1", "", _VERL),),
    "trl": (("0.23", "", {"vllm_importance_sampling_correction": "True"}),),
    "openrlhf": (
        ("0.8.9", "0.10.1.post2", {"enable_vllm_is_correction": ""}),
        ("0.10.2", "0.11.1", {"algo.advantage.is_correction_enable": ""}),
        ("0.11.2", "", {"algo.advantage.is_correction_level": "token"}),
    ),
}


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    sets = _find_correction(job) if job.reinforcement else None
    if sets is None:
        return
    yield Problem(
        message=f"{describe_job(job)} does not correct for log-probabilities that differ between rollouts and training",
        evidence=("rollouts come from another engine; the mismatch is neither measured nor corrected",),
        fixes=(change_settings("measure and correct it", sets),),
        subject=describe_job(job),
        locations=(job.location,),
    )


def _find_correction(job: Job) -> Mapping[str, str] | None:
    """Return the settings that enable the correction; None if it is already enabled or the release has none."""
    if weighs_by_rollout(job):
        return None
    ranges = CORRECTIONS.get(job.framework, ())
    return next((sets for since, until, sets in ranges if is_between(job.version, since, until)), None)


RULE = Rule("ATN425", "note", check, needs=frozenset({"job", "rl"}))
