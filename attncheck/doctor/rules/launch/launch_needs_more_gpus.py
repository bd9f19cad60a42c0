"""The launch needs more GPUs than are available.

What it checks: the GPUs that the launch's processes, or verl's pools under Ray, need together. They are compared with
the GPUs visible to a job on this machine (or the target), times the nodes that the launch names. Other placements under
Ray are not judged, because a launch does not say how many nodes join the cluster.

Why it matters: a rank without a GPU fails. Under Ray, the framework decides: verl since 0.3, EasyR1 and NeMo-RL count
the cluster's GPUs and raise an error; older verl and slime wait forever for the placement, without an error.

What to do: request fewer GPUs, or run on a machine that has enough (`attncheck lint --target h100x8` judges for
another machine).

Source: verl 0.9.1 single_controller/ray/base.py (a pool's `n_gpus_per_node` must lie on one node, STRICT_PACK);
verl 0.3.0.post1 trainer/ppo/ray_trainer.py:115 and 0.9.1 single_controller/ray/base.py:240 (`ValueError`); verl
0.2.0.post2 single_controller/ray/base.py:85 (`ray.get` without a timeout); EasyR1 v0.3.0 to b44b311
verl/trainer/ray_trainer.py; NeMo-RL v0.3.0 to v0.7.0 nemo_rl/distributed/virtual_cluster.py; slime v0.1.0 to v0.3.1
slime/ray/placement_group.py; openrlhf 0.11.2 cli/train_ppo_ray.py (PACK: over any nodes); torch 2.13.0
distributed/run.py.
"""

from attncheck.doctor.queries import count_job_gpus, describe_job, gpus, is_at_least, locate_variables
from attncheck.doctor.rules import (
    Absent,
    Fix,
    Job,
    Known,
    MissingFact,
    Problem,
    Problems,
    Rule,
    Snapshot,
    Version,
    about_job,
    need,
)

RAY_FRAMEWORKS = ("openrlhf", "verl")
VERL_COUNTS_SINCE = "0.3"
NO_GPU = "ranks without a GPU fail"
WAITS = "Ray waits for the rest forever, without an error"
RAISES = {
    "verl": "verl raises a ValueError before training",
    "easyr1": "EasyR1 raises a ValueError before training",
    "nemo-rl": "NeMo-RL raises a ResourceInsufficientError after some retries",
}


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    required = need(job.gpus, "the number of GPUs that the launch needs")
    is_under_ray = job.reinforcement and job.framework in RAY_FRAMEWORKS
    if is_under_ray and job.framework != "verl":
        raise MissingFact("a launch does not state the number of nodes of the Ray cluster")
    if isinstance(snapshot.devices, Absent):
        return  # without any GPU, ATN449 reports it
    need(snapshot.devices, "the list of GPUs")
    available = count_job_gpus(snapshot, job)
    if not available or required <= available:
        return  # ATN449 reports a variable that hides all of them
    nodes = f" on {job.nodes} nodes like this one" if job.nodes > 1 else ""
    there_are = "there is" if available == 1 else "there are"
    setting = snapshot.env(gpus.VISIBLE_DEVICES) if locate_variables(snapshot, gpus.VISIBLE_DEVICES) else Absent()
    if isinstance(setting, Known):
        there_are = f"{gpus.VISIBLE_DEVICES}={setting.value} leaves"
    names_enough = isinstance(setting, Known) and setting.value.count(",") + 1 >= required  # Ray counts the names
    consequence = NO_GPU if names_enough else _predict(snapshot, job)
    yield Problem(
        message=f"{describe_job(job)} needs {required} GPUs, but {there_are} {available}{nodes}; {consequence}",
        evidence=gpus.list_gpu_kinds(snapshot.visible_devices()),
        fixes=(
            Fix(
                "judge it for the machine that will run it",
                "advice",
                f"attncheck lint --target {_format_target(snapshot, required)}",
            ),
        ),
        subject=describe_job(job),
        # a launch does not show which GPUs have these numbers, nor what joins a cluster of several nodes
        predicted=isinstance(setting, Known) or (job.reinforcement and job.nodes > 1),
        locations=locate_variables(snapshot, gpus.VISIBLE_DEVICES) or (job.location,),
    )


def _predict(snapshot: Snapshot, job: Job) -> str:
    """Return what happens without enough GPUs; verl's release decides for verl."""
    if job.reinforcement and job.framework == "slime":
        return WAITS
    if not job.reinforcement or job.framework not in RAISES:
        return NO_GPU
    if job.framework != "verl":
        return RAISES[job.framework]
    if not isinstance(snapshot.version("verl"), Known) or Version(job.version).is_devrelease:  # of any of its days
        return "the training does not start"
    is_counting = is_at_least(Known(Version(job.version)), VERL_COUNTS_SINCE)
    return RAISES["verl"] if is_counting else WAITS


def _format_target(snapshot: Snapshot, gpu_count: int) -> str:
    visible = snapshot.visible_devices()
    return f"{visible[0].sm if visible else 'sm_90'},gpus={min(gpu_count, 8)} …"


RULE = Rule("ATN447", "error", check, needs=frozenset({"job"}))
