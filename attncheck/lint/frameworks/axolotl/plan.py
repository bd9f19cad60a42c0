"""A plan for axolotl: its YAML.

Names as in the releases 0.16.1 and 0.19.0 (utils/schemas/config.py, integrations/liger/args.py): `attn_implementation`
since 0.17, booleans before; `context_parallel_size` since 0.12. `bf16: true` also loads weights in bfloat16
(utils/config/__init__.py, `resolve_dtype`). The ring is ring-flash-attn's llama3 scheme with packing, and asks for
flash_attention_2 and micro_batch_size 1 (utils/schemas/validation.py:1803).
"""

from __future__ import annotations

from attncheck.core.plan import Plan
from attncheck.lint.fields.plan_writing import Since, exports, remarks, unlike, word

BOOLEANS = {
    "flash_attention_2": "flash_attention",
    "sdpa": "sdp_attention",
    "eager": "eager_attention",
    "flex_attention": "flex_attention",
}
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
LIGER = ("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy")


def plan_settings(plan: Plan, since: Since) -> list[str]:
    """Return the YAML lines of a plan."""
    found = _implementation(plan, since)
    found["sample_packing"] = word(plan.packed)
    found["sequence_len"] = str(plan.max_length)
    found["bf16"] = word(plan.precision == "autocast")
    if plan.precision in PRECISIONS:
        found[PRECISIONS[plan.precision]] = "true"
    found["micro_batch_size"] = str(plan.batch)
    found["gradient_accumulation_steps"] = str(plan.accumulation)
    found["gradient_checkpointing"] = word(plan.gradient_checkpointing)
    if plan.cross_entropy != "torch":
        found["flash_attn_cross_entropy" if plan.cross_entropy == "flash_attn" else "chunked_cross_entropy"] = "true"
    if plan.compile:
        found["torch_compile"] = "true"
    if plan.ring_size > 1 and plan.scheme == "llama3":
        found["context_parallel_size" if since("0.12") else "sequence_parallel_degree"] = str(plan.ring_size)
        found["heads_k_stride"] = str(plan.heads_k_stride)
        found["ring_attn_func"] = "varlen_llama3"
    text = [f"{name}: {value}" for name, value in found.items()]
    if plan.liger:
        text += ["plugins:", "  - axolotl.integrations.liger.LigerPlugin", *(f"{name}: true" for name in LIGER)]
    return [*exports(plan, "# in the shell: "), *text, *_remarks(plan, since)]


def _implementation(plan: Plan, since: Since) -> dict[str, str]:
    wanted = plan.attn_implementation
    if since("0.17"):
        return {"attn_implementation": wanted} if wanted else {}
    return {BOOLEANS[wanted]: "true"} if wanted in BOOLEANS else {}


def _remarks(plan: Plan, since: Since) -> list[str]:
    found = list(unlike(plan, "position_ids", told="axolotl gives position_ids that begin anew, and no mask"))
    wanted = plan.attn_implementation
    if wanted and wanted not in BOOLEANS and not since("0.17"):
        found.append(f"# {wanted}: no setting before axolotl 0.17")
    if plan.precision == "autocast":
        found.append("# weights in float32 under autocast: no setting; bf16: true also loads them in bfloat16")
    if plan.deterministic:
        found.append("# torch.use_deterministic_algorithms(True): no setting")
    if plan.ring_size > 1 and plan.scheme == "llama3":
        if wanted != "flash_attention_2":
            found.append("# context_parallel_size asks for flash_attention_2")
        if plan.batch > 1:
            found.append("# context_parallel_size with sample_packing asks for micro_batch_size 1")
    return [*found, *remarks(plan, "compile", "cross_entropy", "llama3", "shims")]
