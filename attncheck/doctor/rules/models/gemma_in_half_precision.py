"""Gemma in float16 overflows.

What it checks: gemma2 and gemma3 models whose checkpoint is float16, or GPUs before sm_80, which have no bfloat16 and
push their users to float16.

Why it matters: the activations exceed float16's range: loss 0.0 and grad_norm nan from the first step. It looks like a
broken attention kernel and is none. Reported by users; not measured here.

What to do: train in bfloat16 on sm_80 or newer, or in float32.

Source: hiyouga/LLaMA-Factory#7755; unslothai/unsloth#2925.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import value_or
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.queries.models import requested_model
from attncheck.doctor.rules import Rule

MODEL_PREFIXES = ("gemma2", "gemma3")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where a gemma model would train in float16."""
    model = requested_model(snapshot)
    if model is None or not model.model_type.startswith(MODEL_PREFIXES):
        return
    gpus_without_bf16 = [gpu for gpu in snapshot.visible_devices() if value_or(gpu.compute_capability, (8, 0)) < (8, 0)]
    is_float16 = value_or(model.dtype, "") == "float16"
    if not is_float16 and not gpus_without_bf16:
        return
    cause = "its checkpoint is float16"
    if not is_float16:
        cause = f"cuda:{gpus_without_bf16[0].index} is {gpus_without_bf16[0].sm}, without bfloat16"
    dtype = "float32" if gpus_without_bf16 else "bfloat16"
    yield Problem(
        message=f"{model.model_type} overflows in float16: expect loss 0 and NaN gradients",
        evidence=(cause,),
        fixes=(Fix(f"load it in {dtype}", "setting", f"dtype={dtype}"),),
        subject=model.model_type,
        predicted=True,
    )


RULE = Rule("ATN319", "warning", check)
