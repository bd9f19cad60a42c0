"""The visible GPUs belong to different generations.

What it checks: the compute capabilities of the visible GPUs with each other.

Why it matters: every rank waits for the slowest. A kernel that runs on one rank may be missing on another. Attention
backends are chosen per GPU, so ranks may use different kernels. CUDA numbers GPUs from fastest to slowest and
nvidia-smi by PCI bus, so CUDA_VISIBLE_DEVICES=0 may not be nvidia-smi's GPU 0.

What to do: make only one kind visible to the job, and number the GPUs as nvidia-smi does.

Source: NVIDIA CUDA C++ Programming Guide, "CUDA Environment Variables" (CUDA_DEVICE_ORDER: FASTEST_FIRST by default).
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import gpus, require_visible_gpus
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, value_or


def check(snapshot: Snapshot) -> Problems:
    devices = [gpu for gpu, _ in gpus.known_capabilities(gpus.visible_gpus(snapshot))]
    groups = gpus.group_by_capability(devices)
    if len(groups) < 2:
        require_visible_gpus(snapshot)
        return
    largest = max(groups, key=lambda group: (len(group), gpus.known_capabilities(group)[0][1]))
    numbers = ",".join(str(gpu.index) for gpu in largest)
    fixes: list[Fix] = [
        install.export_variable("CUDA_VISIBLE_DEVICES", numbers, f"use {gpus.describe_gpus(largest)} alone")
    ]
    if value_or(snapshot.env("CUDA_DEVICE_ORDER"), "") != "PCI_BUS_ID":
        fixes.append(
            install.export_variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "and number the GPUs as nvidia-smi does")
        )
    yield Problem(
        message="the visible GPUs are of different generations: " + ", ".join(map(gpus.describe_gpus, groups)),
        subject="GPUs",
        evidence=gpus.list_gpu_kinds(devices),
        fixes=tuple(fixes),
    )


RULE = Rule("ATN210", "warning", check)
