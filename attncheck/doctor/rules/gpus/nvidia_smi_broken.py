"""nvidia-smi is installed next to a GPU and does not work.

What it checks: nvidia-smi (NVML, its library, if it is missing) was asked under a deadline; it failed
("Driver/library version mismatch", "couldn't communicate with the NVIDIA driver"), hung or printed nothing, although
/proc, /dev or the PCI bus show a GPU.

Why it matters: nvidia-smi and CUDA talk to the same driver. After an update of the driver's packages without a reboot
the kernel still holds the old module, and every new CUDA process fails; a hung nvidia-smi is how a GPU that has fallen
off the bus shows. Where torch started CUDA anyway, only tools that call nvidia-smi (accelerate does) suffer, and
the finding is milder.

What to do: reboot, or reload the driver's kernel modules, so that kernel module and libraries are of one version.

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
