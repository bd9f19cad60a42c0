"""The model's recurrent layers leak their state from one packed document into the next.

What it checks: layers of linear attention, Mamba or convolution, and whether this transformers passes cu_seqlens to
them (qwen3_next and qwen3_5 since 5.9.0 …) with kernels that use it. Without flash-linear-attention and
causal-conv1d, the plain torch fallback ignores cu_seqlens.

Why it matters: the error is silent. Attention layers separate documents, but recurrent layers do not. It only matters
to jobs that pack, with any attention backend.

What to do: do not pack this model, or install the kernels and pass cu_seq_lens_q (as
DataCollatorWithFlattening(return_flash_attn_kwargs=True) does). Mamba layers take seq_idx instead
(`return_seq_idx=True`), which mamba-ssm's kernels use.

Source: transformers 4.57.3, 5.2.0, 5.8.1, 5.9.0, 5.17.0 and 5.23.0, models/qwen3_next/modeling_qwen3_next.py and
models/qwen3_5/modeling_qwen3_5.py (`self.linear_attn(…, **kwargs)`); huggingface/transformers#46093.
"""

from attncheck.doctor.fixes.recurrent import find_missing_kernels, install_kernels
from attncheck.doctor.knowledge.models import GATED_DELTA_RULE, RECURRENT_LAYERS, RECURRENT_VARLEN
from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, Version, about_model, need


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.has("transformers"):
        return
    recurrent = [kind for kind in model.layer_types if kind in RECURRENT_LAYERS]
    family = model.model_type.replace("_text", "")
    first_fixed = RECURRENT_VARLEN.get(family)
    if not recurrent:
        return
    version = need(snapshot.version("transformers"), "the version of transformers")
    missing = find_missing_kernels(snapshot, model) if family in GATED_DELTA_RULE else []
    if first_fixed is not None and version >= Version(first_fixed) and not missing:
        return
    lacks_cu_seqlens = first_fixed is None or version < Version(first_fixed)
    reason = f"{' and '.join(missing)} not installed"
    if lacks_cu_seqlens:
        reason = f"transformers {version} does not pass cu_seqlens to them"
    kernel_fixes = () if lacks_cu_seqlens else (install_kernels(snapshot, missing),)
    yield Problem(
        message=f"packing leaks through the recurrent layers of {model.model_type}: {reason}",
        evidence=(f"{len(recurrent)} of {len(model.layer_types)} layers are {', '.join(sorted(set(recurrent)))}",),
        fixes=(*kernel_fixes, Fix("do not pack this model", "setting", "packing: false")),
        subject=model.model_type,
    )


RULE = Rule("ATN409", "warning", check, general=True)
