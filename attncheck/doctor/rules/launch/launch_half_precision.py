"""The launch requests bfloat16, but the GPUs do not support it.

What it checks: the launch's precision against the compute capability of the GPUs visible to the job.

Why it matters: below sm_80 torch emulates bfloat16 slowly through float32. `torch.cuda.is_bf16_supported()`, which
frameworks check, is still True.

What to do: use float16 with loss scaling if the framework supports it, or newer GPUs.

Source: torch 2.13.0 torch/cuda/__init__.py `is_bf16_supported` (`including_emulation=True`).
"""

from attncheck.doctor.knowledge.gpus import BF16_MIN_CAPABILITY
from attncheck.doctor.queries import change_settings, describe_job, gpus, locate_settings
from attncheck.doctor.rules import Job, Known, Problem, Problems, Rule, Snapshot, about_job

OVERFLOW_IN_FLOAT16 = ("gemma2", "gemma3")  # ATN319


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    if job.plan.precision not in ("bf16", "autocast"):
        return
    devices = gpus.visible_gpus(snapshot)
    too_old = [gpu for gpu, capability in gpus.known_capabilities(devices) if capability < BF16_MIN_CAPABILITY]
    if not too_old:
        return
    fix = change_settings("train in float16", {"precision": "fp16"})
    if isinstance(snapshot.model, Known) and snapshot.model.value.model_type.startswith(OVERFLOW_IN_FLOAT16):
        fix = change_settings("train in float32, because this model overflows in float16", {"precision": "fp32"})
    yield Problem(
        message=f"{describe_job(job)} trains in bfloat16, which {gpus.describe_gpus(too_old)} emulates slowly",
        evidence=gpus.list_gpu_kinds(too_old),
        fixes=() if job.reinforcement else (fix,),
        subject=describe_job(job),
        locations=locate_settings(job, "precision"),
    )


RULE = Rule("ATN451", "warning", check, needs=frozenset({"job"}))
