"""torch's CUDA build cannot use CUDA, although a GPU is visible.

What it checks: `torch.cuda.is_available()` is False in a child process of the import lane, while nvidia-smi lists a
visible GPU. An old driver, a stopped fabric manager and hidden GPUs have their own rules.

Why it matters: the job falls back to the CPU or dies at its first CUDA call; torch often only prints a warning.

What to do: read torch's own message in the evidence. Error 804 means that cuda-compat libraries shadow the driver's
on a GPU that does not support them; error 999 or 3 that nvidia_uvm is not loaded or not passed into the container.

Source: torch 2.13.0 torch/cuda/__init__.py `is_available`; NVIDIA CUDA Runtime API, "cudaError".
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import cuda_of_torch, gpus, hidden_by, require_import, sees_gpu
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if cuda_of_torch(snapshot) is None:
        return
    require_import(snapshot, "torch")
    if gpus.cuda_works(snapshot) is not False or not sees_gpu(snapshot):
        return
    devices = gpus.visible_gpus(snapshot)
    error = gpus.cuda_error(snapshot)
    if gpus.unmet_driver_minimum(snapshot) or "802" in error:
        raise hidden_by("CUDA")
    yield Problem(
        message=f"torch cannot start CUDA although {gpus.describe_gpus(devices)} is visible",
        subject="CUDA",
        evidence=(f"import lane: {error or 'torch.cuda.is_available() is False'}", *gpus.list_gpu_kinds(devices)),
        fixes=tuple(_fixes(snapshot, error)),
    )


def _fixes(snapshot: Snapshot, error: str) -> Iterator[Fix]:
    if "804" in error or "forward compatibility" in error:
        if "LD_LIBRARY_PATH" in snapshot.environ:
            yield install.unset_variable("LD_LIBRARY_PATH", "remove the cuda-compat libraries that shadow the driver's")
        else:
            yield Fix("remove the cuda-compat package", "manual", "sudo apt-get remove 'cuda-compat-*'", "unsafe")
    elif "out of memory" in error:
        yield Fix(
            "see which processes hold the GPU",
            "advice",
            "nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
        )
    else:
        yield Fix(
            "load the kernel module that CUDA needs in addition to the driver",
            "command",
            "sudo modprobe nvidia_uvm",
            "unsafe",
        )
        yield Fix("in a container, pass the GPUs through", "manual", "docker run --gpus all …")


RULE = Rule("ATN203", "error", check)
