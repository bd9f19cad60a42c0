"""The model's recurrent layers run in slow plain torch, because their kernels are not installed.

What it checks: models with gated delta rule layers (qwen3_next, qwen3_5, …) without flash-linear-attention and
causal-conv1d, and models with Mamba layers without mamba-ssm and causal-conv1d, on a machine with a GPU.

Why it matters: transformers says "The fast path is not available because one of the required library is not
installed" once and continues with loops in torch. Users report steps that take four times as long, and more memory.
The results are correct.

What to do: install the kernels. causal-conv1d and mamba-ssm are compiled during installation; their GitHub releases
have wheels. flash-linear-attention 0.6.0 requires transformers 5.6.2; with an older one use 0.5.0.

Source: transformers 4.57.3, 5.9.0 and 5.14.1, models/qwen3_next/modeling_qwen3_next.py (`is_fast_path_available`);
5.23.0, integrations/hub_kernels.py (`use_kernel_func_from_hub_with_fallback`); METADATA of flash-linear-attention
0.4.1 to 0.6.0; hiyouga/LLaMA-Factory#10221. The kernels were not run here.
"""

from attncheck.doctor.fixes.recurrent import find_missing_kernels, install_kernels
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.visible_devices():
        return
    missing = find_missing_kernels(snapshot, model)
    if not missing:
        return
    yield Problem(
        message=f"the recurrent layers of {model.model_type} run in plain torch: {' and '.join(missing)} not installed",
        evidence=('transformers warns once, "the fast path is not available", and is several times slower',),
        fixes=(install_kernels(snapshot, missing),),
        subject=model.model_type,
    )


RULE = Rule("ATN353", "note", check)
