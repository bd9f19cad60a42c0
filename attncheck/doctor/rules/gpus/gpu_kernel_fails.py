"""A tiny torch kernel fails on a visible GPU.

What it checks: the examined torch computes a 64 x 64 matrix product on every visible GPU, each in its own process. Its
sum is compared with the CPU's. A GPU that torch was not compiled for has its own rule.

Why it matters: no job can run on this GPU with this torch. A wrong sum means broken hardware.

What to do: read CUDA's message in the evidence, and hide the GPU until it is fixed.

Source: measured here.
"""

from collections.abc import Iterator

from attncheck.core.devices import Device
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.gpus import has_code_for
from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, value_or


def check(snapshot: Snapshot) -> Problems:
    devices = gpus.visible_gpus(snapshot)
    failed = [gpu for gpu in devices if isinstance(gpu.kernel, Known) and gpu.kernel.value != "ok"]
    for gpu in failed:
        if _lacks_gpu_code(snapshot, gpu):
            continue
        error = value_or(gpu.kernel, "")
        yield Problem(
            message=f"a tiny torch kernel fails on GPU {gpu.index} ({gpu.name})",
            subject=f"GPU {gpu.index}",
            evidence=(f"import lane: {error}",),
            fixes=tuple(_fixes([other for other in devices if other not in failed], error)),
        )


def _lacks_gpu_code(snapshot: Snapshot, gpu: Device) -> bool:
    if not isinstance(snapshot.torch, Known) or not isinstance(gpu.compute_capability, Known):
        return False
    targets = value_or(snapshot.torch.value.arch_list, ())
    return bool(targets) and not has_code_for(targets, gpu.compute_capability.value)


def _fixes(healthy: list[Device], error: str) -> Iterator[Fix]:
    if "out of memory" in error:
        yield Fix(
            "see which processes hold it", "advice", "nvidia-smi --query-compute-apps=pid,used_memory --format=csv"
        )
    if healthy:
        numbers = ",".join(str(gpu.index) for gpu in healthy)
        yield install.export_variable("CUDA_VISIBLE_DEVICES", numbers, "use the GPUs that work")
    yield Fix("read the driver's messages about the GPU (Xid errors)", "advice", "sudo dmesg | grep -iE 'nvrm|xid'")


RULE = Rule("ATN212", "error", check)
