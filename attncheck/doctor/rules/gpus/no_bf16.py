"""A visible GPU has no bfloat16 arithmetic.

What it checks: the compute capability of every visible GPU against sm_80, the first with bfloat16.

Why it matters: training recipes and checkpoints use bfloat16. On an older GPU torch emulates it slowly through
float32, or a kernel refuses. `torch.cuda.is_bf16_supported()`, which frameworks check, is still True.

What to do: train in float16 with loss scaling, or in float32, or make only newer GPUs visible to the job.

Source: torch 2.13.0 torch/cuda/__init__.py `is_bf16_supported` (`including_emulation=True`); NVIDIA CUDA C++
Programming Guide, table "Arithmetic Instructions".
"""

from collections.abc import Iterator

from attncheck.doctor.knowledge.gpus import BF16_MIN_CAPABILITY
from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if isinstance(snapshot.model, Known) and snapshot.model.value.dtype in (Known("float16"), Known("float32")):
        return
    devices = gpus.visible_gpus(snapshot)
    too_old = [gpu for gpu, capability in gpus.known_capabilities(devices) if capability < BF16_MIN_CAPABILITY]
    for group in gpus.group_by_capability(too_old):
        yield Problem(
            message=f"{gpus.describe_gpus(group)}: no bfloat16 support; torch emulates it slowly",
            subject=f"GPU {group[0].index}",
            evidence=gpus.list_gpu_kinds(group),
            fixes=(Fix("train in float16", "setting", "\n".join(_float16_settings(snapshot))),),
        )


def _float16_settings(snapshot: Snapshot) -> Iterator[str]:
    yield "dtype=torch.float16"
    yield "Trainer:       --fp16 True --bf16 False"
    if snapshot.lists("llamafactory"):
        yield "LLaMA-Factory: fp16: true"


RULE = Rule("ATN209", "warning", check, needs=frozenset({"flash", "rl"}), general=True)
