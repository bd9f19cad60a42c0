"""The launch needs more GPUs than are available.

What it checks: the GPUs that the launch's processes, or verl's pools under Ray, need together. They are compared with
the GPUs visible to a job on this machine (or the target), times the nodes that the launch names. Other placements under
Ray are not judged, because a launch does not say how many nodes join the cluster.

Why it matters: torchrun fails when it starts a rank without a GPU. Ray does not fail: it waits forever for the
placement, without an error.

What to do: request fewer GPUs, or run on a machine that has enough (`attncheck lint --target h100x8` judges for
another machine).

Source: verl 0.9.1 single_controller/ray/base.py (a pool's `n_gpus_per_node` must lie on one node, STRICT_PACK);
openrlhf 0.11.2 cli/train_ppo_ray.py (PACK: over any nodes); torch 2.13.0 distributed/run.py.
"""

from attncheck.doctor.queries import count_job_gpus, describe_job, gpus, locate_variables, require_job
from attncheck.doctor.rules import Absent, Fix, Known, MissingFact, Problem, Problems, Rule, Snapshot, need

RAY_FRAMEWORKS = ("openrlhf", "verl")
STARTED_BY_RAY = (*RAY_FRAMEWORKS, "easyr1", "nemo-rl", "slime")


def check(snapshot: Snapshot) -> Problems:
    job = require_job(snapshot)
    required = need(job.gpus, "the number of GPUs that the launch needs")
    is_under_ray = job.reinforcement and job.framework in RAY_FRAMEWORKS
    if is_under_ray and job.framework != "verl":
        raise MissingFact("a launch does not state the number of nodes of the Ray cluster")
    if isinstance(snapshot.devices, Absent):
        return  # without any GPU, other rules report it
    need(snapshot.devices, "the list of GPUs")
    available = count_job_gpus(snapshot, job)
    if available is None or required <= available:
        return
    nodes = f" on {job.nodes} nodes like this one" if job.nodes > 1 else ""
    consequence = (
        "Ray waits for the rest forever, without an error"
        if job.reinforcement and job.framework in STARTED_BY_RAY
        else "ranks without a GPU fail"
    )
    there_are = "there is" if available == 1 else "there are"
    setting = snapshot.env(gpus.VISIBLE_DEVICES) if locate_variables(snapshot, gpus.VISIBLE_DEVICES) else Absent()
    if isinstance(setting, Known):
        there_are = f"{gpus.VISIBLE_DEVICES}={setting.value} leaves"
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


def _format_target(snapshot: Snapshot, gpu_count: int) -> str:
    visible = snapshot.visible_devices()
    return f"{visible[0].sm if visible else 'sm_90'},gpus={min(gpu_count, 8)} …"


RULE = Rule("ATN447", "error", check, needs=frozenset({"job"}))
