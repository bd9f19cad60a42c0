"""nvidia-smi does not work although a GPU is present.

What it checks: nvidia-smi (or its library NVML) was run with a deadline. It failed ("Driver/library version
mismatch", "couldn't communicate with the NVIDIA driver"), hung or printed nothing, although /proc, /dev or the PCI
bus show a GPU.

Why it matters: nvidia-smi and CUDA use the same driver. After an update of the driver packages without a reboot, the
kernel still has the old module loaded, and every new CUDA process fails. A hanging nvidia-smi is typical of a GPU
that has fallen off the bus. If torch started CUDA anyway, only tools that call nvidia-smi (such as accelerate) are
affected, and the finding is less severe.

What to do: reboot, or reload the driver's kernel modules, so that the kernel module and the libraries have the same
version.

Source: NVIDIA, nvidia-smi(1), "RETURN VALUE"; NVIDIA/nvidia-container-toolkit troubleshooting; attncheck/doctor/probes.
"""

from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, Unreadable


def check(snapshot: Snapshot) -> Problems:
    if not isinstance(snapshot.devices, Unreadable):
        return
    tool, _, reason = snapshot.devices.reason.partition(": ")
    if tool not in ("nvidia-smi", "NVML"):
        return
    works = gpus.cuda_works(snapshot)
    yield Problem(
        message=f"{tool} does not work: {reason.partition(';')[0].rstrip('.')}",
        subject=tool,
        evidence=(reason, *(("import lane: torch starts CUDA",) if works else ())),
        fixes=_fixes(reason),
        predicted=bool(works) or gpus.torch_cuda_version(snapshot) is None,
    )


def _fixes(reason: str) -> tuple[Fix, ...]:
    if "mismatch" in reason.lower():
        modules = "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia nvidia_uvm"
        return (
            Fix("reboot, so that the kernel loads the module of the installed driver", "manual", "sudo reboot"),
            Fix("or reload the modules while no process uses the GPUs", "command", modules, "unsafe"),
        )
    if "communicate" in reason:
        return (Fix("load the driver's kernel module", "command", "sudo modprobe nvidia", "unsafe"),)
    return (Fix("read the driver's messages about the GPU (Xid errors)", "advice", "sudo dmesg | grep -iE 'nvrm|xid'"),)


RULE = Rule("ATN202", "error", check)
