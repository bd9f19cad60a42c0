"""PYTORCH_NO_CUDA_MEMORY_CACHING makes every tensor a cudaMalloc.

What it checks: the variable set to 1, if a GPU is visible.

Why it matters: it exists for memory checkers. Each allocation and release then waits for the GPU, so a step takes
many times as long, and expandable segments have no effect.

What to do: unset it for training.

Source: PyTorch documentation, "CUDA Environment Variables" ("If set to 1, disables caching of memory allocations in
CUDA. This can be useful for debugging").
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import locate_variables, sees_gpu
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot

NAME = "PYTORCH_NO_CUDA_MEMORY_CACHING"


def check(snapshot: Snapshot) -> Problems:
    if snapshot.environ.get(NAME) != "1" or not sees_gpu(snapshot):
        return
    yield Problem(
        message=f"{NAME}=1 makes every allocation wait for the GPU",
        subject=NAME,
        evidence=(f"environment: {NAME}=1",),
        fixes=(install.unset_variable(NAME),),
        locations=locate_variables(snapshot, NAME),
    )


RULE = Rule("ATN805", "warning", check)
