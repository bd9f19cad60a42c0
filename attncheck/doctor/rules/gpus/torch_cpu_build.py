"""torch is built without CUDA on a machine with a GPU.

What it checks: the version in torch's own files, and whether the machine has GPUs.

Why it matters: everything runs on the CPU, and flash-attn cannot be built or imported. It happens when a requirements
file names the CPU index, when pip finds no CUDA wheel for the platform, or when an image is built on another machine.

What to do: install the same torch from the index of a CUDA build that this driver supports. The version must name the
build ("+cu130"): for pip, the installed "2.13.0+cpu" satisfies "2.13.0".

Source: PEP 440, "Local version identifiers"; pytorch.org/get-started; attncheck/doctor/knowledge/cuda.py.
"""

from attncheck.doctor.fixes.torch import install_matching_torch_build
from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Absent, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if not isinstance(snapshot.torch, Known):
        return
    torch = snapshot.torch.value
    if not isinstance(torch.cuda, Absent) or isinstance(torch.hip, Known):
        return
    devices = gpus.all_gpus(snapshot)
    if not devices:
        return
    replacement = install_matching_torch_build(snapshot)
    yield Problem(
        message=f"torch {torch.version} is built without CUDA, on a machine with {len(devices)} x {devices[0].name}",
        subject=f"torch {torch.version}",
        evidence=("torch/version.py has no CUDA version", *gpus.list_gpu_kinds(devices)),
        fixes=(replacement,) if replacement else (),
    )


RULE = Rule("ATN205", "error", check)
