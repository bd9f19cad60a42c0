"""torch is not compiled for a visible GPU.

What it checks: the architectures that the imported torch names (`torch.cuda.get_arch_list()`) against every visible
GPU. A GPU on which a tiny kernel ran is not reported.

Why it matters: torch warns "… with CUDA capability sm_120 is not compatible with the current PyTorch installation" and
fails at its first kernel with "no kernel image is available for execution on the device".

What to do: install a build that supports the GPU. Blackwell needs a build for CUDA 12.8 or newer. Those builds do not
support GPUs older than Turing; the CUDA 12.6 builds do, up to torch 2.14.

Source: torch 2.13.0 torch/cuda/__init__.py `_check_capability`; pytorch/pytorch#178665, #190385.
"""

from attncheck.doctor.fixes import torch
from attncheck.doctor.knowledge.gpus import has_code_for
from attncheck.doctor.queries import cuda_of_torch, gpus, require_import
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    cuda_version = cuda_of_torch(snapshot)
    devices = gpus.visible_gpus(snapshot)
    if cuda_version is None or not devices:
        return
    require_import(snapshot, "torch")
    targets = need(need(snapshot.torch, "torch").arch_list, "torch's list of architectures")
    if not targets:
        return
    lacking = [
        gpu
        for gpu, capability in gpus.known_capabilities(devices)
        if not has_code_for(targets, capability) and gpu.kernel != Known("ok")
    ]
    for group in gpus.group_by_capability(lacking):
        replacement = torch.install_matching_torch_build(snapshot, other_than=cuda_version)
        yield Problem(
            message=f"torch is compiled for {', '.join(targets)}, none of which runs on {gpus.describe_gpus(group)}",
            subject="torch",
            evidence=(f"import lane: torch names {', '.join(targets)}", *gpus.list_gpu_kinds(group)),
            fixes=(replacement,) if replacement else (),
        )


RULE = Rule("ATN208", "error", check)
