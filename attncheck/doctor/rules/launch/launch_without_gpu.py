"""The launch trains on GPUs, but there is no GPU.

What it checks: a launch of a framework that trains on CUDA devices against a machine, or a target, without one.

Why it matters: on a login node or a laptop this is expected, and the launch should be judged for the machine that
will run it. On a node that should have GPUs, the driver or the container is the cause.

What to do: run `attncheck lint --target h100x8`, or `attncheck doctor` if this machine should have GPUs.

Source: none of the frameworks trains on a CPU; each stops when it places its first tensor.
"""

from attncheck.core.snapshot import NOT_ASKED
from attncheck.doctor.queries import gpus, locate_variables
from attncheck.doctor.queries.launch import describe_job
from attncheck.doctor.rules import Absent, Fix, Job, Problem, Problems, Rule, Snapshot, Unreadable, about_job, need


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    if not isinstance(snapshot.devices, Absent) and snapshot.visible_devices():
        return
    if isinstance(snapshot.devices, Unreadable) or snapshot.devices == Absent(NOT_ASKED):
        need(snapshot.devices, "the list of GPUs")
    yield Problem(
        message=f"{describe_job(job)} trains on GPUs, but none is visible on this machine",
        evidence=(_gpu_evidence(snapshot),),
        fixes=(
            Fix("judge the launch for the machine that will run it", "advice", "attncheck lint --target h100x8 …"),
            Fix("if this machine should have GPUs", "advice", "attncheck doctor"),
        ),
        subject=describe_job(job),
        predicted=True,
        locations=locate_variables(snapshot, gpus.VISIBLE_DEVICES) or (job.location,),
    )


def _gpu_evidence(snapshot: Snapshot) -> str:
    if isinstance(snapshot.devices, Absent):
        return snapshot.devices.reason or "no GPU was found"
    return "this machine has GPUs, but CUDA_VISIBLE_DEVICES hides all of them"


RULE = Rule("ATN449", "error", check, needs=frozenset({"job"}))
