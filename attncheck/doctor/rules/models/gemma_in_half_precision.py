"""Gemma in float16 overflows.

What it checks: gemma2 and gemma3 models in a launch that trains in float16. Without a launch, models whose checkpoint
is float16, or GPUs older than sm_80, which lack bfloat16 so that users train in float16.

Why it matters: the activations exceed float16's range: loss 0.0 and grad_norm nan from the first step. It looks like
a broken attention kernel, but is not. Reported by users; not measured here.

What to do: train in bfloat16 on sm_80 or newer, or in float32.

Source: hiyouga/LLaMA-Factory#7755; unslothai/unsloth#2925.
"""

from attncheck.doctor.queries import change_settings
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model, value_or

MODEL_PREFIXES = ("gemma2", "gemma3")


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.model_type.startswith(MODEL_PREFIXES):
        return
    lacking_bf16 = [gpu for gpu in snapshot.visible_devices() if value_or(gpu.compute_capability, (8, 0)) < (8, 0)]
    is_float16 = value_or(model.dtype, "") == "float16"
    gpus_without_bf16 = lacking_bf16
    if isinstance(snapshot.job, Known):  # the launch already takes missing GPU features into account
        is_float16, gpus_without_bf16 = snapshot.job.value.plan.precision == "fp16", []
    if not is_float16 and not gpus_without_bf16:
        return
    cause = "the launch trains in float16" if isinstance(snapshot.job, Known) else "its checkpoint is float16"
    if not is_float16:
        cause = f"cuda:{gpus_without_bf16[0].index} is {gpus_without_bf16[0].sm}, without bfloat16"
    dtype = "float32" if lacking_bf16 else "bfloat16"
    yield Problem(
        message=f"{model.model_type} overflows in float16: expect a loss of 0 and NaN gradients",
        evidence=(cause,),
        fixes=(_change_dtype(snapshot, dtype),),
        subject=model.model_type,
        predicted=True,
    )


def _change_dtype(snapshot: Snapshot, dtype: str) -> Fix:
    if isinstance(snapshot.job, Known):
        return change_settings(f"train in {dtype}", {"precision": {"float32": "fp32", "bfloat16": "bf16"}[dtype]})
    return Fix(f"load it in {dtype}", "setting", f"dtype={dtype}")


RULE = Rule("ATN319", "warning", check)
