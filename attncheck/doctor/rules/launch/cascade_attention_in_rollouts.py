"""vLLM may use cascade attention in rollouts, which has given wrong log-probabilities on GPUs other than Hopper.

What it checks: a reinforcement-learning launch with vllm 0.8 to 0.17, on GPUs that are not sm_90, without
`disable_cascade_attn`.

Why it matters: the error is silent. Prompts that share a prefix, such as the samples of a group, use cascade
attention. Users of A100, L20 and B200 saw log-probabilities far from the trainer's, exploding KL and gradient norms,
and collapse. verl's own documentation names the workaround. Other users saw no difference, so this is a prediction.

What to do: switch it off in the rollout engine.

Source: vllm-project/vllm#22103, and PR#36318 of 2026-03-07, which makes it opt-in (the release with it was not read:
0.18 is assumed); verl-project/verl PR#3595, docs/faq; allenai/open-instruct PR#1006. Not measured here.
"""

from collections.abc import Mapping

from attncheck.doctor.queries import describe_job, is_at_least, is_older
from attncheck.doctor.rules import Absent, Fix, Job, Problem, Problems, Rule, Snapshot, about_job, need, value_or

SINCE, OPT_IN = "0.8.0", "0.18.0"
SWITCH: Mapping[str, str] = {
    "verl": "+actor_rollout_ref.rollout.engine_kwargs.vllm.disable_cascade_attn=True",
    "ms-swift": "--vllm_disable_cascade_attn true",
}
IN_CODE = "vllm.LLM(..., disable_cascade_attn=True)"


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    if not job.reinforcement or any("cascade" in setting.name for setting in job.settings):
        return
    if any("rollout.name" in setting.name and setting.value != "vllm" for setting in job.settings):
        return  # the rollout engine is SGLang
    gpus = [gpu for gpu in snapshot.visible_devices() if value_or(gpu.compute_capability, (9, 0))[0] != 9]
    version = snapshot.version("vllm") if gpus else Absent()  # last, because each release of a range is tried
    if not is_at_least(version, SINCE) or not is_older(version, OPT_IN):
        return
    yield Problem(
        message=f"vllm {need(version, 'vllm')} may use cascade attention for rollouts, which was wrong "
        "on GPUs other than Hopper",
        evidence=(f"cuda:{gpus[0].index} is {gpus[0].sm}", "nothing in the launch sets disable_cascade_attn"),
        fixes=(Fix("switch it off (not tried here)", "setting", SWITCH.get(job.framework, IN_CODE)),),
        subject=describe_job(job),
        predicted=True,
        locations=(job.location,),
    )


RULE = Rule("ATN426", "warning", check, needs=frozenset({"job", "rl"}))
