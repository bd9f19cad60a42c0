"""The NVIDIA driver is too old for the CUDA that torch was built with.

What it checks: the driver's version against the minimum of torch's CUDA major version. Within one major version a
newer CUDA runs on an older driver (minor-version compatibility); across majors it does not. If torch was imported and
CUDA started anyway (as with NVIDIA's cuda-compat package on data-centre GPUs), nothing is reported.

Why it matters: `torch.cuda.is_available()` is False with only a warning, or the first CUDA call raises "The NVIDIA
driver on your system is too old". When pip upgrades torch, it silently installs a newer CUDA major version.

What to do: install the same torch built for a CUDA version that this driver supports, or update the driver. After a
change of torch's build, extensions compiled against the old build, such as flash-attn, must be reinstalled.

Source: NVIDIA CUDA Compatibility, "Minor Version Compatibility"; sgl-project/sglang#11395;
attncheck/doctor/knowledge/cuda.py.
"""

from attncheck.doctor.fixes import torch
from attncheck.doctor.queries import cuda_of_torch, gpus
from attncheck.doctor.rules import Absent, Fix, Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    if isinstance(snapshot.driver, Absent) or cuda_of_torch(snapshot) is None:
        return
    driver = need(snapshot.driver, "the NVIDIA driver")
    minimum = gpus.unmet_driver_minimum(snapshot)
    if not minimum or gpus.cuda_works(snapshot):
        return
    cuda_version = need(need(snapshot.torch, "torch").cuda, "torch's CUDA version")
    error = gpus.cuda_error(snapshot)
    replacement = torch.install_matching_torch_build(snapshot)
    update = Fix(f"update the NVIDIA driver to {minimum} or newer", "manual", f"NVIDIA driver >= {minimum}")
    yield Problem(
        message=f"driver {driver.version} is too old for CUDA {cuda_version}, which needs {minimum} or newer",
        subject=f"driver {driver.version}",
        evidence=(
            f"torch is built for CUDA {cuda_version}",
            f"driver {driver.version}",
            *((f"import lane: {error}",) if error else ()),
        ),
        fixes=(replacement, update) if replacement else (update,),
    )


RULE = Rule("ATN201", "error", check)
