"""A visible GPU is in MIG mode, in which GPUs cannot communicate directly.

What it checks: the MIG mode of every visible GPU, if the job passes keys and values between several GPUs.

Why it matters: a CUDA process sees one MIG device only, MIG devices have neither NVLink nor peer-to-peer access, and
NCCL needs one device per rank. Ring attention across them fails or is slow.

What to do: have an administrator switch MIG off, or run without sequence parallelism.

Source: NVIDIA MIG User Guide, "Deployment Considerations" and "Application Considerations"; RAPIDS deployment guide,
"Multi-Instance GPU".
"""

from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    mig_gpus = [gpu for gpu in gpus.visible_gpus(snapshot) if gpu.mig == Known(True)]
    if not mig_gpus:
        return
    numbers = ",".join(str(gpu.index) for gpu in mig_gpus)
    described = gpus.describe_gpus(mig_gpus)
    yield Problem(
        message=f"{described} is in MIG mode: no NVLink and no peer-to-peer access for ring attention",
        subject=f"GPU {mig_gpus[0].index}",
        evidence=tuple(f"GPU {gpu.index}: MIG mode enabled" for gpu in mig_gpus),
        fixes=(
            Fix(
                "switch MIG off while nothing runs on the GPU",
                "command",
                f"sudo nvidia-smi -i {numbers} -mig 0",
                "unsafe",
            ),
        ),
    )


RULE = Rule("ATN214", "warning", check, needs=frozenset({"ring"}))
