"""Writes a plan for axolotl as YAML.

Names are those of the releases 0.16.1 and 0.19.0 (utils/schemas/config.py, integrations/liger/args.py):
`attn_implementation` since 0.17, booleans before; `context_parallel_size` since 0.12. `bf16: true` also loads weights
in bfloat16 (utils/config/__init__.py, `resolve_dtype`). The ring is ring-flash-attn's llama3 scheme with packing, and
requires flash_attention_2 and micro_batch_size 1 (utils/schemas/validation.py:1803).
"""

from attncheck.lint.fields import (
    Plan,
    VersionCheck,
    format_bool,
    format_exports,
    list_applying,
    packing_remarks,
    unsupported_remarks,
)

IMPLEMENTATION_FLAGS = {
    "flash_attention_2": "flash_attention",
    "sdpa": "sdp_attention",
    "eager": "eager_attention",
    "flex_attention": "flex_attention",
}
PRECISION_FIELDS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
LIGER_FIELDS = ("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy")


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the YAML lines of a plan."""
    fields = _implementation_field(plan, is_at_least)
    fields["sample_packing"] = format_bool(plan.packed)
    fields["sequence_len"] = str(plan.max_length)
    fields["bf16"] = format_bool(plan.precision == "autocast")
    if plan.precision in PRECISION_FIELDS:
        fields[PRECISION_FIELDS[plan.precision]] = "true"
    fields["micro_batch_size"] = str(plan.batch)
    fields["gradient_accumulation_steps"] = str(plan.accumulation)
    fields["gradient_checkpointing"] = format_bool(plan.gradient_checkpointing)
    if plan.cross_entropy != "torch":
        fields["flash_attn_cross_entropy" if plan.cross_entropy == "flash_attn" else "chunked_cross_entropy"] = "true"
    if plan.compile:
        fields["torch_compile"] = "true"
    if plan.ring_size > 1 and plan.scheme == "llama3":
        fields["context_parallel_size" if is_at_least("0.12") else "sequence_parallel_degree"] = str(plan.ring_size)
        fields["heads_k_stride"] = str(plan.heads_k_stride)
        fields["ring_attn_func"] = "varlen_llama3"
    lines = [f"{name}: {value}" for name, value in fields.items()]
    if plan.liger:
        lines += ["plugins:", "  - axolotl.integrations.liger.LigerPlugin", *(f"{name}: true" for name in LIGER_FIELDS)]
    return [*format_exports(plan, "# in the shell: "), *lines, *_format_remarks(plan, is_at_least)]


def _implementation_field(plan: Plan, is_at_least: VersionCheck) -> dict[str, str]:
    implementation = plan.attn_implementation
    if is_at_least("0.17"):
        return {"attn_implementation": implementation} if implementation else {}
    return {IMPLEMENTATION_FLAGS[implementation]: "true"} if implementation in IMPLEMENTATION_FLAGS else {}


def _format_remarks(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    implementation = plan.attn_implementation
    is_ring = plan.ring_size > 1 and plan.scheme == "llama3"
    has_no_flag = implementation and implementation not in IMPLEMENTATION_FLAGS
    autocast = "# weights in float32 under autocast: no setting; bf16: true also loads them in bfloat16"
    remarks = {
        f"# {implementation}: no setting before axolotl 0.17": has_no_flag and not is_at_least("0.17"),
        autocast: plan.precision == "autocast",
        "# torch.use_deterministic_algorithms(True): no setting": plan.deterministic,
        "# context_parallel_size requires flash_attention_2": is_ring and implementation != "flash_attention_2",
        "# context_parallel_size with sample_packing requires micro_batch_size 1": is_ring and plan.batch > 1,
    }
    explanation = "axolotl passes position_ids that restart in each document, and no mask"
    return [
        *packing_remarks(plan, "position_ids", explanation=explanation),
        *list_applying(remarks),
        *unsupported_remarks(plan, "compile", "cross_entropy", "llama3", "shims"),
    ]
